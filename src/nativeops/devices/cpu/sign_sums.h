// SPDX-License-Identifier: Apache-2.0
// Σ_j g[i,j]·sign(x[i,k] - y[j,k]) and -Σ_i of the same, by ranks. The sign asks only which number
// is larger. So each column of x and y together is sorted once, and its numbers become their places
// in that order: 16 bits, twice as many in a vector. Of four pairs the four bits "x is larger" are
// the place of ±g ± g ± g ± g in a table of all 16 such sums, which is one vector, built once for
// all k: one permutation and one addition for four pairs, "Method of Four Russians" (Arlazarov et
// al., 1970). Equal numbers of x and y have no order; the few there are by chance are mended
// afterwards.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "nativeops/devices/cpu/pairwise_grad.h"

namespace nativeops::tuned {

struct SignBlock {
  static constexpr int64_t kGroup = 32;     // columns side by side: 16 bits each in a vector
  static constexpr int64_t kRows = 64;      // of x and of y: their tables in the second-level cache
  static constexpr int64_t kMostTies = 64;  // mended in one column
  static constexpr int64_t kTable = 2 * 4 * 16;       // numbers of the tables of 4 x 4 pairs
  static constexpr int64_t kProbe = 256;              // rows looked at beforehand
  static_assert(GradBlock<float>::kWidth == kGroup);  // add_parts adds up such rows
};

struct Tie {
  int32_t x, y;  // rows
};

// What is known of some columns: the rows of equal numbers, and ranks by groups of 32 columns. The
// lower halves of a row's 16 words are those of the first 16 columns, the upper of the others.
struct Ranks {
  uint16_t *x, *y;
  int64_t x_rows, y_rows;  // padded to whole fours
  Tie* ties;
  int32_t* n_ties;

  uint16_t* x_at(int64_t group, int64_t row) const {
    return x + (group * x_rows + row) * SignBlock::kGroup;
  }
  uint16_t* y_at(int64_t group, int64_t row) const {
    return y + (group * y_rows + row) * SignBlock::kGroup;
  }
};

// Sorts one column by its bits, 11 at a time: `sorted` has the numbers' bits in order, above their
// rows. False if one is not finite: infinity less infinity has no sign.
struct ColumnSorter {
  static constexpr int kBits = 11, kPasses = 3;
  uint64_t *sorted, *other;

  bool sort(const float* column, int64_t rows) {
    int32_t starts[kPasses][1 << kBits] = {};
    bool is_finite = true;
    for (int64_t r = 0; r < rows; ++r) {
      const float number = column[r] + 0.0f;  // -0 is 0
      is_finite &= std::abs(number) <= std::numeric_limits<float>::max();
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof bits);
      bits ^= static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
      other[r] = uint64_t{bits} << 32 | static_cast<uint64_t>(r);
      for (int p = 0; p < kPasses; ++p) ++starts[p][digit(other[r], p)];
    }
    for (int p = 0; p < kPasses; ++p) {
      int32_t before = 0;
      for (int32_t& start : starts[p]) before += std::exchange(start, before);
      for (int64_t r = 0; r < rows; ++r) sorted[starts[p][digit(other[r], p)]++] = other[r];
      std::swap(sorted, other);
    }
    std::swap(sorted, other);
    return is_finite;
  }
  static int64_t digit(uint64_t number, int pass) {
    return static_cast<int64_t>(number >> (32 + kBits * pass)) & ((1 << kBits) - 1);
  }
};

// The pairs of rows that are equal in a sorted column; -1 if there are too many.
inline int32_t find_ties(const uint64_t* sorted, int64_t n, int64_t m, Tie* ties) {
  int32_t count = 0;
  for (int64_t start = 0, end; start < n + m; start = end) {
    int64_t first_y = start;  // rows of x come first
    for (end = start; end < n + m && sorted[end] >> 32 == sorted[start] >> 32; ++end) {
      first_y += static_cast<int64_t>(sorted[end] & 0xffffffff) < n;
    }
    if (end == start + 1) continue;
    if ((first_y - start) * (end - first_y) > SignBlock::kMostTies - count) return -1;
    for (int64_t a = start; a < first_y; ++a) {
      for (int64_t b = first_y; b < end; ++b) {
        ties[count++] = {static_cast<int32_t>(sorted[a]),
                         static_cast<int32_t>(sorted[b]) - static_cast<int32_t>(n)};
      }
    }
  }
  return count;
}

