// SPDX-License-Identifier: Apache-2.0
// Sequences cut into overlapping chunks, and put together again. Declared in chunk.py.
#pragma once
#include "nativeops/devices/checks.h"
#include "nativeops/devices/kernel.h"

namespace nativeops {

// How sequences are cut: chunk k of sequence b is column b·n + k, and begins with frame step·k.
struct Cut {
  int64_t time, size, step, n;

  Cut(int64_t time, int64_t size, int64_t step)
      : time(time),
        size(size),
        step(step),
        n(max2<int64_t>(time - size + step - 1, 0) / step + 1) {}

  // The columns of chunks, or of what is said of each of their frames, as those of each sequence:
  // [size, b, n, d] and [size, b, n].
  template <class T>
  View<T, 4> by_sequence(View<T, 3> chunks) const {
    const int64_t batch = chunks.size(1) / n, next = chunks.stride(1);
    return {chunks.data,
            {chunks.size(0), batch, n, chunks.size(2)},
            {chunks.stride(0), n * next, next, chunks.stride(2)}};
  }
  template <class T>
  View<T, 3> by_sequence(View<T, 2> held) const {
    const int64_t next = held.stride(1);
    return {held.data, {held.size(0), held.size(1) / n, n}, {held.stride(0), n * next, next}};
  }

  // The chunks that hold frame t: first(t) <= k < end(t).
  HOST_DEVICE int64_t first(int64_t t) const {
    return t < size ? 0 : divide(t - size, step).whole + 1;
  }
  HOST_DEVICE int64_t end(int64_t t) const { return min2(n, divide(t, step).whole + 1); }
};

// Which frames take part: as `chunk` is told.
struct FrameMask {
  In<bool, 2> mask;
  In<int32_t, 1> lengths;

  HOST_DEVICE bool operator()(int64_t t, int64_t b) const {
    return (!mask || mask(t, b)) && (!lengths || t < lengths(b));
  }
};
inline void check_lengths(In<int32_t, 1> lengths, int64_t time) {
  check_range("lengths", lengths, 0, time, "the frames of `x`");
}

// held[u, b·n + k] = whether there is a frame step·k + u that takes part
//
// chunks[u, b·n + k] = x[step·k + u, b] where held, else 0
template <class T>
void chunk(Device& dev, In<T, 3> x, In<bool, 2> mask, In<int32_t, 1> lengths, Out<T, 3> chunks,
           Out<bool, 2> held, int64_t chunk_size, int64_t chunk_step) {
  check_lengths(lengths, x.size(0));
  const Cut cut(x.size(0), chunk_size, chunk_step);
  const FrameMask valid{mask, lengths};
  const View<bool, 3> here = cut.by_sequence(held);
  fill(dev, here, [=] KERNEL(int64_t u, int64_t b, int64_t k) {
    const int64_t t = cut.step * k + u;
    return t < cut.time && valid(t, b);
  });
  fill(dev, cut.by_sequence(chunks), [=] KERNEL(int64_t u, int64_t b, int64_t k, int64_t j) {
    return here(u, b, k) ? x(cut.step * k + u, b, j) : T(0.0f);
  });
}

// d_x[t, b] = Σ_k d_chunks[t - step·k, b·n + k] where the frame takes part, else 0
template <class T>
void chunk_grad(Device& dev, In<T, 3> x, In<T, 3> d_chunks, In<bool, 2> mask,
                In<int32_t, 1> lengths, Out<T, 3> d_x, int64_t chunk_size, int64_t chunk_step) {
  using A = Accum<T>;
  check_lengths(lengths, x.size(0));
  const Cut cut(x.size(0), chunk_size, chunk_step);
  const FrameMask valid{mask, lengths};
  for_each(dev, d_x, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
    A sum = 0;
    const int64_t end = valid(t, b) ? cut.end(t) : 0;
    for (int64_t k = cut.first(t); k < end; ++k) {
      sum += A(d_chunks(t - cut.step * k, b * cut.n + k, j));
    }
    d_x(t, b, j) = T(sum);
  });
}

// How many chunks hold frame t of sequence b, and are not masked out there.
template <class N>
void count_chunks(Device& dev, Cut cut, In<bool, 2> chunk_mask, View<N, 2> count) {
  fill(dev, count, [=] KERNEL(int64_t t, int64_t b) {
    N c = 0;
    for (int64_t k = cut.first(t), end = cut.end(t); k < end; ++k) {
      c += !chunk_mask || chunk_mask(t - cut.step * k, b * cut.n + k);
    }
    return c;
  });
}

// x[t, b] = 1/c · Σ_k chunks[t - step·k, b·n + k] over the c chunks that hold the frame
template <class T>
void unchunk(Device& dev, In<T, 3> chunks, In<bool, 2> chunk_mask, Out<T, 3> x, Out<bool, 2> mask,
             Out<T, 2> factors, int64_t n_time, int64_t, int64_t chunk_step) {
  using A = Accum<T>;
  const Cut cut(n_time, chunks.size(0), chunk_step);
  auto memory = dev.workspace<int64_t>(mask.count());
  const View<int64_t, 2> count = dense(memory.data(), mask.size(0), mask.size(1));
  count_chunks(dev, cut, chunk_mask, count);
  for_each(dev, mask, [=] KERNEL(int64_t t, int64_t b) {
    mask(t, b) = count(t, b) > 0;
    factors(t, b) = T(A(1) / A(max2<int64_t>(count(t, b), 1)));
  });
  for_each(dev, x, [=] KERNEL(int64_t t, int64_t b, int64_t j) {
    A sum = 0;
    for (int64_t k = cut.first(t), end = cut.end(t); k < end; ++k) {
      const int64_t u = t - cut.step * k, c = b * cut.n + k;
      if (!chunk_mask || chunk_mask(u, c)) sum += A(chunks(u, c, j));
    }
    x(t, b, j) = T(sum / A(max2<int64_t>(count(t, b), 1)));
  });
}

// d_chunks[u, b·n + k] = d_x[step·k + u, b] / c where that frame exists and is not masked out
template <class T>
void unchunk_grad(Device& dev, In<T, 3> chunks, In<T, 3> d_x, In<bool, 2> chunk_mask,
                  Out<T, 3> d_chunks, int64_t n_time, int64_t n_batch, int64_t chunk_step) {
  using A = Accum<T>;
  const Cut cut(n_time, chunks.size(0), chunk_step);
  auto memory = dev.workspace<int64_t>(n_time * n_batch);
  const View<int64_t, 2> count = dense(memory.data(), n_time, n_batch);
  count_chunks(dev, cut, chunk_mask, count);
  fill(dev, cut.by_sequence(d_chunks), [=] KERNEL(int64_t u, int64_t b, int64_t k, int64_t j) {
    const int64_t t = cut.step * k + u;
    const bool held = t < cut.time && (!chunk_mask || chunk_mask(u, b * cut.n + k));
    return held ? A(d_x(t, b, j)) / A(count(t, b)) : A(0);
  });
}

}  // namespace nativeops
