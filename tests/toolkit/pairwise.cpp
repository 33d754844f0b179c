// SPDX-License-Identifier: Apache-2.0
// The pairwise distances and their gradients against their formulas in long double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness.h"
#include "nativeops/ops/pairwise_l1.h"
#include "nativeops/ops/pairwise_lp.h"

using harness::Array;
using harness::Layout;
using harness::on_each_device;

namespace nativeops {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kPowers[] = {1, 1.5, 2, 3, 40, kInfinity};

template <class T>
constexpr double kTolerance = std::is_same<T, double>::value  ? 1e-12
                              : std::is_same<T, float>::value ? 3e-6
                              : std::is_same<T, f16>::value   ? 1.5e-3
                                                              : 1.2e-2;
template <class T>
bool close(T got, long double want, long double size) {
  return std::fabs(static_cast<long double>(static_cast<double>(got)) - want) <=
         kTolerance<T> * std::max(size, std::fabs(want));
}

long double distance(View<const double, 2> e, double p) {
  long double most = 0, sum = 0;
  for (int64_t k = 0; k < e.size(1); ++k) most = std::max<long double>(most, std::fabs(e(0, k)));
  if (std::isinf(p) || most == 0) return most;
  for (int64_t k = 0; k < e.size(1); ++k) sum += powl(std::fabs(e(0, k)) / most, p);
  return most * powl(sum, 1 / p);
}

// d distance / d e[k] at the distance `all`; the maximum is shared by all that attain it
long double slope(View<const double, 2> e, int64_t k, long double all, double p) {
  const long double size = std::fabs(e(0, k));
  if (all == 0) return 0;
  long double share = std::isinf(p) ? 0 : powl(size / all, p - 1);
  if (std::isinf(p) && size == all) {
    for (int64_t l = 0; l < e.size(1); ++l) share += std::fabs(e(0, l)) == all;
    share = 1 / share;
  }
  return e(0, k) > 0 ? share : e(0, k) < 0 ? -share : 0;
}

template <class T>
void check_all(Device& dev, int64_t batch, int64_t n, int64_t m, int64_t d, double p,
               Layout layout) {
  Array<T> x(batch, n, d, layout, 1), y(batch, m, d, Layout::kGaps, 2), out(batch, n, m, layout, 3);
  Array<T> d_out(batch, n, m, layout, 4), d_x(batch, n, d), d_y(batch, m, d, layout);
  pairwise_lp<T>(dev, x.in(), y.in(), out.view, p);
  pairwise_lp_grad<T>(dev, x.in(), y.in(), out.in(), d_out.in(), d_x.view, d_y.view, p);
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<long double> want_x(n * d), want_y(m * d);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        std::vector<double> e(d);
        for (int64_t k = 0; k < d; ++k) e[k] = double(x.view(b, i, k)) - double(y.view(b, j, k));
        const View<const double, 2> row = dense(e.data(), 1, d);
        EXPECT(close(out.view(b, i, j), distance(row, p), 0));
        // As the op is given it, rounded, where that is not magnified by a power.
        const bool given = p == 2 || std::isinf(p);
        const long double all = given ? double(out.view(b, i, j)) : distance(row, p);
        for (int64_t k = 0; k < d; ++k) {
          const long double term = double(d_out.view(b, i, j)) * slope(row, k, all, p);
          want_x[i * d + k] += term;
          want_y[j * d + k] -= term;
        }
      }
    }
    for (int64_t k = 0; k < n * d; ++k) EXPECT(close(d_x.view(b, k / d, k % d), want_x[k], m));
    for (int64_t k = 0; k < m * d; ++k) EXPECT(close(d_y.view(b, k / d, k % d), want_y[k], n));
  }
  EXPECT(out.intact() && d_x.intact() && d_y.intact());
}

CASE(distances_and_gradients_follow_their_formulas) {
  on_each_device([](Device& dev) {
    int turn = 0;
    for (double p : kPowers) {
      auto test = [&](auto zero) {
        using T = decltype(zero);
        check_all<T>(dev, 2, 5, 37, 19, p, harness::kLayouts[turn++ % 4]);
        check_all<T>(dev, 1, 33, 3, 1, p, Layout::kDense);
        check_all<T>(dev, 1, 0, 3, 2, p, Layout::kDense);
        check_all<T>(dev, 1, 2, 3, 0, p, Layout::kDense);
      };
      FOR_EACH_DTYPE(test);
    }
  });
}

