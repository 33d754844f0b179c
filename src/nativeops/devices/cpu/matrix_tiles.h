// SPDX-License-Identifier: Apache-2.0
// How a product of bf16 is computed by the tiles of AMX: what matrix_blocks.h does with vectors.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/matrix_blocks.h"
#include "nativeops/devices/cpu/tile_products.h"

namespace nativeops::matrix_product {

struct BlocksOfTiles {
  using Number = float;
  using Of = tuned::Tiles<1>;
  using Thread = Of::Thread;
  static constexpr int64_t n = Of::kSide, kDepth = 256;  // words: two bf16 each
  static constexpr int64_t kTileRows = 96, kTileColumns = Of::kWide * n;

  static int64_t words(int64_t depth) { return Of::words(depth); }
  static int64_t room(int64_t rows) { return rows; }

  // Rows as they are, each up to a whole tile.
  static void copy_left(const Matrix& m, Range rows, Range k, float* to) {
    with_numbers<float>(m, [&](const auto& view) {
      const int64_t end = std::min(2 * k.end, m.size[1]);
      alignas(64) float some[n * n];
      for (int64_t c = 2 * k.begin; c < 2 * k.end; c += n) {
        for (int64_t r = rows.begin; r < rows.end; r += n) {
          const Range block{r, std::min(r + n, rows.end)}, numbers{c, std::clamp(end, c, c + n)};
          copy_part(part(view, block, numbers), some, n);
          for (int64_t i = 0; i < block.count(); ++i) {
            float* row = to + (r - rows.begin + i) * k.count();
            Of::write(row, k.count(), c - 2 * k.begin, simd::load(some + i * n), numbers.count());
          }
        }
      }
    });
  }

  static void copy_right(const Matrix& m, Range columns, Range k, float* to) {
    const int vectors = static_cast<int>(ceil_div(columns.count(), n));
    with_numbers<float>(m, [&](const auto& view) {
      const Range numbers{2 * k.begin, std::min(2 * k.end, m.size[0])};
      for (int v = 0; v < vectors; ++v) {
        const Range some{columns.begin + v * n, std::min(columns.begin + (v + 1) * n, columns.end)};
        Of::pack(part(view, numbers, some), to, vectors, v, k.count());
      }
    });
  }

  static void multiply(const float* left, const float* right, int64_t depth, int64_t rows,
                       int64_t columns, float* sums, bool fresh) {
    const float* row[kTileRows];
    for (int64_t r = 0; r < rows; ++r) row[r] = left + r * depth;
    if (fresh) std::fill_n(sums, rows * kTileColumns, 0.0f);
    Of::multiply(static_cast<int>(ceil_div(columns, n)), row, rows, 0, depth, right, sums,
                 kTileColumns, sums, kTileColumns);
  }
};

}  // namespace nativeops::matrix_product
