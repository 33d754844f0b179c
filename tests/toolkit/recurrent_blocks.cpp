// SPDX-License-Identifier: Apache-2.0
// The recurrent layers of GPUs, whose blocks wait for one another, against the portable kernels: on
// the device whose blocks are real threads.
#include <cmath>
#include <string>
#include <vector>

#include "harness.h"
#include "nativeops/devices/blocks/recurrent_grad.h"
#include "nativeops/ops/gru.h"
#include "nativeops/ops/lstm.h"
#include "nativeops/ops/rnn.h"

namespace nativeops {

// Arrays that live as long as a case.
template <class T>
class Arrays {
 public:
  template <class... Size>
  View<T, sizeof...(Size)> draw(Size... sizes) {
    auto view = empty(sizes...);
    for (int64_t i = 0; i < view.count(); ++i) {
      view.data[i] = T(static_cast<float>(rand() % 2001 - 1000) * 5e-4f);
    }
    return view;
  }
  template <class... Size>
  View<T, sizeof...(Size)> empty(Size... sizes) {
    const int64_t count = (static_cast<int64_t>(sizes) * ... * 1);
    memory_.emplace_back(static_cast<size_t>(count), T(77.0f));
    return dense(memory_.back().data(), sizes...);
  }

 private:
  std::vector<std::vector<T>> memory_;
};

struct Sizes {
  int64_t steps, batch, inputs, units;
};

template <class T, int N>
void expect_near(const View<T, N>& found, const View<T, N>& wanted, double tolerance) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < found.count(); ++i) {
    const double a = Accum<T>(found.data[i]), b = Accum<T>(wanted.data[i]);
    worst = std::fmax(worst, a == a ? std::fabs(a - b) : 1e30);
    largest = std::fmax(largest, std::fabs(b));
  }
  EXPECT(worst <= tolerance * std::fmax(largest, 1e-3));
}

// All results of a layer and all its gradients, by one of both ways.
template <class Cell, class T>
struct Results {
  States<T> to;
  LayerGrads<T> grads;

  Results(Arrays<T>& arrays, Sizes n, bool keeps) {
    const int64_t t = n.steps, b = n.batch, i = n.inputs, h = n.units;
    to = {arrays.empty(t, b, h), arrays.empty(b, h), {}, {}, {}};
    if (Cell::kHasCell) to.c_n = arrays.empty(b, h);
    if (Cell::kHasCell) to.cells = arrays.empty(t, b, h);
    if (keeps && Cell::kKept > 0) to.gates = arrays.empty(t, b, Cell::kKept * h);
    const int64_t rows = Cell::kGates * h;
    grads = {arrays.empty(t, b, i),
             arrays.empty(rows, i),
             arrays.empty(rows, h),
             arrays.empty(rows),
             arrays.empty(rows),
             arrays.empty(b, h),
             {}};
    if (Cell::kHasCell) grads.c_0 = arrays.empty(b, h);
    if (Cell::kOwn > 0) grads.own = arrays.empty(Cell::kOwn * h);
  }
};

// What a layer has: lengths, the other direction, gates kept for the gradient, weights of single
// units, steps in any order some of which begin anew, products of halves of floats.
enum Has : unsigned {
  kLengths = 1,
  kReverse = 2,
  kKeeps = 4,
  kOwnWeights = 8,
  kOrder = 16,
  kHalves = 32
};

