// SPDX-License-Identifier: Apache-2.0
// The sums over a transducer's paths on the CPU: the nodes of a step, which lie apart in the
// lattice, are collected into rows and computed in vectors. One thread for each sequence.
#pragma once
#include <cstdint>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/transducer.h"

namespace nativeops::tuned {

// Rows of doubles with an element before the first node and one behind the last.
struct PathRows {
  int64_t width;  // of a row
  double* memory;

  static constexpr int kRows = 8;
  static int64_t width_for(int64_t labels) { return round_up(labels + 3, 8); }
  double* row(int i) const { return memory + i * width + 1; }
  double* sums(int64_t s) const { return row(static_cast<int>(s % 2)); }
  double* blank() const { return row(2); }
  double* label() const { return row(3); }
  double* before() const { return row(4); }
  template <class A>
  A* leaving(int i) const {
    return reinterpret_cast<A*>(row(5 + i));
  }
  void clear() const {
    for (int64_t i = 0; i < 5 * width; ++i) memory[i] = Extreme<double>::lowest;
  }
};

// to[u] = log(e^(before[u] + blank[u]) + e^(before[u - 1] + label[u - 1]))
[[gnu::flatten]] inline void sum_forward(double* __restrict to, const double* __restrict before,
                                         const double* __restrict blank,
                                         const double* __restrict label, int64_t low,
                                         int64_t high) {
  for (int64_t u = low; u <= high; ++u) {
    to[u] = logaddexp(before[u] + blank[u], before[u - 1] + label[u - 1]);
  }
}

// to[u] = log(e^stay + e^move), and the probabilities to leave by either
template <class A>
[[gnu::flatten]] void sum_backward(double* __restrict to, const double* __restrict after,
                                   const PathRows& rows, A* __restrict by_blank,
                                   A* __restrict by_label, int64_t low, int64_t high) {
  const double* __restrict blank = rows.blank();
  const double* __restrict label = rows.label();
  const double* __restrict before = rows.before();
  for (int64_t u = low; u <= high; ++u) {
    const double stay = blank[u] + after[u], move = label[u] + after[u + 1];
    by_blank[u] = exp(static_cast<A>(before[u] + stay));
    by_label[u] = exp(static_cast<A>(before[u] + move));
    to[u] = logaddexp(stay, move);
  }
}

template <class A>
class Paths {
 public:
  Paths(const transducer::Steps& steps, const In<A, 4>& cells, int64_t b, const PathRows& rows)
      : steps_(steps), cells_(cells), b_(b), rows_(rows) {}

  // α[T, U]; alphas, where wanted, gets α of all nodes with a frame.
  double forward(const View<double, 2>* alphas) const {
    rows_.clear();
    rows_.sums(0)[0] = 0;
    for (int64_t s = 1; s <= steps_.count(); ++s) {
      const int64_t before = s - 1, low = steps_.low(s);
      collect(before);
      if (alphas != nullptr) {
        for_nodes(before, [&](int64_t t, int64_t u) { (*alphas)(t, u) = rows_.sums(before)[u]; });
      }
      sum_forward(rows_.sums(s), rows_.sums(before), rows_.blank(), rows_.label(), low,
                  steps_.high(s));
      rows_.sums(s)[low - 1] = Extreme<double>::lowest;  // what stood there is two steps old
    }
    return rows_.sums(steps_.count())[steps_.labels];
  }

  void backward(const View<double, 2>& alphas, double total, const Out<A, 4>& leaving) const {
    const bool none = total == Extreme<double>::lowest;
    A *by_blank = rows_.leaving<A>(0), *by_label = rows_.leaving<A>(1);
    rows_.clear();
    rows_.sums(steps_.count())[steps_.labels] = 0;
    for (int64_t s = steps_.count() - 1; s >= 0; --s) {
      collect(s);
      for_nodes(s, [&](int64_t t, int64_t u) { rows_.before()[u] = alphas(t, u) - total; });
      sum_backward(rows_.sums(s), rows_.sums(s + 1), rows_, by_blank, by_label, steps_.low(s),
                   steps_.high(s));
      for_nodes(s, [&](int64_t t, int64_t u) {
        leaving(b_, 0, t, u) = none ? A(0) : by_blank[u];
        leaving(b_, 1, t, u) = none ? A(0) : by_label[u];
      });
    }
  }

 private:
  template <class F>
  void for_nodes(int64_t s, F f) const {
    for (int64_t u = steps_.low(s); u <= steps_.high(s); ++u) f(steps_.time(s, u), u);
  }
  // Both log-probabilities of the nodes of a step. Where sums read more, they are -infinity there.
  void collect(int64_t s) const {
    for_nodes(s, [&](int64_t t, int64_t u) {
      rows_.blank()[u] = transducer::log_prob(cells_, transducer::kBlank, b_, t, u);
      rows_.label()[u] = transducer::log_prob(cells_, transducer::kLabel, b_, t, u);
    });
  }

  const transducer::Steps steps_;
  const In<A, 4>& cells_;
  const int64_t b_;
  const PathRows rows_;
};

// f(b, the steps of that sequence, rows of scratch memory, `more` further numbers)
template <class T, class I, class F>
void for_each_path(Device& dev, const transducer::Joint<T, I>& joint, int64_t more, F f) {
  const int64_t width = PathRows::width_for(joint.targets.size(1));
  for_each_item<double>(dev, joint.batch(), PathRows::kRows * width + more,
                        [&](Team, int64_t b, Out<double, 1> scratch) {
                          const PathRows rows{width, scratch.data};
                          f(b, transducer::steps_of(joint, b), rows,
                            scratch.data + PathRows::kRows * width);
                        });
}

// costs = -α[T, U]
template <class T, class I>
void forward(Device& dev, const transducer::Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
             const Out<T, 1>& costs) {
  using A = Accum<T>;
  for_each_path(dev, joint, 0,
                [&](int64_t b, const transducer::Steps& steps, const PathRows& rows, double*) {
                  double total = Extreme<double>::lowest;
                  if (steps.has_path()) total = Paths<A>(steps, cells, b, rows).forward(nullptr);
                  costs(b) = T(static_cast<A>(0 - total));
                });
}

template <class T, class I>
void backward(Device& dev, const transducer::Joint<T, I>& joint, const In<Accum<T>, 4>& cells,
              const Out<Accum<T>, 4>& leaving) {
  using A = Accum<T>;
  for_each_path(
      dev, joint, joint.logits.size(1) * joint.logits.size(2),
      [&](int64_t b, const transducer::Steps& steps, const PathRows& rows, double* memory) {
        if (!steps.has_path() || steps.count() == 0) return;
        const Paths<A> paths(steps, cells, b, rows);
        const View<double, 2> alphas = dense(memory, steps.frames, steps.labels + 1);
        paths.backward(alphas, paths.forward(&alphas), leaving);
      });
}

}  // namespace nativeops::tuned
