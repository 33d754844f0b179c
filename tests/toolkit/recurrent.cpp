// SPDX-License-Identifier: Apache-2.0
// What the recurrent layers on the CPU are made of: products of rows with packed panels and with
// weights as they lie, against plain loops; the activations against long double. Compiled for each
// instruction set.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/activations.h"
#include "nativeops/devices/cpu/dots.h"
#include "nativeops/devices/cpu/panels.h"

namespace nativeops::tuned {

constexpr int kMargin = 16;
constexpr int kSentinel = -77;

// Small whole numbers, whose sums of products are exact in any order.
template <class A>
std::vector<A> whole_numbers(int64_t count, unsigned seed) {
  std::vector<A> all(static_cast<size_t>(count));
  srand(seed);
  for (A& value : all) value = static_cast<A>(rand() % 17 - 8);
  return all;
}
template <class A>
std::vector<const A*> rows_of(const std::vector<A>& memory, int64_t count, int64_t stride) {
  std::vector<const A*> rows;
  for (int64_t r = 0; r < count; ++r) rows.push_back(memory.data() + (count - 1 - r) * stride);
  return rows;
}

template <class A>
void check_panel(int vectors, int64_t count, int64_t depth, int64_t offset, bool one_init,
                 bool alone = false) {
  const int64_t width = vectors * simd::kLanes<A>, init_stride = one_init ? 0 : width;
  const int64_t stride = width + 3, row_stride = offset + depth + 1;
  const auto memory = whole_numbers<A>((count + 1) * row_stride, 1);
  const auto panel = whole_numbers<A>(depth * width, 2), init = whole_numbers<A>(count * width, 3);
  const auto rows = rows_of(memory, count, row_stride);
  std::vector<A> sums(count * stride + kMargin, A(kSentinel));
  multiply(vectors, rows.data(), count, offset, depth, panel.data(), init.data(), init_stride,
           sums.data(), stride, alone);
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
    const int64_t r = i / stride, c = i % stride;
    A want = A(kSentinel);
    if (r < count && c < width) {
      want = init[r * init_stride + c];
      for (int64_t k = 0; k < depth; ++k) want += rows[r][offset + k] * panel[k * width + c];
    }
    EXPECT(sums[i] == want);
  }
}
template <class A>
void check_panels() {
  for (int vectors = 1; vectors <= kWidest; ++vectors) {
    for (int64_t count : {0, 1, 2, 3, 5, 6, 7, 8, 13, 14, 15, 29, 43}) {
      for (int64_t depth : {0, 1, 2, 17, 64}) {
        check_panel<A>(vectors, count, depth, count % 4, count % 2);
      }
    }
    for (int64_t depth : {0, 1, 3, 4, 17, 64}) check_panel<A>(vectors, 1, depth, 2, false, true);
  }
}
CASE(rows_times_panel_is_the_plain_product) {
  check_panels<float>();
  check_panels<double>();
}

// The sum of an element must not depend on how many rows are computed with it.
CASE(a_row_times_panel_has_the_same_bits_in_every_block) {
  constexpr int64_t kRows = 31, kDepth = 100, width = kWidest * simd::kLanes<float>;
  std::vector<float> memory(kRows * kDepth), panel(kDepth * width), zeros(width),
      sums(kRows * width);
  for (float& value : memory) value = static_cast<float>(rand()) / 1e9f;
  for (float& value : panel) value = static_cast<float>(rand()) / 1e9f - 1;
  const auto rows = rows_of(memory, kRows, kDepth);
  auto run = [&](int64_t first, int64_t count) {
    multiply(kWidest, rows.data() + first, count, 0, kDepth, panel.data(), zeros.data(), 0,
             sums.data() + first * width, width, false);
  };
  run(0, kRows);
  const std::vector<float> together = sums;
  for (int64_t r = 0; r < kRows; ++r) run(r, 1);
  EXPECT(std::equal(sums.begin(), sums.end(), together.begin(), harness::same_bits<float>));
}

