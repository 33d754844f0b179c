// SPDX-License-Identifier: Apache-2.0
// contract on the CPU: sums of kRows x columns stay in the second cache while panels of c pass
// through the first. Two rows and four steps of k share each load, so that arithmetic is the limit.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/operand.h"

namespace nativeops {
namespace contraction {

constexpr int kRows = 128, kDepth = 32, kSteps = 4;  // Zen4 EPYC, 2026-11
constexpr int kFewColumns = 4, kTogether = 4;
constexpr int kLanes = 16;  // columns come in multiples of this, so that no vector loop has a rest
template <class Acc>
constexpr int kColumns = 512 / sizeof(Acc);

// bf16 and f16 become the numbers that terms take, and sums become bf16 and f16, in one place for
// each type: written out wherever they are read, the conversions of f16 took most of the time in
// which a user's op is compiled.
template <class T>
constexpr bool kNarrow = !std::is_same_v<Accum<T>, std::remove_const_t<T>>;

template <class T>
[[gnu::noinline]] void widen(const T* from, int64_t stride, Accum<T>* to, int n) {
  if (stride == 1) {
    for (int i = 0; i < n; ++i) to[i] = static_cast<Accum<T>>(from[i]);
  } else {
    for (int i = 0; i < n; ++i) to[i] = static_cast<Accum<T>>(from[i * stride]);
  }
}
template <class T>
[[gnu::noinline]] void narrow(const Accum<T>* from, T* to, int64_t stride, int n) {
  if (stride == 1) {
    for (int i = 0; i < n; ++i) to[i] = T(from[i]);
  } else {
    for (int i = 0; i < n; ++i) to[i * stride] = T(from[i]);
  }
}
// The n numbers of an operand from (b, i, j) on along its last axis.
template <class Operand, class To>
void load_line(const Operand& from, int64_t b, int64_t i, int64_t j, To* to, int n) {
  for (int k = 0; k < n; ++k) to[k] = static_cast<To>(from(b, i, j + k));
}
template <class T, std::enable_if_t<!View<T, 3>::kIsMask, int> = 0>
void load_line(const View<T, 3>& from, int64_t b, int64_t i, int64_t j, Accum<T>* to, int n) {
  widen<std::remove_const_t<T>>(from.address(b, i, j), from.stride(2), to, n);
}

// One row of sums: its operands a for the k of the panel, and `at` for its columns.
template <class Acc, class A, class At>
struct Row {
  Acc* sum;
  const A* a;
  const At* at;
};

// sum[j] = fold(sum[j], term(a[k], panel[k][j], at[j])) for `Steps` k, two rows together. All that
// a term calls is inlined, however long it is: a call that remains keeps the loop from vectors.
template <int Steps, class Acc, class A, class C, class At, class Term, class Fold>
[[gnu::flatten]] inline void fold_two_rows(Row<Acc, A, At> x, Row<Acc, A, At> y,
                                           const C* __restrict panel, int cols, Term term,
                                           Fold fold) {
  Acc* __restrict x_sum = x.sum, * __restrict y_sum = y.sum;
  NATIVEOPS_IVDEP
  for (int j = 0; j < cols; ++j) {
    Acc x_j = x_sum[j], y_j = y_sum[j];
#pragma GCC unroll 4
    for (int k = 0; k < Steps; ++k) {
      const C c = panel[k * kColumns<Acc> + j];
      x_j = fold.fold(x_j, static_cast<Acc>(term(x.a[k], c, x.at[j])));
      y_j = fold.fold(y_j, static_cast<Acc>(term(y.a[k], c, y.at[j])));
    }
    x_sum[j] = x_j;
    y_sum[j] = y_j;
  }
}

// The part of the result that one task computes, in the order of k.
template <class Acc, class A, class C, class At>
class Tile {
 public:
  int64_t batch, row, col;
  int rows, cols;

