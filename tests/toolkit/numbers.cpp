// SPDX-License-Identifier: Apache-2.0
// bf16 and f16 exhaustively; the elementary functions against long double, over all exponents.
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness.h"

namespace nativeops {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// The value of a 16-bit number with so many bits of exponent, by its definition.
double defined(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? kNan<double> : sign * kInfinity<double>;
  const int whole = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

template <class Half>
Half from_bits(int bits) {
  Half half;
  half.bits = static_cast<uint16_t>(bits);
  return half;
}

template <class Half>
void check_every_number(int exponent_bits) {
  for (int bits = 0; bits < 65536; ++bits) {
    const Half half = from_bits<Half>(bits);
    const float value = half;
    const double want = defined(half.bits, exponent_bits);
    EXPECT(want != want ? value != value : value == want && std::signbit(value) == bits >> 15);
    EXPECT(want != want ? float(Half(value)) != float(Half(value)) : Half(value).bits == bits);
  }
}
CASE(every_16_bit_number_has_its_value) {
  check_every_number<bf16>(8);
  check_every_number<f16>(5);
}

template <class Half>
void check_rounding(int infinity) {
  for (int bits = 0; bits + 1 < infinity; ++bits) {
    const float low = from_bits<Half>(bits), high = from_bits<Half>(bits + 1);
    const float middle = static_cast<float>((double{low} + high) / 2);
    for (float sign : {1.0f, -1.0f}) {
      const int mark = sign < 0 ? 0x8000 : 0;
      EXPECT(Half(sign * middle).bits == ((bits + (bits & 1)) | mark));
      EXPECT(Half(sign * std::nextafterf(middle, 0)).bits == (bits | mark));
      EXPECT(Half(sign * std::nextafterf(middle, 1e39)).bits == ((bits + 1) | mark));
    }
  }
}
CASE(rounding_is_to_nearest_and_ties_go_to_even) {
  check_rounding<bf16>(0x7f80);
  check_rounding<f16>(0x7c00);
  EXPECT(f16(65519.996f).bits == 0x7bff && f16(65520.0f).bits == 0x7c00);
  EXPECT(f16(3e38f).bits == 0x7c00 && f16(-kInfinity<float>).bits == 0xfc00);
  EXPECT(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  EXPECT(f16(std::numeric_limits<float>::denorm_min()).bits == 0);
}

CASE(nan_stays_nan_whatever_its_bits) {
  for (uint32_t payload : {1u, 0x1fffu, 0x2000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float nan = bit_cast<float>(0x7f800000u | payload | sign);
      EXPECT(std::isnan(float(bf16(nan))) && std::isnan(float(f16(nan))));
    }
  }
}

CASE(sixteen_bit_numbers_compute_as_float) {
  const bf16 a(1.5f);
  const f16 b(2.0f);
  static_assert(std::is_same<decltype(a * b), float>::value, "");
  static_assert(std::is_same<decltype(a + 1), float>::value, "");
  static_assert(std::is_same<Accum<const bf16>, float>::value, "");
  static_assert(std::is_same<Accum<double>, double>::value, "");
  static_assert(sizeof(bf16) == 2 && std::is_trivially_copyable<bf16>::value, "");
  static_assert(sizeof(f16) == 2 && std::is_trivially_default_constructible<f16>::value, "");
  EXPECT(a * b == 3 && a < b && exp(a) == exp(1.5f) && abs(a) == 1.5f);
}

// The distance of a result from the truth, in units of the last place of the truth.
template <class T>
double error_in_ulp(T got, long double want) {
  const T rounded = static_cast<T>(want);
  if (std::isnan(got) || std::isnan(rounded))
    return std::isnan(got) && std::isnan(rounded) ? 0 : 1e9;
  if (std::isinf(got) || std::isinf(rounded)) return got == rounded ? 0 : 1e9;
  if (want == 0) return got == 0 && std::signbit(got) == std::signbit(want) ? 0 : 1e9;
  int exponent = 0;
  std::frexp(want, &exponent);
  exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
  const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(std::fabs((got - want) / ulp));
}

template <class T>
std::vector<T> special() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> x;
  for (T v : {T(0), T(1), T(0.5), kInfinity<T>, kNan<T>, Limits::denorm_min(), Limits::min(),
              Limits::max(), Limits::epsilon(), T(88.72), T(103.9), T(709.7), T(745.1), T(9.1)}) {
    x.push_back(v);
    x.push_back(-v);
  }
  return x;
}

// Every 2063rd of all floats: each exponent 4000 times, with ever other mantissas.
std::vector<float> samples(float) {
  std::vector<float> x = special<float>();
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 2063) {
    x.push_back(bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return x;
}
// Doubles of every exponent, and more of them where the functions bend.
std::vector<double> samples(double) {
  std::vector<double> x = special<double>();
  uint64_t state = 88172645463325252u;
  auto random = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  };
  for (int i = 0; i < 200000; ++i) x.push_back(bit_cast<double>(random()));
  for (int i = 0; i < 400000; ++i) {
    const double v = std::ldexp(static_cast<double>(random() >> 11), -53) - 0.5;
    x.push_back(std::ldexp(v, static_cast<int>(random() % 80) - 69));
    x.push_back(1 + v);
    x.push_back(16 * v);
  }
  return x;
}

template <class T, class F>
void check_function(const char* name, double bound, void (*all)(const T*, T*, size_t), F truth) {
  const std::vector<T> x = samples(T{});
  std::vector<T> y(x.size());
  all(x.data(), y.data(), x.size());
  double worst = 0;
  T where = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = error_in_ulp(y[i], truth(static_cast<long double>(x[i])));
    if (error > worst) worst = error, where = x[i];
  }
  std::printf("%s %d bits: %.3f ulp at %a\n", name, int(sizeof(T)) * 8, worst, double(where));
  EXPECT(worst <= bound);
}

#define FUNCTION(name, bound, truth)                                 \
  template <class T>                                                 \
  void all_##name(const T* x, T* y, size_t n) {                      \
    for (size_t i = 0; i < n; ++i) y[i] = nativeops::name(x[i]);     \
  }                                                                  \
  CASE(name##_is_accurate_for_every_number) {                        \
    check_function<float>(#name, bound, all_##name<float>, truth);   \
    check_function<double>(#name, bound, all_##name<double>, truth); \
  }

FUNCTION(sqrt, 0.5, [](long double x) { return sqrtl(x); })
FUNCTION(exp, 1.0, [](long double x) { return expl(x); })
FUNCTION(log, 1.0, [](long double x) { return logl(x); })
FUNCTION(log1p, 1.0, [](long double x) { return log1pl(x); })
FUNCTION(tanh, 1.6, [](long double x) { return tanhl(x); })
FUNCTION(erf, 1.6, [](long double x) { return erfl(x); })
FUNCTION(sigmoid, 1.6,
         [](long double x) { return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x)); })

