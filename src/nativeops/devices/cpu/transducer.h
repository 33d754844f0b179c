// SPDX-License-Identifier: Apache-2.0
// The rows of a transducer's lattice on the CPU, a vector of classes at a time; threads share the
// frames.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/softmax.h"
#include "nativeops/devices/transducer_paths.h"

namespace nativeops::tuned {

constexpr int64_t kRun = 64;  // cells, or classes of half a page, that are worked on together

// f(b, t, first, count) for runs of the cells of every frame of every sequence.
template <class F>
void for_each_run(Device& dev, const int64_t batch, const int64_t frames, int64_t width, F f) {
  for_parts_of_items(dev, batch * frames, [&](int64_t low, int64_t high) {
    for (int64_t i = low; i < high; ++i) {
      for (int64_t first = 0; first < width; first += kRun) {
        f(i / frames, i % frames, first, min2(kRun, width - first));
      }
    }
  });
}

template <class A>
[[gnu::flatten]] void logs(A* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = log(values[i]);
}

template <class T, class I>
void statistics(Device& dev, const transducer::Joint<T, I>& joint, const Out<Accum<T>, 4>& cells,
                bool normalises) {
  using A = Accum<T>;
  const auto& logits = joint.logits;
  const int64_t classes = logits.size(3);
  if (logits.stride(3) != 1 || classes == 0 || !normalises) {
    return transducer::statistics(dev, joint, cells, normalises);
  }
  auto run = [&](int64_t b, int64_t t, int64_t first, int64_t count) {
    const int64_t labels = joint.labels(b), end = first + count;
    count = t < joint.frames(b) ? max2(int64_t{0}, min2(count, labels + 1 - first)) : 0;
    for (int plane = 0; plane < transducer::kPlanes; ++plane) {
      for (int64_t u = first + count; u < end; ++u) cells(b, plane, t, u) = A(0);
    }
    A largest[kRun], log_sum[kRun];
    for (int64_t i = 0; i < count; ++i) {
      const auto row = simd::softmax_sums(&logits(b, t, first + i, 0), classes);
      largest[i] = row.largest;
      log_sum[i] = row.sum;
    }
    logs(log_sum, count);
    for (int64_t i = 0; i < count; ++i) {
      transducer::put_cell(joint, cells, b, t, first + i, LogSum<A>{largest[i], log_sum[i]});
    }
  };
  for_each_run(dev, joint.batch(), logits.size(1), logits.size(2), run);
}

// What makes a row of the gradient: d_cost·min(most, scale·e^(logits - shift)), but for blank and
// label.
template <class A>
struct Row {
  A scale, shift, most, d_cost, at_blank, at_label;
  int64_t blank, label;  // -1 where there is none
};

// A part of the row to where it belongs, past the caches if it streams.
template <class T>
void put_part(const Accum<T>* part, int64_t count, const Out<T, 1>& to, bool streams) {
  if constexpr (std::is_same_v<Accum<T>, T>) {
    constexpr int n = simd::kLanes<T>;
    if (to.stride(0) == 1) {
      const bool aligned = reinterpret_cast<uintptr_t>(to.data) % simd::kVectorBytes == 0;
      int64_t k = 0;
      for (; streams && aligned && k + n <= count; k += n) {
        simd::stream(to.data + k, simd::load(part + k));
      }
      for (; k < count; k += n) simd::store(to.data + k, simd::load(part + k), count - k);
      return;
    }
  }
  for (int64_t k = 0; k < count; ++k) to(k) = T(part[k]);
}

// A part of the row at a time, so that all of it is complete when it goes past the caches.
template <class T>
void write_row(const In<T, 1>& logits, const Out<T, 1>& d_logits, const Row<Accum<T>>& row,
               bool streams) {
  using A = Accum<T>;
  constexpr int n = simd::kLanes<A>, kPart = 8 * kRun;
  alignas(64) A part[kPart];
  alignas(64) T near[kPart];
  const bool apart = logits.stride(0) != 1;
  const auto scale = simd::broadcast(row.scale), shift = simd::broadcast(row.shift);
  const auto most = simd::broadcast(row.most), d_cost = simd::broadcast(row.d_cost);
  for (int64_t first = 0; first < logits.size(0); first += kPart) {
    const int64_t count = min2<int64_t>(kPart, logits.size(0) - first);
    for (int64_t k = 0; apart && k < count; ++k) near[k] = logits(first + k);
    const T* from = apart ? near : logits.data + first;
    for (int64_t k = 0; k < count; k += n) {
      const auto shown = scale * simd::exp_negative(simd::load(from + k, count - k) - shift);
      const simd::Vec<A> kept{shown.raw > most.raw ? most.raw : shown.raw};
      simd::store(part + k, d_cost * kept);
    }
    if (row.blank >= first && row.blank < first + count) part[row.blank - first] = row.at_blank;
    if (row.label >= first && row.label < first + count) part[row.label - first] = row.at_label;
    const int64_t step = d_logits.stride(0);
    put_part<T>(part, count, {d_logits.data + first * step, {count}, {step}}, streams);
  }
}

// passing·e^-log_sum
template <class A>
[[gnu::flatten]] void scales(A* to, const A* passing, const A* log_sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = passing[i] * exp(-log_sum[i]);
}

// What stands at the symbol of a step: d_cost·(scale·e^relative - leaving), bounded before
template <class T, class A>
[[gnu::flatten]] void symbol_values(A* to, const A* relative, const A* scale, const A* leaving,
                                    const transducer::Flow<T>& flow, A d_cost, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = d_cost * flow.bounded(scale[i] * exp(relative[i]) - leaving[i]);
  }
}

