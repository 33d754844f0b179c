// SPDX-License-Identifier: Apache-2.0
// contract with many threads: a block computes a square of the result, each thread kPer x kPer
// elements of it in registers, from slices of both operands in shared memory.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/operand.h"
#include "nativeops/devices/view.h"

namespace nativeops {
namespace contraction {

constexpr int kPer = 4, kSlice = 16;
constexpr int kSquare = kContractSide * kPer;
constexpr int kThreads = kContractSide * kContractSide;

template <class T, class Va, class Vc, class Vat, class Term, class Fold>
struct Kernel {
  View<T, 3> out;
  Va a;
  Vc c;
  Vat at;
  Term term;
  Fold fold;
  int64_t row_blocks, column_blocks;

  using Acc = Accum<T>;
  using A = Loaded<Va>;
  using C = Loaded<Vc>;
  using At = Loaded<Vat>;
  struct Square {
    int64_t batch, row, col;
  };

  KERNEL void operator()() const {
    const int64_t blocks = out.size(0) * row_blocks * column_blocks;
    for (int64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
      run(Square{i / (row_blocks * column_blocks), i / column_blocks % row_blocks * kSquare,
                 i % column_blocks * kSquare});
    }
  }

  // Neighbouring threads read neighbouring memory: along k or across it, as the strides say.
  KERNEL void load(Square s, int64_t k0, A (*a_slice)[kSquare + 1],
                   C (*c_slice)[kSquare + 1]) const {
    const int thread = static_cast<int>(threadIdx.y * kContractSide + threadIdx.x);
    const bool a_along = a.stride(2) <= a.stride(1), c_along = c.stride(1) <= c.stride(2);
    for (int e = thread; e < kSlice * kSquare; e += kThreads) {
      const int along_k = e % kSlice, along_i = e / kSlice;
      const int across_i = e % kSquare, across_k = e / kSquare;
      const int ka = a_along ? along_k : across_k, i = a_along ? along_i : across_i;
      if (k0 + ka < a.size(2) && s.row + i < out.size(1)) {
        a_slice[ka][i] = static_cast<A>(a(s.batch, s.row + i, k0 + ka));
      }
      const int kc = c_along ? along_k : across_k, j = c_along ? along_i : across_i;
      if (k0 + kc < a.size(2) && s.col + j < out.size(2)) {
        c_slice[kc][j] = static_cast<C>(c(s.batch, k0 + kc, s.col + j));
      }
    }
  }

  KERNEL void run(Square s) const {
    SHARED A a_slice[kSlice][kSquare + 1];
    SHARED C c_slice[kSlice][kSquare + 1];
    const int ty = static_cast<int>(threadIdx.y), tx = static_cast<int>(threadIdx.x);
    Acc sum[kPer][kPer];
    At here[kPer][kPer];
    for_own(s, [&](int i, int j, int64_t row, int64_t col, bool inside) {
      sum[i][j] = fold.template init<Acc>();
      here[i][j] = inside ? static_cast<At>(at(s.batch, row, col)) : At{};
    });
    for (int64_t k0 = 0; k0 < a.size(2); k0 += kSlice) {
      load(s, k0, a_slice, c_slice);
      sync();
      const int steps = static_cast<int>(min2<int64_t>(kSlice, a.size(2) - k0));
      for (int k = 0; k < steps; ++k) {
        for_own(s, [&](int i, int j, int64_t, int64_t, bool) {
          const A left = a_slice[k][ty + i * kContractSide];
          const C right = c_slice[k][tx + j * kContractSide];
          sum[i][j] = fold.fold(sum[i][j], static_cast<Acc>(term(left, right, here[i][j])));
        });
      }
      sync();
    }
    for_own(s, [&](int i, int j, int64_t row, int64_t col, bool inside) {
      if (inside) out(s.batch, row, col) = T(fold.finish(sum[i][j], here[i][j]));
    });
  }

  // f(i, j, row, col, inside) for the elements of this thread.
  template <class F>
  KERNEL void for_own(Square s, F f) const {
    const int64_t row = s.row + threadIdx.y, col = s.col + threadIdx.x;
    NATIVEOPS_UNROLL
    for (int i = 0; i < kPer; ++i) {
      NATIVEOPS_UNROLL
      for (int j = 0; j < kPer; ++j) {
        const int64_t r = row + i * kContractSide, c = col + j * kContractSide;
        f(i, j, r, c, r < out.size(1) && c < out.size(2));
      }
    }
  }
};

}  // namespace contraction

// A generalised matrix product, out[b,i,j] = fold over k of term(a[b,i,k], c[b,k,j]), or of
// term(a[b,i,k], c[b,k,j], at[b,i,j]). The operands are views with any strides, or zips of views;
// terms get them as Accum, and sums are kept in Accum<T>, in the order of k. `at` may be `out`.
template <class T, class Va, class Vc, class Vat, class Term, class Fold = Plus,
          std::enable_if_t<IsOperand<Vat>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Vat at, Term term, Fold fold = {}) {
  using namespace contraction;
  const int64_t row_blocks = (out.size(1) + kSquare - 1) / kSquare;
  const int64_t column_blocks = (out.size(2) + kSquare - 1) / kSquare;
  const int64_t blocks = out.size(0) * row_blocks * column_blocks;
  launch(dev, static_cast<unsigned>(min2(blocks, kMaxGrid)), Dim3(kContractSide, kContractSide),
         Kernel<T, Va, Vc, Vat, Term, Fold>{out, a, c, at, term, fold, row_blocks, column_blocks});
}
template <class T, class Va, class Vc, class Term, class Fold = Plus,
          std::enable_if_t<!IsOperand<Term>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Term term, Fold fold = {}) {
  contract(dev, out, a, c, Nothing{}, WithoutAt<Term>{term}, fold);
}

}  // namespace nativeops
