// SPDX-License-Identifier: Apache-2.0
// contract against plain loops. Compiled for the CPU and for its debug device.
#include <cmath>
#include <limits>

#include "harness.h"

using harness::Array;
using harness::Layout;
using harness::on_each_device;
using harness::same_bits;

namespace nativeops {

struct Size {
  int64_t batch, rows, depth, columns;
};
#if defined(NATIVEOPS_CPU_THREADS)  // where a block costs milliseconds
constexpr Size kSizes[] = {{1, 0, 3, 4}, {2, 33, 17, 35}, {1, 3, 0, 2}};
#else
constexpr Size kSizes[] = {{1, 0, 3, 4},   {0, 2, 3, 4},    {2, 33, 17, 35},   {1, 3, 0, 2},
                           {1, 1, 1, 1},   {3, 1, 65, 1},   {1, 131, 34, 129}, {2, 130, 32, 257},
                           {1, 2, 5, 16},  {1, 6000, 3, 2}, {5, 3, 70, 3},     {700, 1, 9, 4},
                           {2, 7, 2000, 1}};
#endif

CASE(contract_is_a_generalised_product) {
  on_each_device([](Device& dev) {
    int turn = 0;
    for (Size s : kSizes) {
      auto test = [&](auto zero) {
        using T = decltype(zero);
        using A = Accum<T>;
        const Layout l1 = harness::kLayouts[turn % 4], l2 = harness::kLayouts[turn / 2 % 4];
        ++turn;
        Array<T> a(s.batch, s.rows, s.depth, l1, 1), c(s.batch, s.depth, s.columns, l2, 2);
        Array<T> at(s.batch, s.rows, s.columns, l2, 3);
        Array<T> sum(s.batch, s.rows, s.columns, l1), most(s.batch, s.rows, s.columns);
        contract(dev, sum.view, a.in(), c.in(), at.in(),
                 [] KERNEL(A x, A y, A z) { return abs(x - y) + z; });
        contract(dev, most.view, a.in(), c.in(), [] KERNEL(A x, A y) { return x + y; }, Largest{});
        sum.each([&](int64_t b, int64_t i, int64_t j) {
          A total = 0, largest = -std::numeric_limits<A>::infinity();
          for (int64_t k = 0; k < s.depth; ++k) {
            const A x = a.view(b, i, k), y = c.view(b, k, j);
            total += abs(x - y) + A(at.view(b, i, j));
            largest = max2(largest, x + y);
          }
          EXPECT(same_bits(sum.view(b, i, j), T(total)));
          EXPECT(same_bits(most.view(b, i, j), T(largest)));
        });
        EXPECT(sum.intact() && most.intact());
      };
      FOR_EACH_DTYPE(test);
    }
  });
}

CASE(contract_reads_operands_broadcast_along_an_axis) {
  on_each_device([](Device& dev) {
    Array<float> a(1, 3, 5), c(2, 5, 4), out(2, 3, 4);
    In<float, 3> shared{a.view.data, {2, 3, 5}, {0, 5, 1}};
    contract(dev, out.view, shared, c.in(), [] KERNEL(float x, float y) { return x * y; });
    out.each([&](int64_t b, int64_t i, int64_t j) {
      float sum = 0;
      for (int64_t k = 0; k < 5; ++k) sum += a.view(0, i, k) * c.view(b, k, j);
      EXPECT(out.view(b, i, j) == sum);
    });
  });
}

struct SumPlusAt : Plus {
  template <class A>
  HOST_DEVICE A finish(A sum, A at) const {
    return sum + at;
  }
};

CASE(contract_may_write_over_the_operand_at) {
  on_each_device([](Device& dev) {
    for (int64_t columns : {18, 3}) {
      Array<double> a(1, 21, 9), c(1, 9, columns), out(1, 21, columns), before(1, 21, columns);
      contract(
          dev, out.view, a.in(), c.in(), out.in(),
          [] KERNEL(double x, double y, double z) { return x * y * z; }, SumPlusAt{});
      out.each([&](int64_t b, int64_t i, int64_t j) {
        double sum = 0;
        const double z = before.view(b, i, j);
        for (int64_t k = 0; k < 9; ++k) sum += a.view(b, i, k) * c.view(b, k, j) * z;
        EXPECT(out.view(b, i, j) == sum + z);
      });
    }
  });
}

CASE(contract_of_zipped_views_sees_pairs) {
  on_each_device([](Device& dev) {
    Array<bf16> a(2, 6, 9, Layout::kGaps, 1), w(2, 6, 9, Layout::kTransposed, 2), c(2, 9, 7);
    Array<float> out(2, 6, 7), swapped(2, 7, 6);
    using P = Pair<float, float>;
    contract(dev, out.view, zip(a.in(), w.in()), c.in(),
             [] KERNEL(P p, float y) { return p.first * y + p.second; });
    contract(dev, swapped.view, transpose(c.in()), transpose(zip(a.in(), w.in())),
             [] KERNEL(float y, P p) { return p.first * y + p.second; });
    out.each([&](int64_t b, int64_t i, int64_t j) {
      float sum = 0;
      for (int64_t k = 0; k < 9; ++k) sum += a.view(b, i, k) * c.view(b, k, j) + w.view(b, i, k);
      EXPECT(out.view(b, i, j) == sum);
      EXPECT(swapped.view(b, j, i) == sum);
    });
  });
}

CASE(contract_folds_log_probabilities) {
  on_each_device([](Device& dev) {
    Array<double> a(1, 5, 12), c(1, 12, 6), out(1, 5, 6), none(1, 5, 6);
    Array<double> empty(1, 5, 0), empty_too(1, 0, 6);
    auto plus = [] KERNEL(double x, double y) { return x + y; };
    contract(dev, out.view, a.in(), c.in(), plus, LogPlus{});
    contract(dev, none.view, empty.in(), empty_too.in(), plus, LogPlus{});
    out.each([&](int64_t b, int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t k = 0; k < 12; ++k) sum += std::exp(a.view(b, i, k) + c.view(b, k, j));
      EXPECT(std::fabs(out.view(b, i, j) - std::log(sum)) < 1e-14);
      EXPECT(none.view(b, i, j) == -std::numeric_limits<double>::infinity());
    });
  });
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
