// SPDX-License-Identifier: Apache-2.0
// A step of diffusion on a grid. Declared in stencil.py.
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

// out[i,j] = x[i,j] + rate (x[i-1,j] + x[i+1,j] + x[i,j-1] + x[i,j+1] - 4 x[i,j]), 0 beyond the
// border
//
// A block fetches its tile and the cells around it into shared memory, once for all its threads.
template <class T>
void stencil(Device& dev, In<T, 3> x, Out<T, 3> out, double rate) {
  using A = Accum<T>;
  for_each_tile(dev, out, [=] KERNEL(Block block) {
    SHARED A cell[kTile + 2][kTile + 2];
    const In<T, 2> from = at(x, block.batch);
    const Out<T, 2> to = at(out, block.batch);
    const int64_t rows = to.size(0), cols = to.size(1);
    const A share = static_cast<A>(rate);
    const auto fetch = [&](int r, int c) {  // of the tile with its border, from -1 to kTile
      const int64_t i = block.row + r, j = block.col + c;
      // A vector of a row that does not exist would be read with nothing in it, which takes CPUs
      // hundreds of cycles where no memory is.
      const int64_t row = i < 0 ? 0 : i < rows ? i : rows - 1;
      const bool inside = i == row && j >= 0 && j < cols;
      cell[r + 1][c + 1] = inside ? A(from(row, j)) : A(0);
    };
    block.each([&](int r, int c) { fetch(r, c); });
    block.each([&](int r, int c) {
      if (r > 1) return;  // two rows of threads fetch what is around
      const int side = r == 0 ? -1 : kTile;
      fetch(side, c);
      fetch(c, side);
    });
    block.sync();
    block.each([&](int r, int c) {
      const int64_t i = block.row + r, j = block.col + c;
      if (i >= rows || j >= cols) return;
      const A here = cell[r + 1][c + 1];
      const A around = cell[r][c + 1] + cell[r + 2][c + 1] + cell[r + 1][c] + cell[r + 1][c + 2];
      to(i, j) = T(here + share * (around - 4 * here));
    });
  });
}

}  // namespace nativeops
