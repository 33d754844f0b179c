// SPDX-License-Identifier: Apache-2.0
// The recurrent layers by tiles of bf16, on tiles in software: whole layers and their gradients
// against the portable kernels in double, and the matrix products against plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/recurrent_grad.h"
#include "nativeops/ops/gru.h"
#include "nativeops/ops/lstm.h"
#include "nativeops/ops/lstm_projected.h"
#include "nativeops/ops/rnn.h"
#include "products.h"

namespace nativeops {

template <class T, int N>
View<const T, N> read(const View<T, N>& view) {
  View<const T, N> same;
  same.data = view.data;
  std::copy_n(view.size_, N, same.size_);
  std::copy_n(view.stride_, N, same.stride_);
  return same;
}

struct Size {
  int64_t steps, batch, inputs, units;
};

// All arrays of a layer, its results and its gradients.
template <class T>
struct Case {
  std::vector<std::vector<T>> memory;
  std::vector<int32_t> lengths;
  Layer<T> layer{};
  States<T> states{};
  Arrived<T> arrived{};
  LayerGrads<T> grads{};

  template <int N>
  View<T, N> array(std::initializer_list<int64_t> sizes) {
    View<T, N> view;
    int64_t count = 1;
    for (int64_t size : sizes) count *= size;
    memory.emplace_back(static_cast<size_t>(std::max<int64_t>(count, 1)), T(0.0f));
    view.data = memory.back().data();
    std::copy(sizes.begin(), sizes.end(), view.size_);
    for (int axis = N; axis-- > 0; count = view.size_[axis] * view.stride_[axis]) {
      view.stride_[axis] = axis == N - 1 ? 1 : count;
    }
    return view;
  }
  // Numbers that bf16 holds, of about that size.
  template <int N>
  View<const T, N> given(std::initializer_list<int64_t> sizes, double scale) {
    const View<T, N> view = array<N>(sizes);
    for (T& value : memory.back()) {
      const float uniform = static_cast<float>(rand() % 2001 - 1000) / 1000.0f;
      value = T(static_cast<float>(bf16(uniform * static_cast<float>(scale))));
    }
    return read(view);
  }
};

template <class T>
using Of = tuned::Tiles<std::is_same_v<T, float> ? 2 : 1>;

struct Kind {
  bool with_lengths, reverse, low_memory;
};

template <class Cell, class T>
Case<T> make(const Size& s, const Kind& kind) {
  Case<T> c;
  srand(static_cast<unsigned>(s.steps + 7 * s.batch + 31 * s.units + kind.with_lengths));
  const int64_t t = s.steps, b = s.batch, h = s.units, gates = Cell::kGates * h;
  const int64_t p = std::is_same_v<Cell, ProjectedLstmCell> ? (h + 1) / 2 : h;  // of the state
  const double size = 1 / std::sqrt(static_cast<double>(s.inputs + h));
  c.layer.x = c.template given<3>({t, b, s.inputs}, 1);
  c.layer.w_ih = c.template given<2>({gates, s.inputs}, size);
  c.layer.w_hh = c.template given<2>({Cell::kStateGates * h, p}, size);
  c.layer.b_ih = c.template given<1>({gates}, size);
  c.layer.b_hh = c.template given<1>({Cell::kStateGates * h}, size);
  if (Cell::kSecond) c.layer.w_second = c.template given<2>({p, h}, size);
  if (Cell::kSecond) c.layer.b_second = c.template given<1>({p}, size);
  if (Cell::kOwn > 0) c.layer.own = c.template given<1>({Cell::kOwn * h}, 0.1);
  c.layer.h_0 = c.template given<2>({b, p}, 1);
  if (Cell::kHasCell) c.layer.c_0 = c.template given<2>({b, h}, 1);
  if (kind.with_lengths) {
    for (int64_t i = 0; i < b; ++i) c.lengths.push_back(static_cast<int32_t>(rand() % (t + 1)));
    c.layer.lengths = {c.lengths.data(), {b}, {1}};
  }
  c.layer.reverse = kind.reverse;
  c.layer.high = true;
  c.states.y = c.template array<3>({t, b, p});
  c.states.h_n = c.template array<2>({b, p});
  if (!kind.low_memory && Cell::kKept > 0)
    c.states.gates = c.template array<3>({t, b, Cell::kKept * h});
  if (Cell::kHasCell) {
    c.states.c_n = c.template array<2>({b, h});
    c.states.cells = c.template array<3>({t, b, h});
  }
  c.arrived.y = read(c.states.y);
  c.arrived.gates = read(c.states.gates);
  c.arrived.cells = read(c.states.cells);
  c.arrived.d_y = c.template given<3>({t, b, p}, 1);
  c.arrived.d_h_n = c.template given<2>({b, p}, 1);
  if (Cell::kHasCell) c.arrived.d_c_n = c.template given<2>({b, h}, 1);
  c.grads.x = c.template array<3>({t, b, s.inputs});
  c.grads.w_ih = c.template array<2>({gates, s.inputs});
  c.grads.w_hh = c.template array<2>({Cell::kStateGates * h, p});
  c.grads.b_ih = c.template array<1>({gates});
  c.grads.b_hh = c.template array<1>({Cell::kStateGates * h});
  if (Cell::kSecond) c.grads.w_second = c.template array<2>({p, h});
  if (Cell::kSecond) c.grads.b_second = c.template array<1>({p});
  if (Cell::kOwn > 0) c.grads.own = c.template array<1>({Cell::kOwn * h});
  c.grads.h_0 = c.template array<2>({b, p});
  if (Cell::kHasCell) c.grads.c_0 = c.template array<2>({b, h});
  return c;
}

// The largest error of any array, in units of the array's largest number (or of 1).
template <class T>
double worst_error(const Case<T>& found, const Case<double>& truth) {
  double worst = 0;
  for (size_t a = 0; a < truth.memory.size(); ++a) {
    double largest = 1, error = 0;
    for (size_t i = 0; i < truth.memory[a].size(); ++i) {
      const double is = static_cast<double>(found.memory[a][i]), exact = truth.memory[a][i];
      largest = std::max(largest, std::fabs(exact));
      error = std::isnan(is) ? 1e30 : std::max(error, std::fabs(is - exact));
    }
    worst = std::max(worst, error / largest);
  }
  return worst;
}

template <class Cell, class T>
void check_layer(const Size& s, const Kind& kind, double allowed) {
  auto check = [&](const Case<T>& found, const Case<double>& truth, const char* what) {
    const double error = worst_error(found, truth);
    EXPECT(error <= allowed);
    if (error <= allowed) return;
    std::fprintf(stderr, "%s: %g for t %ld, b %ld, i %ld, h %ld%s%s%s\n", what, error,
                 long(s.steps), long(s.batch), long(s.inputs), long(s.units),
                 kind.with_lengths ? ", lengths" : "", kind.reverse ? ", reverse" : "",
                 kind.low_memory ? ", low memory" : "");
  };
  Device serial{&harness::kSerial};
  harness::on_each_device([&](Device& dev) {
    auto found = make<Cell, T>(s, kind);
    auto truth = make<Cell, double>(s, kind);
    tuned::Forward<Cell, T, Of<T>>(dev, found.layer, found.states).run();
    nativeops::recurrent_layer<Cell, double>(serial, truth.layer, truth.states);
    check(found, truth, "layer");
    for (size_t a = 0; a < truth.memory.size(); ++a) {  // the gradient of the same outputs
      for (size_t i = 0; i < truth.memory[a].size(); ++i) truth.memory[a][i] = found.memory[a][i];
    }
    tuned::Backward<Cell, T, Of<T>>(dev, found.layer, found.arrived, found.grads).run();
    nativeops::recurrent_layer_grad<Cell, double>(serial, truth.layer, truth.arrived, truth.grads);
    check(found, truth, "gradient");
  });
  EXPECT(harness::live_allocations() == 0);
}

// Around tiles of 16 rows, two of them, 16 columns and 32 numbers of depth.
template <class Cell, class T>
void check_sizes(double allowed) {
  for (int64_t batch = 1; batch <= 40; ++batch) {
    check_layer<Cell, T>({2, batch, 3, 5}, {batch % 2 == 0, batch % 3 == 0, batch % 4 == 0},
                         allowed);
  }
  for (int64_t units : {1, 3, 17, 40}) {
    for (int64_t inputs : {0, 1, 31, 33}) {
      for (int64_t batch : {1, 4, 17, 33}) {
        const Kind kind{batch > 1, units % 2 == 0, inputs == 1};
        check_layer<Cell, T>({4, batch, inputs, units}, kind, allowed);
      }
    }
  }
  for (const Size& s : {Size{0, 3, 4, 5}, Size{800, 2, 3, 4}, Size{2, 5, 70, 70}}) {
    check_layer<Cell, T>(s, {false, true, false}, allowed);
  }
}
constexpr double kTwoParts = 2e-5, kOnePart = 0.05;

CASE(lstm_by_two_parts_is_the_portable_one) { check_sizes<LstmCell, float>(kTwoParts); }
CASE(gru_by_two_parts_is_the_portable_one) { check_sizes<GruCell, float>(kTwoParts); }
CASE(projected_lstm_by_two_parts_is_the_portable_one) {
  check_sizes<ProjectedLstmCell, float>(kTwoParts);
}
CASE(gru_with_early_reset_by_two_parts_is_the_portable_one) {
  check_sizes<ResetFirstGruCell, float>(kTwoParts);
}
CASE(tanh_by_two_parts_is_the_portable_one) { check_sizes<RnnCell<Tanh>, float>(kTwoParts); }
CASE(relu_by_two_parts_is_the_portable_one) { check_sizes<RnnCell<Relu>, float>(kTwoParts); }
CASE(lstm_of_bf16_is_the_portable_one) { check_sizes<LstmCell, bf16>(kOnePart); }
CASE(gru_of_bf16_is_the_portable_one) { check_sizes<GruCell, bf16>(kOnePart); }
CASE(projected_lstm_of_bf16_is_the_portable_one) { check_sizes<ProjectedLstmCell, bf16>(kOnePart); }
CASE(gru_with_early_reset_of_bf16_is_the_portable_one) {
  check_sizes<ResetFirstGruCell, bf16>(kOnePart);
}
CASE(tanh_of_bf16_is_the_portable_one) { check_sizes<RnnCell<Tanh>, bf16>(kOnePart); }
CASE(relu_of_bf16_is_the_portable_one) { check_sizes<RnnCell<Relu>, bf16>(kOnePart); }

// What the documentation promises of `precision="high"`.
double rms(const double* truth, const float* found, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::pow(found[i] - truth[i], 2);
  return std::sqrt(sum / static_cast<double>(count));
}
template <class Cell>
void check_rms() {
  Device dev{&harness::kSerial};
  const Size s{100, 8, 96, 96};
  auto found = make<Cell, float>(s, {false, false, false});
  auto truth = make<Cell, double>(s, {false, false, false});
  tuned::Forward<Cell, float, Of<float>>(dev, found.layer, found.states).run();
  nativeops::recurrent_layer<Cell, double>(dev, truth.layer, truth.states);
  const double error = rms(truth.states.y.data, found.states.y.data, found.states.y.count());
  std::printf("rms error of outputs: %.3g\n", error);
  EXPECT(error <= 1e-5 && error > 0);
}
CASE(rms_error_of_two_parts_is_at_most_1e_5) {
  check_rms<LstmCell>();
  check_rms<ProjectedLstmCell>();
  check_rms<GruCell>();
  check_rms<ResetFirstGruCell>();
  check_rms<RnnCell<Tanh>>();
}

template <class Cell, class T>
void check_bits() {
  const Size s{5, 37, 20, 70};
  std::vector<Case<T>> found;
  harness::on_each_device([&](Device& dev) {
    found.push_back(make<Cell, T>(s, {true, false, true}));
    Case<T>& c = found.back();
    tuned::Forward<Cell, T, Of<T>>(dev, c.layer, c.states).run();
    tuned::Backward<Cell, T, Of<T>>(dev, c.layer, c.arrived, c.grads).run();
  });
  for (size_t a = 0; a < found[0].memory.size(); ++a) {
    EXPECT(std::equal(found[0].memory[a].begin(), found[0].memory[a].end(),
                      found[1].memory[a].begin(), harness::same_bits<T>));
  }
}
CASE(one_thread_and_three_give_the_same_bits) {
  check_bits<LstmCell, float>();
  check_bits<LstmCell, bf16>();
  check_bits<ProjectedLstmCell, float>();
  check_bits<ResetFirstGruCell, bf16>();
}

// Of the largest numbers as of any: the sums overflow where those of float do, and nowhere else.
CASE(huge_inputs_give_no_nan) {
  Device dev{&harness::kSerial};
  auto c = make<LstmCell, float>({3, 5, 40, 17}, {false, false, false});
  for (float& x : c.memory[0]) x = x < 0 ? -3.4e38f : 3.4e38f;
  tuned::Forward<LstmCell, float, Of<float>>(dev, c.layer, c.states).run();
  Case<double> truth = make<LstmCell, double>({3, 5, 40, 17}, {false, false, false});
  for (double& x : truth.memory[0]) x = x < 0 ? -3.4e38 : 3.4e38;
  nativeops::recurrent_layer<LstmCell, double>(dev, truth.layer, truth.states);
  for (int64_t i = 0; i < c.states.y.count(); ++i) {
    EXPECT(std::fabs(c.states.y.data[i] - truth.states.y.data[i]) < 1e-5);
  }
}

CASE(nan_stays_in_its_own_sequence) {
  Device dev{&harness::kSerial};
  auto with = make<GruCell, float>({3, 20, 33, 17}, {false, false, false});
  auto without = make<GruCell, float>({3, 20, 33, 17}, {false, false, false});
  with.memory[0][(1 * 20 + 7) * 33 + 32] = std::numeric_limits<float>::quiet_NaN();
  for (auto* c : {&with, &without}) {
    tuned::Forward<GruCell, float, Of<float>>(dev, c->layer, c->states).run();
  }
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t b = 0; b < 20; ++b) {
      for (int64_t j = 0; j < 17; ++j) {
        const float mine = with.states.y(t, b, j);
        EXPECT(b == 7 && t > 0 ? std::isnan(mine) : mine == without.states.y(t, b, j));
      }
    }
  }
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