  // Not inlined: it would be compiled for many threads, and again for one.
  template <class T, class Va, class Vc, class Vat, class Term, class Fold>
  [[gnu::noinline]] void run(View<T, 3> out, const Va& a, const Vc& c, const Vat& at, Term term,
                             Fold fold) {
    const int padded = round_up(cols, kLanes);
    const Acc init = fold.template init<Acc>();
    for (int i = 0; i < rows + rows % 2; ++i) {
      for (int j = 0; j < padded; ++j) sum_[i][j] = init;
    }
    const int64_t depth = a.size(2);
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int steps = static_cast<int>(min2<int64_t>(kDepth, depth - k));
      load_panel(c, k, steps, padded);
      for (int i = 0; i < rows; i += 2) {
        const int last = min2(i + 1, rows - 1);  // an odd last row is computed twice
        const Row<Acc, A, At> x = load_row(a, at, i, 0, k, steps);
        const Row<Acc, A, At> y = load_row(a, at, last, 1, k, steps);
        fold_panel(x, {sum_[i + 1], y.a, y.at}, steps, padded, term, fold);
      }
    }
    store(out, at, fold);
  }

 private:
  static constexpr int kWidth = kColumns<Acc>;

  template <class Vc>
  void load_panel(const Vc& c, int64_t k0, int steps, int padded) {
    for (int k = 0; k < steps; ++k) {
      load_line(c, batch, k0 + k, col, panel_[k], cols);
      for (int j = cols; j < padded; ++j) panel_[k][j] = C{};
    }
  }

  template <class Va, class Vat>
  Row<Acc, A, At> load_row(const Va& a, const Vat& at, int i, int slot, int64_t k0, int steps) {
    load_line(a, batch, row + i, k0, a_[slot], steps);
    load_line(at, batch, row + i, col, at_[slot], cols);
    return {sum_[i], a_[slot], at_[slot]};
  }

  template <class T, class Vat, class Fold>
  void store(View<T, 3> out, const Vat& at, Fold fold) {
    for (int i = 0; i < rows; ++i) {
      if constexpr (kNarrow<T>) {
        load_line(at, batch, row + i, col, at_[0], cols);
        for (int j = 0; j < cols; ++j) sum_[i][j] = fold.finish(sum_[i][j], at_[0][j]);
        narrow(sum_[i], out.address(batch, row + i, col), out.stride(2), cols);
      } else {
        for (int j = 0; j < cols; ++j) {
          const At here = static_cast<At>(at(batch, row + i, col + j));
          out(batch, row + i, col + j) = fold.finish(sum_[i][j], here);
        }
      }
    }
  }

  template <class Term, class Fold>
  void fold_panel(Row<Acc, A, At> x, Row<Acc, A, At> y, int steps, int padded, Term term,
                  Fold fold) {
    int k = 0;
    for (; k + kSteps <= steps; k += kSteps) {
      fold_two_rows<kSteps>(at_step(x, k), at_step(y, k), panel_[k], padded, term, fold);
    }
    for (; k < steps; ++k) {
      fold_two_rows<1>(at_step(x, k), at_step(y, k), panel_[k], padded, term, fold);
    }
  }
  static Row<Acc, A, At> at_step(Row<Acc, A, At> r, int k) { return {r.sum, r.a + k, r.at}; }

  alignas(64) Acc sum_[kRows][kWidth];
  alignas(64) C panel_[kDepth][kWidth];
  alignas(64) At at_[2][kWidth] = {};
  A a_[2][kDepth];
};

// Rows of one task: fewer where there would be too few tasks for many threads.
inline int task_rows(int64_t batches, int64_t rows, int64_t column_blocks) {
  int task = kRows;
  while (task > 8 && batches * column_blocks * ceil_div(rows, task) < 64) task /= 2;
  return task;
}

// So few columns that a vector of them would be mostly padding: rows of all batches, some together,
// as a sum waits for the one before. Where too few are left, the last one is taken again.
template <class T, class Va, class Vc, class Vat, class Term, class Fold>
[[gnu::flatten]] inline void fold_rows(View<T, 3> out, const Va& a, const Vc& c, const Vat& at,
                                       int64_t begin, int64_t end, Term term, Fold fold) {
  using Acc = Accum<T>;
  [[maybe_unused]] const auto columns = transpose(c);
  for (int64_t i = begin; i < end; i += kTogether) {
    int64_t batch[kTogether], row[kTogether];
    for (int r = 0; r < kTogether; ++r) {
      batch[r] = min2(i + r, end - 1) / out.size(1);
      row[r] = min2(i + r, end - 1) - batch[r] * out.size(1);
    }
    for (int64_t col = 0; col < out.size(2); ++col) {
      Acc sum[kTogether];
      Loaded<Vat> here[kTogether];
      for (int r = 0; r < kTogether; ++r) {
        sum[r] = fold.template init<Acc>();
        here[r] = static_cast<Loaded<Vat>>(at(batch[r], row[r], col));
      }
      const auto add = [&](int r, Loaded<Va> a_k, Loaded<Vc> c_k) {
        sum[r] = fold.fold(sum[r], static_cast<Acc>(term(a_k, c_k, here[r])));
      };
      if constexpr (!kNarrow<T>) {
        for (int64_t k = 0; k < a.size(2); ++k) {
          for (int r = 0; r < kTogether; ++r) add(r, a(batch[r], row[r], k), c(batch[r], k, col));
        }
      } else {
        Loaded<Va> a_part[kTogether][kDepth];
        Loaded<Vc> c_part[kTogether][kDepth];
        for (int64_t first = 0; first < a.size(2); first += kDepth) {
          const int steps = static_cast<int>(min2<int64_t>(kDepth, a.size(2) - first));
          for (int r = 0; r < kTogether; ++r) {
            load_line(a, batch[r], row[r], first, a_part[r], steps);
            load_line(columns, batch[r], col, first, c_part[r], steps);
          }
          for (int k = 0; k < steps; ++k) {
            for (int r = 0; r < kTogether; ++r) add(r, a_part[r][k], c_part[r][k]);
          }
        }
      }
      for (int r = 0; r < kTogether; ++r) {
        out(batch[r], row[r], col) = T(fold.finish(sum[r], here[r]));
      }
    }
  }
}

}  // namespace contraction