// fetches: what comes next, too, which changes nothing.
template <class A>
void check_dots(int64_t height, int64_t count, int64_t depth, bool fetches) {
  const int64_t row_stride = depth + 2, weight_stride = depth + 1, stride = count + 3;
  const auto memory = whole_numbers<A>((height + 1) * row_stride, 1);
  const auto weight = whole_numbers<A>(count * weight_stride, 2);
  const auto elsewhere = whole_numbers<A>(count * weight_stride, 3);
  const auto rows = rows_of(memory, height, row_stride);
  std::vector<A> sums(height * stride + kMargin, A(kSentinel));
  dots<Numbers>(rows.data(), height, weight.data(), weight_stride, count, depth, sums.data(),
                stride, fetches ? elsewhere.data() : nullptr);
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
    const int64_t r = i / stride, j = i % stride;
    A want = A(kSentinel);
    if (r < height && j < count) {
      want = 0;
      for (int64_t k = 0; k < depth; ++k) want += rows[r][k] * weight[j * weight_stride + k];
    }
    EXPECT(sums[i] == want);
  }
}
CASE(rows_times_weights_as_they_lie_is_the_plain_product) {
  for (int64_t height : {0, 1, 2, 3, 4, 5, 7, 11}) {
    for (int64_t count : {1, 2, 3, 5, 8, 15, 16, 17, 33}) {
      for (int64_t depth : {0, 1, 7, 8, 16, 31, 40, 521}) {
        for (bool fetches : {false, true}) {
          check_dots<float>(height, count, depth, fetches);
          check_dots<double>(height, count, depth, fetches);
        }
      }
    }
  }
}

CASE(pairs_of_bf16_are_multiplied_and_added) {
#if NATIVEOPS_LEVEL >= 2  // which has the instruction, on some CPUs
  if (!simd::has_pairs()) return;
  constexpr int n = simd::kLanes<float>;
  const auto a = whole_numbers<float>(2 * n, 1), b = whole_numbers<float>(2 * n, 2);
  bf16 pairs[2][2 * n];
  for (int i = 0; i < 2 * n; ++i) pairs[0][i] = bf16(a[i]), pairs[1][i] = bf16(b[i]);
  simd::Vec<float> left, right;
  std::memcpy(&left, pairs[0], sizeof left);
  std::memcpy(&right, pairs[1], sizeof right);
  float sums[n];
  simd::store(sums, simd::fma_pairs(left, right, simd::broadcast(5.0f)));
  for (int i = 0; i < n; ++i) {
    EXPECT(sums[i] == 5 + a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1]);
  }
#endif
}

CASE(panels_hold_every_vector_once) {
  for (int64_t vectors = 1; vectors < 130; ++vectors) {
    for (int64_t widest = 1; widest <= kWidest; ++widest) {
      for (int64_t threads = 1; threads <= 9; ++threads) {
        const Split split(vectors, widest, threads);
        EXPECT(split.first(0) == 0 && split.first(split.panels) == vectors);
        for (int64_t p = 0; p < split.panels; ++p) {
          EXPECT(split.count(p) >= 1 && split.count(p) <= widest);
        }
      }
    }
  }
}

// Every 1021st of all floats, which has all exponents with ever other mantissas, and the extremes.
std::vector<float> samples() {
  using Limits = std::numeric_limits<float>;
  std::vector<float> x;
  for (float v : {0.0f, Limits::denorm_min(), Limits::min(), Limits::max(), Limits::infinity(),
                  0.6f, 1e4f, 86.9f, 87.0f, 87.1f, 88.8f, 103.9f, 9.5f, 9.49f}) {
    x.push_back(v);
    x.push_back(-v);
  }
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1021) {
    x.push_back(bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) / 16384);
  x.resize(x.size() / 64 * 64);
  return x;
}

