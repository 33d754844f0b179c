// SPDX-License-Identifier: Apache-2.0
// Chunks of narrow frames, tuned for the CPU: what a frame costs beside its few numbers would be
// most of the time, so many frames are moved by one loop. Included by chunk_cpu.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/move_items.h"
#include "nativeops/devices/cpu/short_rows.h"
#include "nativeops/ops/chunk.h"

namespace nativeops::tuned {

template <class T>
bool is_narrow(const View<T, 3>& frames, int64_t most = kNarrow) {
  const int64_t bytes = frames.size(2) * static_cast<int64_t>(sizeof(T));
  return bytes > 0 && bytes <= most;
}

// Whether the rows (i, j) of an array, over both of its first axes, lie at equal distances.
template <class T, int N>
bool merges(const View<T, N>& array) {
  return array.size(1) == 1 || array.stride(0) == array.size(1) * array.stride(1);
}
template <class T, int N>
int64_t row_stride(const View<T, N>& array) {
  return array.size(1) == 1 ? array.stride(0) : array.stride(1);
}

// f(u, b, count) for the rows low .. end - 1, of which row u·batch + b is frame u of the chunks of
// sequence b: as many together as the arrays allow, but not beyond the row split·batch.
template <class F>
void for_runs(int64_t low, int64_t end, int64_t batch, bool merged, int64_t split, F f) {
  while (low < end) {
    const int64_t u = low / batch;
    const int64_t stop = (merged ? (u < split ? split : end) : u + 1) * batch;
    const int64_t next = std::min(stop, end);
    f(u, low % batch, next - low);
    low = next;
  }
}

// Bytes of rows that are small enough to be gone over twice.
constexpr int64_t kPartBytes = 128 << 10;

// f(low, end) for all rows in such parts, spread over the pool; a part has, if all threads get one,
// rows that lie side by side elsewhere.
template <class F>
void for_rows(Device& dev, int64_t rows, int64_t bytes, F f) {
  const int64_t each = std::max<int64_t>(1, bytes / std::max<int64_t>(1, rows));
  const int64_t together = std::clamp<int64_t>(rows / dev.num_threads(), 1, 8);
  const int64_t some = std::max(together, kPartBytes / each / together * together);
  dev.parallel(ceil_div(rows, some),
               [&](int64_t task) { f(task * some, std::min(rows, (task + 1) * some)); });
}

// parts[u, b, k] = x[step·k + u, b] where there is such a frame, else 0. Only the last chunk of a
// sequence may end beyond its frames.
template <class T>
void cut_rows(const Cut& cut, In<T, 3> x, View<T, 4> parts, int64_t low, int64_t end) {
  const int64_t width = parts.size(3), n = cut.n, to_row = row_stride(parts);
  const int64_t whole = std::clamp<int64_t>(cut.time - (n - 1) * cut.step, 0, cut.size);
  for_runs(low, end, parts.size(1), merges(x) && merges(parts), whole,
           [&](int64_t u, int64_t b, int64_t count) {
             const int64_t held = u < whole ? n : n - 1;
             T* to = &parts(u, b, 0, 0);
             if (held > 0) {
               move_items<T>(count, held, width,
                             {x.address(u, b, 0), row_stride(x), cut.step * x.stride(0)},
                             {to, to_row, width});
             }
             if (held == n) return;
             if (held == 0 && to_row == width) return void(std::fill_n(to, count * width, T(0.0f)));
             for (int64_t r = 0; r < count; ++r) {
               std::fill_n(to + r * to_row + held * width, width, T(0.0f));
             }
           });
}

// held[u, b, k] = whether there is a frame step·k + u.
inline void mark_rows(const Cut& cut, View<bool, 3> held, int64_t low, int64_t end) {
  const int64_t n = cut.n, to_row = row_stride(held);
  const int64_t whole = std::clamp<int64_t>(cut.time - (n - 1) * cut.step, 0, cut.size);
  for_runs(low, end, held.size(1), merges(held), whole, [&](int64_t u, int64_t b, int64_t count) {
    bool* to = &held(u, b, 0);
    if (to_row == n) {
      std::fill_n(to, count * n, u < whole || n > 1);
    } else {
      for (int64_t r = 0; r < count; ++r) std::fill_n(to + r * to_row, n, true);
    }
    for (int64_t r = 0; u >= whole && r < count; ++r) to[r * to_row + n - 1] = false;
  });
}

// held[u, b, k] = whether there is such a frame and it takes part.
inline void mark_valid_rows(const Cut& cut, const FrameMask& valid, View<bool, 3> held, int64_t low,
                            int64_t end) {
  const In<bool, 2> mask = valid.mask;
  const int64_t batch = held.size(1), n = cut.n;
  if (mask) {
    cut_rows<bool>(
        cut, {mask.data, {cut.time, batch, 1}, {mask.stride(0), mask.stride(1), 1}},
        {held.data, {cut.size, batch, n, 1}, {held.stride(0), held.stride(1), held.stride(2), 1}},
        low, end);
  } else {
    mark_rows(cut, held, low, end);
  }
  if (!valid.lengths) return;
  for (int64_t row = low, u = low / batch, b = low % batch; row < end; ++row) {
    const int64_t at = u, sequence = b, over = valid.lengths(b) - u;
    if (++b == batch) b = 0, ++u;
    if (over > (n - 1) * cut.step) continue;
    const int64_t here = over > 0 ? ceil_div(over, cut.step) : 0;
    std::fill_n(&held(at, sequence, here), n - here, false);
  }
}

// Makes 0 of the frames that are not kept; rows that lie end to end are one.
template <class T>
void keep_rows(View<const bool, 3> keep, View<T, 4> parts, int64_t low, int64_t end) {
  const int64_t batch = parts.size(1), n = parts.size(2), d = parts.size(3);
  const int64_t row = row_stride(keep), to_row = row_stride(parts), step = keep.stride(2);
  const bool flat = row == n * step && to_row == n * d;
  for_runs(low, end, batch, merges(keep) && merges(parts), parts.size(0),
           [&](int64_t u, int64_t b, int64_t count) {
             for (int64_t r = 0; r < (flat ? 1 : count); ++r) {
               keep_items(keep.address(u, b, 0) + r * row, step, &parts(u, b, 0, 0) + r * to_row,
                          flat ? count * n : n, d);
             }
           });
}

// chunks[u, b·n + k] = x[step·k + u, b] where held, else 0
template <class T>
[[gnu::noinline]] void chunk_narrow(Device& dev, const Cut& cut, In<T, 3> x, const FrameMask& valid,
                                    Out<T, 3> chunks, Out<bool, 2> held) {
  const View<T, 4> parts = cut.by_sequence(chunks);
  const View<bool, 3> here = cut.by_sequence(held);
  for_rows(dev, cut.size * x.size(1), chunks.count() * sizeof(T), [&](int64_t low, int64_t end) {
    mark_valid_rows(cut, valid, here, low, end);
    cut_rows<T>(cut, x, parts, low, end);
    if (valid.mask || valid.lengths) keep_rows<T>(here, parts, low, end);
  });
}

// shares[t, b] = d_x[t, b] / c of the c chunks that hold the frame
template <class T>
void share_frames(Device& dev, const Cut& cut, In<T, 3> d_x, In<bool, 2> chunk_mask,
                  View<T, 3> shares) {
  using A = Accum<T>;
  const int64_t batch = d_x.size(1);
  const auto memory = dev.workspace<int64_t>(chunk_mask ? cut.time * batch : 0);
  const View<int64_t, 2> count = dense(memory.data(), cut.time, batch);
  if (chunk_mask) count_chunks(dev, cut, chunk_mask, count);
  with_constant(d_x.size(2), [&](auto width) __attribute__((always_inline)) {
    for_rows(dev, cut.time, d_x.count() * sizeof(T), [&, width](int64_t low, int64_t end) {
      for (int64_t t = low; t < end; ++t) {
        const A all = A(std::max<int64_t>(cut.end(t) - cut.first(t), 0));
        for (int64_t b = 0; b < batch; ++b) {
          const A c = chunk_mask ? A(count(t, b)) : all;
          for (int64_t j = 0; j < width; ++j) shares(t, b, j) = T(A(d_x(t, b, j)) / c);
        }
      }
    });
  });
}

// d_chunks[u, b·n + k] = d_x[step·k + u, b] / c where that frame exists and is not masked out
template <class T>
[[gnu::noinline]] void unchunk_grad_narrow(Device& dev, const Cut& cut, In<T, 3> d_x,
                                           In<bool, 2> chunk_mask, Out<T, 3> d_chunks) {
  const auto memory = dev.workspace<T>(d_x.count());
  const View<T, 3> shares = dense(memory.data(), cut.time, d_x.size(1), d_x.size(2));
  share_frames(dev, cut, d_x, chunk_mask, shares);
  const View<T, 4> parts = cut.by_sequence(d_chunks);
  for_rows(dev, cut.size * d_x.size(1), d_chunks.count() * sizeof(T),
           [&](int64_t low, int64_t end) {
             cut_rows<T>(cut, shares, parts, low, end);
             if (chunk_mask) keep_rows<T>(cut.by_sequence(chunk_mask), parts, low, end);
           });
}

}  // namespace nativeops::tuned