// The ranks of one group of columns. False if not all are finite, or many are equal.
inline bool rank_group(Device& dev, In<float, 2> x, In<float, 2> y, const Ranks& to,
                       int64_t group) {
  constexpr int64_t kHalf = 16, kGroup = SignBlock::kGroup;
  const int64_t n = x.size(0), m = y.size(0), n_padded = round_up(n, kHalf);
  const int64_t length = n_padded + round_up(m, kHalf);
  auto numbers = dev.workspace<float>(kHalf * length);
  auto order = dev.workspace<uint64_t>(2 * (n + m));
  for (int64_t half = 0; half < kGroup; half += kHalf) {
    const int64_t first = group * kGroup + half, columns = std::min(x.size(1) - first, kHalf);
    for (int64_t k = 0; k < columns; ++k) {
      float* column = numbers.data() + k * length;
      if (k == 0) {
        pack(transpose(part(x, 0, n, first, kHalf)), column, length);
        pack(transpose(part(y, 0, m, first, kHalf)), column + n_padded, length);
      }
      std::copy_n(column + n_padded, m, column + n);
      ColumnSorter sorter{order.data(), order.data() + n + m};
      if (!sorter.sort(column, n + m)) return false;
      const int64_t ties =
          find_ties(sorter.sorted, n, m, to.ties + (first + k) * SignBlock::kMostTies);
      if (ties < 0) return false;
      to.n_ties[first + k] = static_cast<int32_t>(ties);
      auto* rank = reinterpret_cast<uint16_t*>(column);  // the numbers are not needed any more
      for (int64_t r = 0; r < n + m; ++r) {
        rank[sorter.sorted[r] & 0xffffffff] = static_cast<uint16_t>(r);
      }
    }
    for (int64_t row = 0; row < n + m; ++row) {
      uint16_t* ranks = (row < n ? to.x_at(group, row) : to.y_at(group, row - n)) + half / kHalf;
      const auto* rank = reinterpret_cast<const uint16_t*>(numbers.data()) + row;
      for (int64_t k = 0; k < columns; ++k) ranks[2 * k] = rank[k * 2 * length];
    }
  }
  return true;
}

// For each 4 x 4 pairs of a block of g: of each row the 16 sums ±g ± g ± g ± g, plus where the bit
// is set, the first of the four the highest bit; then of each column their negatives.
inline void sign_tables(const float* g, int64_t stride, float* to) {
  alignas(64) float plus_or_minus[4][16];
  for (int b = 0; b < 4; ++b) {
    for (int place = 0; place < 16; ++place)
      plus_or_minus[b][place] = place >> (3 - b) & 1 ? 1 : -1;
  }
  constexpr int64_t width = SignBlock::kRows;
  const auto table = [&](const float* first, int64_t step) {
    __m512 sum = _mm512_setzero_ps();
    for (int b = 0; b < 4; ++b) {
      const __m512 term = _mm512_set1_ps(first[b * step]);
      sum = _mm512_fmadd_ps(_mm512_load_ps(plus_or_minus[b]), term, sum);
    }
    return sum;
  };
  for (int64_t i = 0; i < width; i += 4) {
    for (int64_t j = 0; j < width; j += 4, to += SignBlock::kTable) {
      const float* block = g + i * stride + j;
      for (int r = 0; r < 4; ++r) _mm512_store_ps(to + r * 16, table(block + r * stride, 1));
      for (int c = 0; c < 4; ++c) {
        const __m512 sum = table(block + c, stride);
        _mm512_store_ps(to + (4 + c) * 16, _mm512_sub_ps(_mm512_setzero_ps(), sum));
      }
    }
  }
}

// Adds the sums at the places of the lower and of the upper halves.
[[gnu::always_inline]] inline void add_of_table(__m512i places, const float* table, __m512& low,
                                                __m512& high) {
  const __m512 sums = _mm512_load_ps(table);
  low = _mm512_add_ps(low, _mm512_permutexvar_ps(places, sums));
  high = _mm512_add_ps(high, _mm512_permutexvar_ps(_mm512_srli_epi32(places, 16), sums));
}