// The cells of a run in rows of their own.
template <class A>
struct RunOfCells {
  alignas(64) A by_blank[kRun], by_label[kRun], passing[kRun], log_sum[kRun], scale[kRun];
  alignas(64) A blank[kRun], label[kRun], at_blank[kRun], at_label[kRun];  // less the shift

  template <class T, class I>
  RunOfCells(const transducer::Joint<T, I>& joint, const In<A, 4>& cells, const Out<A, 4>& leaving,
             const transducer::Flow<T>& flow, int64_t b, int64_t t, int64_t first, int64_t count) {
    const auto steps = transducer::steps_of(joint, b);
    for (int64_t i = 0; i < count; ++i) {
      const bool passes = steps.passes(t, first + i);
      by_blank[i] = passes ? leaving(b, 0, t, first + i) : A(0);
      by_label[i] = passes ? leaving(b, 1, t, first + i) : A(0);
      passing[i] = by_blank[i] + by_label[i];
      const auto of = [&](transducer::Plane plane) {
        return passes ? cells(b, int{plane}, t, first + i) : A(0);
      };
      log_sum[i] = of(transducer::kLogSum);
      blank[i] = of(transducer::kBlank) - of(transducer::kShift);
      label[i] = of(transducer::kLabel) - of(transducer::kShift);
    }
    const A d_cost = A(flow.d_costs(b));
    scales(scale, passing, log_sum, count);
    symbol_values(at_blank, blank, scale, by_blank, flow, d_cost, count);
    symbol_values(at_label, label, scale, by_label, flow, d_cost, count);
  }
};

template <class T, class I>
void gradient(Device& dev, const transducer::Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving, const transducer::Flow<T>& flow) {
  using A = Accum<T>;
  const auto& logits = joint.logits;
  const auto& d_logits = flow.d_logits;
  const int64_t classes = logits.size(3);
  if (classes == 0 || !flow.normalises) {
    return transducer::gradient(dev, joint, cells, leaving, flow);
  }
  constexpr int64_t kCaches = int64_t{16} << 20;  // bytes; beyond, what is written goes past them
  const bool streams = d_logits.count() * static_cast<int64_t>(sizeof(T)) > kCaches;
  auto run = [&](int64_t b, int64_t t, int64_t first, int64_t count) {
    const RunOfCells<A> of(joint, cells, leaving, flow, b, t, first, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t u = first + i;
      const Out<T, 1> to = at(at(at(d_logits, b), t), u);
      if (of.passing[i] == 0) {
        for (int64_t k = 0; k < classes; ++k) to(k) = T(A(0));
        continue;
      }
      const Row<A> row{of.scale[i],
                       cells(b, int{transducer::kShift}, t, u),
                       flow.clamp > 0 ? A(flow.clamp) : highest<A>(),
                       A(flow.d_costs(b)),
                       of.at_blank[i],
                       of.at_label[i],
                       joint.blank(),
                       u < joint.labels(b) ? joint.label(b, u) : -1};
      write_row<T>(at(at(at(logits, b), t), u), to, row, streams);
    }
    if (streams) simd::settle();
  };
  for_each_run(dev, joint.batch(), logits.size(1), logits.size(2), run);
}

}  // namespace nativeops::tuned