template <class Cell, class T>
void check(Sizes n, unsigned has) {
  const bool keeps = has & kKeeps, own = has & kOwnWeights, walks = has & kOrder;
  Arrays<T> arrays;
  Arrays<int32_t> integers;
  const int64_t t = n.steps, b = n.batch, i = n.inputs, h = n.units, rows = Cell::kGates * h;
  Layer<T> layer{arrays.draw(t, b, i),
                 arrays.draw(rows, i),
                 arrays.draw(rows, h),
                 arrays.draw(rows),
                 arrays.draw(rows),
                 arrays.draw(b, h),
                 {},
                 {},
                 (has & kReverse) != 0,
                 (has & kHalves) != 0};
  if (Cell::kHasCell) layer.c_0 = arrays.draw(b, h);
  if (own) layer.own = arrays.draw(Cell::kOwn * h);
  if (has & kLengths) {
    const auto lengths = integers.empty(b);
    for (int64_t k = 0; k < b; ++k) lengths(k) = static_cast<int32_t>(k % (t + 1));
    layer.lengths = lengths;
  }
  Results<Cell, T> wanted(arrays, n, keeps), found(arrays, n, keeps);
  // Any order of the frames; some steps begin with no state.
  if (walks) {
    const auto order = integers.empty(t, b);
    for (int64_t s = 0; s < t; ++s) {
      for (int64_t k = 0; k < b; ++k) {
        const int32_t time = static_cast<int32_t>((s + k) % t);
        const bool anew = !Cell::kReadsState && s < layer.length(k) && (s + k) % 3 == 2;
        order(s, k) = anew ? ~time : time;
      }
    }
    layer.order = order;
    layer.sums = arrays.draw(t, b, rows);
    wanted.grads.sums = arrays.empty(t, b, rows);
    found.grads.sums = arrays.empty(t, b, rows);
  }
  Device dev{&harness::kThreaded};
  recurrent_layer<Cell, T>(dev, layer, wanted.to);
  tuned::recurrent_layer<Cell, T>(dev, layer, found.to);
  const double tolerance = has & kHalves ? 1e-4 : sizeof(T) == 4 ? 1e-5 : 1e-2;
  expect_near(found.to.y, wanted.to.y, tolerance);
  expect_near(found.to.h_n, wanted.to.h_n, tolerance);
  if (keeps && Cell::kKept > 0) expect_near(found.to.gates, wanted.to.gates, tolerance);
  if (Cell::kHasCell) expect_near(found.to.c_n, wanted.to.c_n, tolerance);
  if (Cell::kHasCell) expect_near(found.to.cells, wanted.to.cells, tolerance);

  const Arrived<T> from{
      wanted.to.y,       wanted.to.gates,
      wanted.to.cells,   arrays.draw(t, b, h),
      arrays.draw(b, h), Cell::kHasCell ? In<T, 2>(arrays.draw(b, h)) : In<T, 2>{}};
  if (!own) wanted.grads.own = found.grads.own = {};
  recurrent_layer_grad<Cell, T>(dev, layer, from, wanted.grads);
  tuned::recurrent_layer_grad<Cell, T>(dev, layer, from, found.grads);
  expect_near(found.grads.x, wanted.grads.x, tolerance);
  expect_near(found.grads.w_ih, wanted.grads.w_ih, tolerance);
  expect_near(found.grads.w_hh, wanted.grads.w_hh, tolerance);
  expect_near(found.grads.b_ih, wanted.grads.b_ih, tolerance);
  expect_near(found.grads.b_hh, wanted.grads.b_hh, tolerance);
  expect_near(found.grads.h_0, wanted.grads.h_0, tolerance);
  if (Cell::kHasCell) expect_near(found.grads.c_0, wanted.grads.c_0, tolerance);
  if (own) expect_near(found.grads.own, wanted.grads.own, tolerance);
  if (walks) expect_near(found.grads.sums, wanted.grads.sums, tolerance);
}

// One block and several, of units and of sequences; passes; depths that are no multiple of four.
CASE(lstm_equals_the_portable_kernel) {
  check<LstmCell, float>({3, 2, 3, 4}, kKeeps);
  check<LstmCell, float>({4, 3, 2, 13}, kLengths | kReverse);
  check<LstmCell, float>({3, 23, 3, 34}, kLengths | kKeeps);
}
CASE(lstm_with_peepholes_equals_the_portable_kernel) {
  check<LstmCell, float>({3, 5, 2, 9}, kLengths | kReverse | kKeeps | kOwnWeights);
}
CASE(gru_equals_the_portable_kernel) {
  check<GruCell, float>({3, 9, 2, 7}, kLengths | kKeeps);
  check<GruCell, float>({2, 3, 4, 40}, kReverse);
}
CASE(tanh_equals_the_portable_kernel) {
  check<RnnCell<Tanh>, float>({4, 3, 2, 5}, kLengths | kReverse | kKeeps);
  check<RnnCell<Tanh>, float>({2, 41, 1, 33}, kKeeps);
}
CASE(layers_that_walk_in_any_order_equal_the_portable_kernel) {
  check<LstmCell, float>({5, 7, 3, 9}, kLengths | kKeeps | kOrder);
  check<LstmCell, float>({4, 2, 0, 6}, kKeeps | kOrder);
  check<GruCell, float>({4, 5, 0, 7}, kLengths | kKeeps | kOrder);
  check<RnnCell<Tanh>, bf16>({5, 3, 0, 5}, kLengths | kKeeps | kOrder);
}
CASE(half_precision_equals_the_portable_kernel) {
  check<LstmCell, bf16>({3, 11, 3, 18}, kLengths | kKeeps);
  check<LstmCell, bf16>({3, 5, 2, 9}, kKeeps | kOwnWeights);
  check<GruCell, f16>({3, 3, 3, 6}, kReverse | kKeeps);
  check<GruCell, bf16>({4, 3, 2, 32}, kLengths | kReverse);
}
CASE(products_of_halves_are_near_the_portable_kernel) {
  check<LstmCell, float>({3, 11, 3, 18}, kLengths | kKeeps | kHalves);
  check<GruCell, float>({3, 9, 2, 13}, kReverse | kHalves);
  check<RnnCell<Tanh>, float>({2, 41, 1, 33}, kKeeps | kHalves);
  check<RnnCell<Tanh>, float>({5, 3, 0, 1}, kKeeps | kOrder | kHalves);
}
CASE(weights_that_do_not_fit_run_step_by_step) {
  Device dev{&harness::kThreaded};
  EXPECT(!(tuned::spread<tuned::StepProduct<4, 2>>(dev, 200, 4, 200, 3)));
  check<LstmCell, float>({2, 2, 2, 200}, kKeeps);
}

}  // namespace nativeops

int main(int count, char** arguments) { return harness::run(count, arguments); }