// Four rows of x against `fours` times four rows of y, one group of columns.
template <bool kX, bool kY>
void sign_kernel(const uint16_t* x, const uint16_t* y, const float* tables, int64_t fours,
                 float* d_x, float* d_y) {
  constexpr int64_t width = SignBlock::kGroup;
  const __m512i bit[] = {_mm512_set1_epi16(8), _mm512_set1_epi16(4), _mm512_set1_epi16(2),
                         _mm512_set1_epi16(1)};
  __m512i x_rank[4];
  __m512 low[4], high[4];
  for (int r = 0; r < 4; ++r) {
    x_rank[r] = _mm512_load_si512(x + r * width);
    if (kX)
      low[r] = _mm512_load_ps(d_x + r * width), high[r] = _mm512_load_ps(d_x + r * width + 16);
  }
  for (int64_t j = 0; j < fours; ++j, tables += SignBlock::kTable) {
    __m512i of_x[4], of_y[4];
    simd::unroll<4>([&](auto c) __attribute__((always_inline)) {
      const __m512i y_rank = _mm512_load_si512(y + (4 * j + c) * width);
      simd::unroll<4>([&](auto r) __attribute__((always_inline)) {
        const __mmask32 larger = _mm512_cmpgt_epu16_mask(x_rank[r], y_rank);
        const auto set = [&](__m512i& places, bool first, __m512i one) {
          places = first ? _mm512_maskz_mov_epi16(larger, one)
                         : _mm512_mask_add_epi16(places, larger, places, one);
        };
        if (kX) set(of_x[r], c == 0, bit[c]);
        if (kY) set(of_y[c], r == 0, bit[r]);
      });
    });
    simd::unroll<4>([&](auto r) __attribute__((always_inline)) {
      if (kX) add_of_table(of_x[r], tables + r * 16, low[r], high[r]);
      if (!kY) return;
      float* to = d_y + (4 * j + r) * width;
      __m512 first = _mm512_load_ps(to), second = _mm512_load_ps(to + 16);
      add_of_table(of_y[r], tables + (4 + r) * 16, first, second);
      _mm512_store_ps(to, first), _mm512_store_ps(to + 16, second);
    });
  }
  if (!kX) return;
  for (int r = 0; r < 4; ++r) {
    _mm512_store_ps(d_x + r * width, low[r]), _mm512_store_ps(d_x + r * width + 16, high[r]);
  }
}

// One task: rows of x from `row` on, rows of y from `col` on, which `d_out` has, and all columns.
// d_x is added to; d_y is packed, a group's sums `y_step` numbers after those of the one before.
template <bool kX, bool kY>
void sign_block(Device& dev, const Ranks& ranks, int64_t row, int64_t col, In<float, 2> d_out,
                Out<float, 2> d_x, int64_t groups, float* d_y, int64_t y_step) {
  constexpr int64_t kRows = SignBlock::kRows, kGroup = SignBlock::kGroup;
  constexpr int64_t kTables = kRows * kRows / 16 * SignBlock::kTable;
  const int64_t n = d_out.size(0), m = d_out.size(1);
  auto memory = dev.workspace<float>(kTables + kRows * kRows + groups * kRows * kGroup);
  float *tables = memory.data(), *g = tables + kTables, *sums = g + kRows * kRows;
  for (int64_t q = 0; kY && q < groups; ++q) {
    std::fill_n(d_y + q * y_step, round_up(m, 4) * kGroup, 0.0f);
  }
  for (int64_t i = 0; i < n; i += kRows) {
    const int64_t rows = std::min(kRows, n - i);
    const auto d_x_group = [&](int64_t q) { return part(d_x, i, rows, q * kGroup, kGroup); };
    for (int64_t q = 0; kX && q < groups; ++q) {
      float* to = sums + q * kRows * kGroup;
      std::fill_n(to, kRows * kGroup, 0.0f);
      if (col > 0) pack(In<float, 2>(d_x_group(q)), to, kGroup);
    }
    for (int64_t j = 0; j < m; j += kRows) {
      const auto block = part(d_out, i, kRows, j, kRows);
      const bool full = rows == kRows && block.size(1) == kRows;
      if (full && block.stride(1) == 1) {
        // The next block meanwhile comes from memory: its rows lie on pages far apart.
        for (int64_t next = kRows; next < 2 * kRows && j + next < m; next += 16) {
          for (int64_t r = 0; r < kRows; ++r) __builtin_prefetch(&block(r, 0) + next);
        }
        sign_tables(block.data, block.stride(0), tables);
      } else {
        if (!full) std::fill_n(g, kRows * kRows, 0.0f);
        pack(block, g, kRows);
        sign_tables(g, kRows, tables);
      }
      const int64_t fours = ceil_div(block.size(1), 4);
      for (int64_t q = 0; q < groups; ++q) {
        for (int64_t r = 0; r < rows; r += 4) {
          sign_kernel<kX, kY>(ranks.x_at(q, row + i + r), ranks.y_at(q, col + j),
                              tables + r / 4 * (kRows / 4) * SignBlock::kTable, fours,
                              sums + (q * kRows + r) * kGroup,
                              kY ? d_y + q * y_step + j * kGroup : nullptr);
        }
      }
    }
    for (int64_t q = 0; kX && q < groups; ++q) {
      unpack(sums + q * kRows * kGroup, kGroup, d_x_group(q));
    }
  }
}