template <class T>
struct Two {
  T x[2], y[2], out, d_out, d_x[2], d_y[2];
  In<T, 3> in_x() { return dense(x, 1, 1, 2); }
  In<T, 3> in_y() { return dense(y, 1, 1, 2); }
  void run(double p) {
    Device dev{&harness::kSerial};
    pairwise_lp<T>(dev, in_x(), in_y(), dense(&out, 1, 1, 1), p);
    In<T, 3> o = dense(&out, 1, 1, 1), d = dense(&d_out, 1, 1, 1);
    pairwise_lp_grad<T>(dev, in_x(), in_y(), o, d, dense(d_x, 1, 1, 2), dense(d_y, 1, 1, 2), p);
  }
};

template <class T>
void check_scale(T scale, double p) {
  Two<T> pair{{3 * scale, 0}, {0, 4 * scale}, 0, 1, {}, {}};
  pair.run(p);
  const long double size = std::isinf(p) ? 4 : powl(powl(3, p) + powl(4, p), 1 / p);
  EXPECT(std::fabs(pair.out / scale / size - 1) < kTolerance<T> * 4);
  const long double slope = std::isinf(p) ? 0 : powl(3 / size, p - 1);
  EXPECT(std::fabs(pair.d_x[0] - slope) < kTolerance<T> * 8 && pair.d_y[0] == -pair.d_x[0]);
}

CASE(powers_neither_overflow_nor_underflow) {
  for (double p : {1.0, 1.01, 2.0, 3.0, 100.0, 5000.0, kInfinity}) {
    for (float scale : {1e30f, 1e37f, 1e-30f, 1e-36f}) check_scale<float>(scale, p);
    for (double scale : {1e300, 1e-300}) check_scale<double>(scale, p);
  }
}

CASE(nan_and_infinity_come_through) {
  for (double p : kPowers) {
    Two<float> nan{{NAN, 1}, {0, 5}, 0, 1, {}, {}};
    nan.run(p);
    EXPECT(std::isnan(nan.out) && std::isnan(nan.d_x[0]) && std::isnan(nan.d_y[0]));
    Two<float> infinite{{INFINITY, 1}, {0, 5}, 0, 1, {}, {}};
    infinite.run(p);
    EXPECT(infinite.out == INFINITY);
    Two<float> far{{3e38f, 1}, {-3e38f, 5}, 0, 1, {}, {}};
    far.run(p);
    EXPECT(far.out == INFINITY);
  }
}

CASE(equal_vectors_have_gradient_zero) {
  for (double p : kPowers) {
    Two<float> pair{{1.5f, -2}, {1.5f, -2}, 9, 3, {7, 7}, {7, 7}};
    pair.run(p);
    EXPECT(pair.out == 0);
    for (int k : {0, 1}) EXPECT(pair.d_x[k] == 0 && pair.d_y[k] == 0);
  }
}

CASE(equal_maxima_share_the_gradient) {
  Two<float> pair{{2, 0}, {0, 2}, 0, 3, {}, {}};
  pair.run(kInfinity);
  EXPECT(pair.d_x[0] == 1.5f && pair.d_x[1] == -1.5f && pair.d_y[0] == -1.5f &&
         pair.d_y[1] == 1.5f);
}

CASE(gradients_that_nobody_needs_are_skipped) {
  Device dev{&harness::kSerial};
  Array<float> x(1, 3, 2), y(1, 4, 2), out(1, 3, 4), d_x(1, 3, 2), d_y(1, 4, 2);
  for (double p : kPowers) {
    pairwise_lp<float>(dev, x.in(), y.in(), out.view, p);
    View<float, 3> no_x = d_x.view, no_y = d_y.view;
    no_x.data = no_y.data = nullptr;
    pairwise_lp_grad<float>(dev, x.in(), y.in(), out.in(), out.in(), d_x.view, d_y.view, p);
    Array<float> again_x(1, 3, 2), again_y(1, 4, 2);
    pairwise_lp_grad<float>(dev, x.in(), y.in(), out.in(), out.in(), again_x.view, no_y, p);
    pairwise_lp_grad<float>(dev, x.in(), y.in(), out.in(), out.in(), no_x, again_y.view, p);
    d_x.each([&](int64_t b, int64_t i, int64_t k) {
      EXPECT(d_x.view(b, i, k) == again_x.view(b, i, k));
    });
    d_y.each([&](int64_t b, int64_t i, int64_t k) {
      EXPECT(d_y.view(b, i, k) == again_y.view(b, i, k));
    });
  }
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