CASE(logaddexp_is_accurate_and_keeps_infinities) {
  const std::vector<double> x = samples(double{});
  for (size_t i = 0; i + 1 < x.size(); ++i) {
    const double a = std::fmod(x[i], 800), b = std::fmod(x[i + 1], 800);
    const long double most = std::max(a, b), rest = std::min(a, b) - most;
    const double got = logaddexp(a, b), size = std::max({std::fabs(a), std::fabs(b), 1.0});
    if (std::isnan(a) || std::isnan(b)) {
      EXPECT(std::isnan(got));
    } else {
      const double ulp = std::nextafter(size, kInfinity<double>) - size;
      EXPECT(std::fabs(got - (most + log1pl(expl(rest)))) <= 2 * ulp);
    }
  }
  const float infinity = kInfinity<float>;
  EXPECT(logaddexp(-infinity, -infinity) == -infinity && logaddexp(infinity, infinity) == infinity);
  EXPECT(logaddexp(-infinity, 3.0f) == 3 && logaddexp(infinity, -infinity) == infinity);
  EXPECT(std::isnan(logaddexp(kNan<float>, infinity)));
  EXPECT(logaddexp(bf16(0.0f), bf16(0.0f)) == logaddexp(0.0f, 0.0f));
}

CASE(signs_and_extremes_of_nan) {
  const float nan = kNan<float>;
  EXPECT(sign(2.5f) == 1 && sign(-0.0f) == 0 && sign(-kInfinity<float>) == -1 && sign(-3) == -1);
  EXPECT(std::isnan(sign(nan)));
  EXPECT(min2(1, 2) == 1 && max2(1, 2) == 2);
  EXPECT(max2(nan, 1.0f) == 1 && std::isnan(max2(1.0f, nan)) && min2(nan, 1.0f) == 1);
  for (float v : {1.0f, kInfinity<float>, -kInfinity<float>}) {
    EXPECT(std::isnan(max_or_nan(nan, v)) && std::isnan(max_or_nan(v, nan)));
    EXPECT(std::isnan(min_or_nan(nan, v)) && std::isnan(min_or_nan(v, nan)));
  }
  EXPECT(max_or_nan(1.0f, 2.0f) == 2 && min_or_nan(1.0f, 2.0f) == 1);
  EXPECT(abs(int64_t{-5}) == 5 && abs(-0.0f) == 0 && !std::signbit(abs(-0.0f)));
  EXPECT(lowest<int32_t>() == INT32_MIN && highest<double>() == kInfinity<double>);
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