// How the work is cut, by its sizes alone: `width` columns of one matrix at a time, in parts of
// `rows` rows of x, which run side by side over `cols` rows of y; then come the next of y.
struct SignPlan {
  static constexpr int64_t kGroup = SignBlock::kGroup, kRows = SignBlock::kRows;
  int64_t groups, width, x_rows, y_rows, rows, parts, cols;

  SignPlan(int64_t n, int64_t m, int64_t d) {
    constexpr int64_t kWidth = 256, kParts = 32, kFewRows = 256;
    // 10 and 8 MB; with what sorting takes, in as many threads as it can, below 32.
    constexpr int64_t kRanks = int64_t{10} << 19, kSums = int64_t{8} << 18;
    x_rows = round_up(n, 4), y_rows = round_up(m, 4);
    const int64_t most = std::clamp(kRanks / (x_rows + y_rows) / kGroup * kGroup, kGroup, kWidth);
    groups = ceil_div(ceil_div(d, ceil_div(d, most)), kGroup);
    width = groups * kGroup;
    rows = round_up(ceil_div(n, std::clamp<int64_t>(n / kFewRows, 1, kParts)), kRows);
    parts = ceil_div(n, rows);
    cols =
        std::min(round_up(m, kRows), std::max<int64_t>(1, kSums / (parts * width * kRows)) * kRows);
  }
  // of 32 bits: sums, ranks, and for each column the equal rows, their count, and one more
  int64_t numbers(bool y_too) const {
    return (y_too ? parts * cols * width : 0) + (x_rows + y_rows) * width / 2 +
           width * (2 * SignBlock::kMostTies + 2);
  }
};

// Whether this pays: ns for each pair of rows on one thread of a Zen4 EPYC, 2026-11, with the
// columns as far as kernels fill them up.
inline bool ranks_pay(const SignPlan& plan, double n, double m, int64_t d) {
  const double by_sign = 0.044 * round_up(d, 16);
  const double kernel = 0.030 * round_up(d, SignBlock::kGroup);
  const double tables = 0.93 * ceil_div(d, plan.width), sorting = 8.5 * d * (1 / n + 1 / m);
  return kernel + tables + sorting < 0.95 * by_sign;
}

// Whether it may be possible, by the sizes: not too few for a plan, nor too many for 16 bits and
// the memory.
inline bool may_rank(const View<const float, 3>& x, int64_t m) {
  const int64_t n = x.size(1);
  return x.count() > 0 && std::min(n, m) >= SignBlock::kProbe && n + m <= 49152;
}

// Whether some numbers of the first column can be ranked.
inline bool probe_ranks(Device& dev, In<float, 3> x, In<float, 3> y) {
  constexpr int64_t kProbe = SignBlock::kProbe;
  auto memory = dev.workspace<uint64_t>(4 * kProbe);
  float column[2 * kProbe];
  for (int64_t i = 0; i < kProbe; ++i) column[i] = x(0, i, 0), column[kProbe + i] = y(0, i, 0);
  ColumnSorter sorter{memory.data(), memory.data() + 2 * kProbe};
  Tie ties[SignBlock::kMostTies];
  return sorter.sort(column, 2 * kProbe) && find_ties(sorter.sorted, kProbe, kProbe, ties) >= 0;
}

