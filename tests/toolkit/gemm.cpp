// SPDX-License-Identifier: Apache-2.0
// gemm against plain loops, on every layout and in every dtype.
#include "nativeops/devices/gemm.h"

#include <cmath>

#include "harness.h"
#include "products.h"

using harness::Array;
using harness::Layout;
using harness::on_each_device;

namespace nativeops {

struct Product {
  int64_t batch, rows, depth, columns;
};
#if defined(NATIVEOPS_CPU_THREADS)  // where a block costs milliseconds
constexpr Product kProducts[] = {{1, 0, 3, 4}, {2, 9, 5, 17}, {1, 3, 0, 2}};
#else
// Empty ones, few rows, few columns, then several tiles both ways and several parts of the depth.
constexpr Product kProducts[] = {
    {1, 0, 3, 4},    {0, 2, 3, 4},    {1, 3, 0, 2},     {1, 1, 1, 1},      {9, 4, 4, 4},
    {3, 1, 65, 130}, {1, 5, 300, 65}, {2, 12, 40, 300}, {1, 290, 70, 12},  {1, 131, 34, 9},
    {2, 97, 17, 35}, {1, 21, 9, 33},  {1, 6, 257, 64},  {1, 173, 530, 140}};
#endif

// Multiples of 1/8 are exact in every dtype, and so are their sums in float.
template <class Ta, class Tb, class T>
void expect_product(Device& dev, Product s, int turn, double alpha, double beta) {
  using A = Accum<T>;
  const auto layout = [=](int part) { return harness::kLayouts[turn / part % 4]; };
  Array<Ta> a(s.batch, s.rows, s.depth, layout(1), 1);
  Array<Tb> b(s.batch, s.depth, s.columns, layout(4), 2);
  Array<T> c(s.batch, s.rows, s.columns, layout(16), 3);
  Array<T> before(s.batch, s.rows, s.columns, layout(16), 3);
  gemm(dev, a.in(), b.in(), c.view, alpha, beta);
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t i = 0; i < s.rows; ++i) {
      for (int64_t j = 0; j < s.columns; ++j) {
        A sum = 0;
        for (int64_t k = 0; k < s.depth; ++k)
          sum += A(Accum<Ta>(a.view(n, i, k))) * A(Accum<Tb>(b.view(n, k, j)));
        const A expected = A(alpha) * sum + (beta == 0 ? A(0) : A(beta) * A(before.view(n, i, j)));
        EXPECT(harness::same_bits(c.view(n, i, j), T(expected)));
      }
    }
  }
  EXPECT(c.intact());
}

CASE(gemm_is_the_product_for_all_sizes_layouts_and_dtypes) {
  on_each_device([](Device& dev) {
    int turn = 0;
    for (Product s : kProducts) {
      for (int i = 0; i < 8; ++i) {
        turn += 5;
        expect_product<float, float, float>(dev, s, turn, 1, 0);
        expect_product<double, double, double>(dev, s, turn, 2, -1);
        expect_product<bf16, bf16, bf16>(dev, s, turn, 1, 1);
        expect_product<bf16, bf16, float>(dev, s, turn, 2, 0);
        expect_product<f16, f16, float>(dev, s, turn, 0.5, 0);
        expect_product<float, bf16, bf16>(dev, s, turn, 1, 0);
      }
    }
  });
  EXPECT(harness::live_allocations() == 0);
}

// A copy of a matrix that fills the memory would not fit beside it.
CASE(gemm_takes_bounded_memory_for_matrices_of_any_size) {
#if defined(NATIVEOPS_CPU_THREADS)
  constexpr int64_t kDepth = 9;
#else
  constexpr int64_t kDepth = 140000;
#endif
  Array<bf16> a(1, 97, kDepth, Layout::kTransposed, 1);
  Array<float> b(1, kDepth, 70, Layout::kTransposed, 2), c(1, 97, 70, Layout::kGaps, 3);
  on_each_device([&](Device& dev) {
    harness::largest_allocation() = 0;
    gemm(dev, a.in(), b.in(), c.view);
    EXPECT(harness::largest_allocation() <= sizeof(float) * 96 * (kDepth + 16));
    for (int64_t i = 0; i < 97; i += 8) {
      for (int64_t j = i % 7; j < 70; j += 7) {
        double sum = 0;
        for (int64_t k = 0; k < kDepth; ++k) {
          sum += double(float(a.view(0, i, k))) * double(b.view(0, k, j));
        }
        EXPECT(c.view(0, i, j) == float(sum));
      }
    }
  });
  EXPECT(c.intact());
  EXPECT(harness::live_allocations() == 0);
}

CASE(gemm_does_not_read_a_result_that_does_not_count) {
  on_each_device([](Device& dev) {
    float a[4] = {1, 2, 3, 4}, c[4] = {NAN, NAN, NAN, NAN};
    const View<float, 2> left{a, {2, 2}, {2, 1}}, out{c, {2, 2}, {2, 1}};
    gemm(dev, left, transpose(left), out);
    EXPECT(c[0] == 5 && c[1] == 11 && c[2] == 11 && c[3] == 25);
    c[0] = NAN;
    gemm(dev, left, left, out, 0, 0);
    EXPECT(c[0] == 0 && c[3] == 0);
  });
}

CASE(gemm_repeats_a_matrix_whose_batch_has_no_step) {
  on_each_device([](Device& dev) {
    Array<float> a(3, 4, 5), b(1, 5, 6), c(3, 4, 6), one(1, 4, 6);
    View<const float, 3> all = b.in();
    all.size_[0] = 3;
    all.stride_[0] = 0;
    gemm(dev, a.in(), all, c.view);
    for (int64_t n = 0; n < 3; ++n) {
      gemm(dev, at(a.in(), n), at(b.in(), 0), at(one.view, 0));
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 6; ++j) EXPECT(c.view(n, i, j) == one.view(0, i, j));
    }
  });
}

CASE(gemm_says_which_sizes_do_not_fit) {
  on_each_device([](Device& dev) {
    Array<float> a(1, 2, 3), b(1, 4, 5), c(1, 2, 5);
    std::string said;
    try {
      gemm(dev, at(a.in(), 0), at(b.in(), 0), at(c.view, 0));
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    EXPECT(said == "gemm: c[2, 5] is not the product of a[2, 3] and b[4, 5].");
  });
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