template <class Function, class Truth>
void check_activation(const char* name, double most, Function of, Truth truth) {
  constexpr int n = simd::kLanes<float>;
  const std::vector<float> x = samples();
  double worst = 0;
  float where = 0, y[n];
  for (size_t i = 0; i < x.size(); i += n) {
    simd::store(y, of(simd::load(&x[i])));
    for (int lane = 0; lane < n; ++lane) {
      const float at = x[i + lane];
      if (std::isnan(at)) {
        EXPECT(std::isnan(y[lane]));
        continue;
      }
      const double error = static_cast<double>(std::fabs(y[lane] - truth(at)));
      if (!(error <= worst)) worst = error, where = at;
    }
  }
  std::printf("%s: %.3g at %a\n", name, worst, double(where));
  EXPECT(worst <= most);
}
long double true_sigmoid(long double x) {
  return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x));
}
CASE(sigmoid_is_within_its_stated_error_everywhere) {
  check_activation(
      "sigmoid", 1.3e-7, [](simd::Vec<float> a) { return simd::sigmoid(a); }, true_sigmoid);
}
CASE(tanh_is_within_its_stated_error_everywhere) {
  check_activation(
      "tanh", 1.3e-7, [](simd::Vec<float> a) { return simd::tanh(a); },
      [](long double x) { return tanhl(x); });
}

// A number by itself and a vector of it may be computed in other ways.
struct Activated {
  float sigmoid, tanh;
};
Activated alone(float x) { return {simd::sigmoid(x), simd::tanh(x)}; }
Activated in_a_vector(float x) {
  float y[simd::kLanes<float>], z[simd::kLanes<float>];
  simd::store(y, simd::sigmoid(simd::broadcast(x)));
  simd::store(z, simd::tanh(simd::broadcast(x)));
  return {y[0], z[0]};
}
CASE(activations_end_exactly_at_their_limits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> all = samples();
  for (auto of : {alone, in_a_vector}) {
    for (float x : {1e4f, 3e38f, infinity}) {
      EXPECT(of(x).sigmoid == 1 && of(-x).sigmoid < 1e-37f && of(-x).sigmoid >= 0);
      EXPECT(of(x).tanh == 1 && of(-x).tanh == -1);
    }
    EXPECT(of(0.0f).sigmoid == 0.5f && of(0.0f).tanh == 0);
    EXPECT(std::signbit(of(-0.0f).tanh) && !std::signbit(of(0.0f).tanh));
    for (float x : all) {
      if (std::isnan(x)) continue;
      const Activated y = of(x);
      EXPECT(of(-x).tanh == -y.tanh && std::fabs(y.tanh) <= 1);
      EXPECT(y.sigmoid >= 0 && y.sigmoid <= 1);
    }
  }
}

CASE(tanh_of_small_numbers_keeps_their_digits) {
  for (float x = 1e-30f; x < 0.5f; x *= 1.0137f) {
    EXPECT(std::fabs(alone(x).tanh / tanhl(x) - 1) < 2.5e-7L);
    EXPECT(std::fabs(in_a_vector(x).tanh / tanhl(x) - 1) < 3e-7L);
  }
}

CASE(doubles_are_accurate_to_the_last_places) {
  constexpr int n = simd::kLanes<double>;
  double y[n], z[n];
  for (double x = -800; x < 800; x += 0.0371) {
    simd::store(y, simd::sigmoid(simd::broadcast(x)));
    simd::store(z, simd::tanh(simd::broadcast(x)));
    EXPECT(std::fabs(y[n - 1] - true_sigmoid(x)) < 3e-16L && std::fabs(z[0] - tanhl(x)) < 3e-16L);
  }
}

template <class T>
void check_slopes() {
  constexpr int n = simd::kLanes<T>;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  T y[n];
  auto first = [&](simd::Vec<T> a) {
    simd::store(y, a);
    return y[0];
  };
  for (T x : {T(-2), T(-0.0), T(0), T(0.25), T(1)}) {
    const simd::Vec<T> a = simd::broadcast(x);
    EXPECT(first(simd::relu(a)) == (x > 0 ? x : T(0)) && first(simd::relu_slope(a)) == T(x > 0));
    EXPECT(first(simd::sigmoid_slope(a)) == x - x * x && first(simd::tanh_slope(a)) == 1 - x * x);
  }
  EXPECT(std::isnan(first(simd::relu(simd::broadcast(nan)))));
}
CASE(relu_and_slopes_follow_their_formulas) {
  check_slopes<float>();
  check_slopes<double>();
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) { return harness::run(argc, argv); }