// A generalised matrix product, out[b,i,j] = fold over k of term(a[b,i,k], c[b,k,j]), or of
// term(a[b,i,k], c[b,k,j], at[b,i,j]). The operands are views with any strides, or zips of views;
// terms get them as Accum, and sums are kept in Accum<T>, in the order of k. `at` may be `out`.
//   contract(dev, out, x, transpose(y), [] KERNEL(Accum<T> x, Accum<T> y) { return x * y; });
//   contract(dev, out, a, c, [] KERNEL(float a, float c) { return a + c; }, Largest{});
template <class T, class Va, class Vc, class Vat, class Term, class Fold = Plus,
          std::enable_if_t<IsOperand<Vat>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Vat at, Term term, Fold fold = {}) {
  using namespace contraction;
  using Acc = Accum<T>;
  constexpr int kWidth = kColumns<Acc>;
  const int64_t n = out.size(0), rows = out.size(1), cols = out.size(2);
  if (out.count() == 0) return;
  // Panels read a line of memory once, also where it has numbers of many rows.
  const bool reads_rows = a.stride(2) == 1 || rows * a.size(2) <= kGrain;
  if (cols <= kFewColumns && reads_rows) {
    const int64_t height = max2<int64_t>(kTogether, kGrain / (cols * (a.size(2) + 4)));
    return dev.parallel(ceil_div(n * rows, height), [&](int64_t task) {
      fold_rows(out, a, c, at, task * height, min2(n * rows, (task + 1) * height), term, fold);
    });
  }
  const int64_t column_blocks = ceil_div(cols, kWidth);
  const int height = task_rows(n, rows, column_blocks);
  const int64_t row_blocks = ceil_div(rows, height);
  auto run = [&](int64_t task) {
    Tile<Acc, Loaded<Va>, Loaded<Vc>, Loaded<Vat>> tile;
    tile.batch = task / (row_blocks * column_blocks);
    tile.row = task / column_blocks % row_blocks * height;
    tile.col = task % column_blocks * kWidth;
    tile.rows = static_cast<int>(min2<int64_t>(height, rows - tile.row));
    tile.cols = static_cast<int>(min2<int64_t>(kWidth, cols - tile.col));
    tile.run(out, a, c, at, term, fold);
  };
  const int64_t tasks = n * row_blocks * column_blocks;
  if (out.count() * a.size(2) > kGrain) {
    dev.parallel(tasks, run);
  } else {
    for (int64_t task = 0; task < tasks; ++task) run(task);
  }
}
template <class T, class Va, class Vc, class Term, class Fold = Plus,
          std::enable_if_t<!IsOperand<Term>::value, int> = 0>
void contract(Device& dev, View<T, 3> out, Va a, Vc c, Term term, Fold fold = {}) {
  contract(dev, out, a, c, Nothing{}, WithoutAt<Term>{term}, fold);
}

}  // namespace nativeops
