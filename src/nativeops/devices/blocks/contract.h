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

constexpr int kSlice = 16;
constexpr int kThreads = kContractSide * kContractSide;

// How many squares of so many elements per thread and axis the result has.
template <class T>
int64_t squares(const View<T, 3>& out, int per) {
  const int64_t side = kContractSide * per;
  return out.size(0) * ceil_div(out.size(1), side) * ceil_div(out.size(2), side);
}

template <int kPer, class T, class Va, class Vc, class Vat, class Term, class Fold>
struct Kernel {
  static constexpr int kSquare = kContractSide * kPer;

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

  // What a thread fetches of both operands' next slices while the block computes with these.
  static constexpr int kOwn = kSlice * kSquare / kThreads;
  struct Fetched {
    A a[kOwn];
    C c[kOwn];
  };
  // Where the e-th number of a slice is: along k or across it, as the strides say, so that
  // neighbouring threads read neighbouring memory.
  struct Place {
    int k, i;
    KERNEL Place(int e, bool along)
        : k(along ? e % kSlice : e / kSquare), i(along ? e / kSlice : e % kSquare) {}
  };
  template <class F>
  KERNEL static void for_places(bool along, F f) {
    const int thread = static_cast<int>(threadIdx.y * kContractSide + threadIdx.x);
    NATIVEOPS_UNROLL
    for (int n = 0; n < kOwn; ++n) f(n, Place(thread + n * kThreads, along));
  }
  KERNEL bool a_along() const { return a.stride(2) <= a.stride(1); }
  KERNEL bool c_along() const { return c.stride(1) <= c.stride(2); }

  KERNEL void fetch(Square s, int64_t k0, Fetched& to) const {
    for_places(a_along(), [&](int n, Place at) {
      if (k0 + at.k < a.size(2) && s.row + at.i < out.size(1)) {
        to.a[n] = static_cast<A>(a(s.batch, s.row + at.i, k0 + at.k));
      }
    });
    for_places(c_along(), [&](int n, Place at) {
      if (k0 + at.k < a.size(2) && s.col + at.i < out.size(2)) {
        to.c[n] = static_cast<C>(c(s.batch, k0 + at.k, s.col + at.i));
      }
    });
  }
  KERNEL void put(const Fetched& from, A (*a_slice)[kSquare + 1], C (*c_slice)[kSquare + 1]) const {
    for_places(a_along(), [&](int n, Place at) { a_slice[at.k][at.i] = from.a[n]; });
    for_places(c_along(), [&](int n, Place at) { c_slice[at.k][at.i] = from.c[n]; });
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
    Fetched fetched{};
    fetch(s, 0, fetched);
    for (int64_t k0 = 0; k0 < a.size(2); k0 += kSlice) {
      put(fetched, a_slice, c_slice);
      sync();
      if (k0 + kSlice < a.size(2)) fetch(s, k0 + kSlice, fetched);
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

template <int kPer, class T, class Va, class Vc, class Vat, class Term, class Fold>
void run(Device& dev, View<T, 3> out, Va a, Vc c, Vat at, Term term, Fold fold) {
  using Squares = Kernel<kPer, T, Va, Vc, Vat, Term, Fold>;
  const int64_t row_blocks = ceil_div(out.size(1), Squares::kSquare);
  const int64_t column_blocks = ceil_div(out.size(2), Squares::kSquare);
  launch(dev, static_cast<unsigned>(min2(squares(out, kPer), kMaxGrid)),
         Dim3(kContractSide, kContractSide),
         Squares{out, a, c, at, term, fold, row_blocks, column_blocks});
}

}  // namespace contraction

// A generalised matrix product, out[b,i,j] = fold over k of term(a[b,i,k], c[b,k,j]), or of
// term(a[b,i,k], c[b,k,j], at[b,i,j]). The operands are views with any strides, or zips of views;
// terms get them as Accum, and sums are kept in Accum<T>, in the order of k. `at` may be `out`.
template <class T, class Va, class Vc, class Vat, class Term, class Fold = Plus,
          std::enable_if_t<IsOperand<Vat>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Vat at, Term term, Fold fold = {}) {
  using namespace contraction;
  // Large squares read least; small ones leave no multiprocessor idle.
  constexpr int64_t kEnough = 256;
  constexpr bool kNarrow =  // registers, too
      sizeof(Loaded<Va>) + sizeof(Loaded<Vc>) <= 8 && sizeof(Loaded<Vat>) <= 4;
  if constexpr (kNarrow) {
    if (squares(out, 8) >= kEnough) return run<8>(dev, out, a, c, at, term, fold);
  }
  if (squares(out, 4) >= kEnough) {
    run<4>(dev, out, a, c, at, term, fold);
  } else {
    run<2>(dev, out, a, c, at, term, fold);
  }
}
template <class T, class Va, class Vc, class Term, class Fold = Plus,
          std::enable_if_t<!IsOperand<Term>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Term term, Fold fold = {}) {
  contract(dev, out, a, c, Nothing{}, WithoutAt<Term>{term}, fold);
}

}  // namespace nativeops
