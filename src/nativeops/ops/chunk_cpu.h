// SPDX-License-Identifier: Apache-2.0
// Chunks, tuned for the CPU: rows are copied whole, each from memory once, and long results are
// written past the caches. Declared in chunk.py.
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "nativeops/devices/cpu/rows.h"
#include "nativeops/devices/cpu/stream.h"
#include "nativeops/ops/chunk.h"
#include "nativeops/ops/chunk_fold_cpu.h"

namespace nativeops::tuned {

// Rows without gaps, and columns one after another: what is copied row by row.
template <class T>
bool in_rows(const View<T, 3>& frames) {
  return frames.stride(2) == 1 || frames.size(2) <= 1;
}
template <class T>
bool in_columns(const View<T, 3>& chunks) {
  return in_rows(chunks) && chunks.stride(1) == chunks.size(2);
}
template <class T>
bool is_long(const View<T, 3>& array) {
  return array.count() * static_cast<int64_t>(sizeof(T)) > kPastCaches;
}

// chunks[u, b·n + k] = what `row` puts for it. The rows u, u + step, .. of the result hold the same
// frames, so that they are written side by side: each is one stream, and a frame is read once.
template <class T, class Row, class Expect>
void fill_chunks(Device& dev, const Cut& cut, int64_t batch, Out<T, 3> chunks, Row row,
                 Expect expect) {
  constexpr int64_t kStreams = 8, kTasks = 64;
  const int64_t starts = std::min(cut.step, cut.size);
  const int64_t some = std::max<int64_t>(1, batch * starts / kTasks);  // sequences of a task
  const int64_t parts = ceil_div(batch, some);
  const bool past = is_long(chunks);
  dev.parallel(starts * parts, [&](int64_t task) {
    const int64_t u0 = task / parts, b0 = task % parts * some, b1 = std::min(batch, b0 + some);
    const int64_t rows = ceil_div(cut.size - u0, cut.step);
    for (int64_t j0 = 0; j0 < rows; j0 += kStreams) {
      const int64_t j1 = std::min(rows, j0 + kStreams);
      std::optional<Stream<T>> to[kStreams];
      for (int64_t j = j0; j < j1; ++j) {
        to[j - j0].emplace(&chunks(u0 + j * cut.step, b0 * cut.n, 0), past);
      }
      for (int64_t b = b0; b < b1; ++b) {
        for (int64_t i = j0; i < cut.n + j1 - 1; ++i) {
          const int64_t t = i * cut.step + u0, ahead = t + 2 * cut.step;
          if (ahead < cut.time) expect(ahead, b);
          for (int64_t j = std::max(j0, i - cut.n + 1); j < std::min(j1, i + 1); ++j)
            row(*to[j - j0], u0 + j * cut.step, b * cut.n + i - j, t, b);
        }
      }
    }
    if (past) _mm_sfence();
  });
}

// held[u, b·n + k] = whether there is a frame step·k + u that takes part
//
// chunks[u, b·n + k] = x[step·k + u, b] where held, else 0
template <class T>
void chunk(Device& dev, In<T, 3> x, In<bool, 2> mask, In<int32_t, 1> lengths, Out<T, 3> chunks,
           Out<bool, 2> held, int64_t chunk_size, int64_t chunk_step) {
  if (!chunks || !in_rows(x) || !in_columns(chunks)) {
    return nativeops::chunk<T>(dev, x, mask, lengths, chunks, held, chunk_size, chunk_step);
  }
  check_lengths(lengths, x.size(0));
  const Cut cut(x.size(0), chunk_size, chunk_step);
  const FrameMask valid{mask, lengths};
  if (is_narrow(x) && held.stride(1) == 1) return chunk_narrow(dev, cut, x, valid, chunks, held);
  const int64_t width = x.size(2);
  fill_chunks(
      dev, cut, x.size(1), chunks,
      [&](Stream<T>& to, int64_t u, int64_t column, int64_t t, int64_t b) {
        const bool here = t < cut.time && valid(t, b);
        held(u, column) = here;
        if (!here) return to.zeros(width);
        const T* from = &x(t, b, 0);
        to.put(width, [=](T* place, int64_t i, int64_t n) { copy_row(place, from + i, n); });
      },
      [=](int64_t t, int64_t b) { expect_row<0>(&x(t, b, 0), width); });
}

// d_chunks[u, b·n + k] = d_x[step·k + u, b] / c where that frame exists and is not masked out
template <class T>
void unchunk_grad(Device& dev, In<T, 3> chunks, In<T, 3> d_x, In<bool, 2> chunk_mask,
                  Out<T, 3> d_chunks, int64_t n_time, int64_t n_batch, int64_t chunk_step) {
  using A = Accum<T>;
  if (!in_rows(d_x) || !in_columns(d_chunks)) {
    return nativeops::unchunk_grad<T>(dev, chunks, d_x, chunk_mask, d_chunks, n_time, n_batch,
                                      chunk_step);
  }
  const Cut cut(n_time, chunks.size(0), chunk_step);
  if (is_narrow(d_x)) return unchunk_grad_narrow<T>(dev, cut, d_x, chunk_mask, d_chunks);
  auto memory = dev.workspace<int64_t>(n_time * n_batch);
  const View<int64_t, 2> count = dense(memory.data(), n_time, n_batch);
  count_chunks(dev, cut, chunk_mask, count);
  const int64_t width = d_x.size(2);
  fill_chunks(
      dev, cut, d_x.size(1), d_chunks,
      [&](Stream<T>& to, int64_t u, int64_t column, int64_t t, int64_t b) {
        if (t >= cut.time || (chunk_mask && !chunk_mask(u, column))) return to.zeros(width);
        const T* from = &d_x(t, b, 0);
        const A c = A(count(t, b));
        to.put(width, [=](T* __restrict place, int64_t i, int64_t n) {
          for (int64_t j = 0; j < n; ++j) place[j] = T(A(from[i + j]) / c);
        });
      },
      [=](int64_t t, int64_t b) { expect_row<0>(&d_x(t, b, 0), width); });
}

// x[t, b] = mean or sum of the rows of all chunks that hold the frame and for which takes(u,
// column). The frames t = step·i + u of one u are done together: their rows lie one after another
// in the rows u, u + step, .. of the chunks.
template <bool kMean, class T, class Takes, class Counted>
void fold_chunks(Device& dev, const Cut& cut, In<T, 3> chunks, Out<T, 3> x, Takes takes,
                 Counted counted) {
  constexpr int64_t kTasks = 64;
  const int64_t batch = x.size(1), width = x.size(2), starts = std::min(cut.step, cut.time);
  const int64_t some = std::max<int64_t>(1, batch * starts / kTasks);  // sequences of a task
  const int64_t parts = ceil_div(batch, some);
  const int64_t ahead = 2 * cut.step;
  const bool near = !is_long(chunks);
  const int64_t in_line = kLine / static_cast<int64_t>(sizeof(T));
  const bool past = is_long(x) && fills_lines(&x(0, 0, 0), width) && x.stride(0) % in_line == 0;
  dev.parallel(starts * parts, [&](int64_t task) {
    const int64_t u0 = task / parts, b0 = task % parts * some, b1 = std::min(batch, b0 + some);
    const int64_t streams = ceil_div(cut.size - u0, cut.step);
    std::vector<const T*> rows(static_cast<size_t>(std::max<int64_t>(streams, 0)));
    for (int64_t b = b0; b < b1; ++b) {
      for (int64_t i = 0, t = u0; t < cut.time; ++i, t += cut.step) {
        int64_t c = 0;
        for (int64_t k = std::max<int64_t>(0, i - streams + 1); k < std::min(cut.n, i + 1); ++k) {
          const int64_t u = t - cut.step * k, column = b * cut.n + k;
          if (takes(t, b, u, column)) rows[c++] = &chunks(u, column, 0);
        }
        counted(t, b, c);
        if (near && t + ahead < cut.time) expect_row<1>(&x(t + ahead, b, 0), width);
        write_row(&x(t, b, 0), width, past, [&](T* place, int64_t first, int64_t n) {
          fold_rows<kMean>(rows.data(), c, first, n, place);
        });
      }
    }
    if (past) _mm_sfence();
  });
}

// d_x[t, b] = Σ_k d_chunks[t - step·k, b·n + k] where the frame takes part, else 0
template <class T>
void chunk_grad(Device& dev, In<T, 3> x, In<T, 3> d_chunks, In<bool, 2> mask,
                In<int32_t, 1> lengths, Out<T, 3> d_x, int64_t chunk_size, int64_t chunk_step) {
  if (!in_rows(d_chunks) || !in_columns(d_x)) {
    return nativeops::chunk_grad<T>(dev, x, d_chunks, mask, lengths, d_x, chunk_size, chunk_step);
  }
  check_lengths(lengths, x.size(0));
  const Cut cut(x.size(0), chunk_size, chunk_step);
  const FrameMask valid{mask, lengths};
  if (is_narrow(d_x, narrow_sum<T>(cut, false)) && in_columns(d_chunks)) {
    const Folded<T> out{d_x, {}, {}};
    if (mask || lengths) return fold_narrow<false, T>(dev, cut, d_chunks, {}, out, valid);
    return fold_narrow<false, T>(dev, cut, d_chunks, {}, out, EveryFrame());
  }
  fold_chunks<false>(
      dev, cut, d_chunks, d_x, [=](int64_t t, int64_t b, int64_t, int64_t) { return valid(t, b); },
      [](int64_t, int64_t, int64_t) {});
}

// x[t, b] = 1/c · Σ_k chunks[t - step·k, b·n + k] over the c chunks that hold the frame
template <class T>
void unchunk(Device& dev, In<T, 3> chunks, In<bool, 2> chunk_mask, Out<T, 3> x, Out<bool, 2> mask,
             Out<T, 2> factors, int64_t n_time, int64_t n_batch, int64_t chunk_step) {
  using A = Accum<T>;
  if (!x || !in_rows(chunks) || !in_columns(x)) {
    return nativeops::unchunk<T>(dev, chunks, chunk_mask, x, mask, factors, n_time, n_batch,
                                 chunk_step);
  }
  const Cut cut(n_time, chunks.size(0), chunk_step);
  if (is_narrow(x, narrow_sum<T>(cut, bool(chunk_mask))) && in_columns(chunks)) {
    return fold_narrow<true, T>(dev, cut, chunks, chunk_mask, {x, mask, factors}, EveryFrame());
  }
  fold_chunks<true>(
      dev, cut, chunks, x,
      [=](int64_t, int64_t, int64_t u, int64_t column) {
        return !chunk_mask || chunk_mask(u, column);
      },
      [=](int64_t t, int64_t b, int64_t c) {
        mask(t, b) = c > 0;
        factors(t, b) = T(A(1) / A(std::max<int64_t>(c, 1)));
      });
}

}  // namespace nativeops::tuned