// Whether a sum may have lost digits to a weight that was in it for a while.
inline bool hides(float weight, float sum) { return !(std::abs(sum) >= std::abs(weight) / 16); }

// Σ_j g[j]·sign(number - others[j])
inline float sign_sum(float number, In<float, 1> others, In<float, 1> g) {
  double sum = 0;
  for (int64_t j = 0; j < g.size(0); ++j) {
    sum += static_cast<double>(g(j) * sign(number - others(j)));
  }
  return static_cast<float>(sum);
}

// d_x[i,k] = Σ_j g[i,j]·sign(x[i,k] - y[j,k]), and d_y[j,k] the negative sum over i, of a slice of
// the columns. False if they cannot be ranked.
template <bool kX, bool kY>
bool sign_sums(Device& dev, const SignPlan& plan, In<float, 2> x, In<float, 2> y, In<float, 2> g,
               Out<float, 2> d_x, Out<float, 2> d_y, float* memory) {
  constexpr int64_t kGroup = SignBlock::kGroup, kRowsAtOnce = 64;
  const int64_t m = y.size(0), columns = x.size(1), groups = ceil_div(columns, kGroup);
  const int64_t steps = g.count(), y_step = plan.parts * plan.cols * kGroup;
  float* const sums = memory;
  auto* const x_ranks = reinterpret_cast<uint16_t*>(sums + (kY ? plan.groups * y_step : 0));
  auto* const y_ranks = x_ranks + plan.x_rows * plan.width;
  auto* const ties = reinterpret_cast<Tie*>(y_ranks + plan.y_rows * plan.width);
  auto* const n_ties = reinterpret_cast<int32_t*>(ties + plan.width * SignBlock::kMostTies);
  int32_t* const ranked = n_ties + plan.width;
  const Ranks ranks{x_ranks, y_ranks, plan.x_rows, plan.y_rows, ties, n_ties};
  parallel_if_large(dev, groups, steps,
                    [&](int64_t q) { ranked[q] = rank_group(dev, x, y, ranks, q); });
  if (std::count(ranked, ranked + groups, 1) < groups) return false;
  for (int64_t j = 0; j < m; j += plan.cols) {
    parallel_if_large(dev, plan.parts, steps, [&](int64_t p) {
      const int64_t i = p * plan.rows;
      sign_block<kX, kY>(dev, ranks, i, j, part(g, i, plan.rows, j, plan.cols),
                         kX ? part(d_x, i, plan.rows, 0, columns) : d_x, groups,
                         sums + p * plan.cols * kGroup, y_step);
    });
    if (!kY) continue;
    const auto d_y_part = part(d_y, j, plan.cols, 0, columns);
    parallel_if_large(dev, ceil_div(d_y_part.size(0), kRowsAtOnce), plan.parts * d_y_part.size(0),
                      [&](int64_t task) {
                        for (int64_t q = 0; q < groups; ++q) {
                          const int64_t row = task * kRowsAtOnce;
                          add_parts(sums + q * y_step, plan.parts, plan.cols, row,
                                    part(d_y_part, row, kRowsAtOnce, q * kGroup, kGroup));
                        }
                      });
  }
  const auto each_tie = [&](int64_t k, auto&& body) {
    for (int32_t t = 0; t < n_ties[k]; ++t) {
      const Tie tie = ties[k * SignBlock::kMostTies + t];
      body(tie, g(tie.x, tie.y));
    }
  };
  for (int64_t k = 0; k < columns; ++k) {
    each_tie(k, [&](Tie tie, float weight) {  // equal numbers went as if y's were larger
      if (kX) d_x(tie.x, k) += weight;
      if (kY) d_y(tie.y, k) -= weight;
    });
    each_tie(k, [&](Tie tie, float weight) {
      if (kX && hides(weight, d_x(tie.x, k))) {
        d_x(tie.x, k) = sign_sum(x(tie.x, k), at(transpose(y), k), at(g, tie.x));
      }
      if (kY && hides(weight, d_y(tie.y, k))) {
        d_y(tie.y, k) = sign_sum(y(tie.y, k), at(transpose(x), k), at(transpose(g), tie.y));
      }
    });
  }
  return true;
}

}  // namespace nativeops::tuned
