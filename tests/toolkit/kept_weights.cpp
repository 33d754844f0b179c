// SPDX-License-Identifier: Apache-2.0
// Weights that stay packed from one call to the next: found again where all is the same, and only
// there. Compiled for each instruction set.
#include <algorithm>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/gate_products.h"
#include "nativeops/devices/cpu/recurrent_rows.h"
#if NATIVEOPS_LEVEL >= 3
#include "nativeops/devices/cpu/tile_products.h"
#endif

namespace nativeops::tuned {

constexpr int64_t kUnits = 40, kColumns = 24, kFrames = 60;  // frames enough to pack weights for

// One matrix, and what a cell with one gate multiplies with it.
template <class T, class Of = Numbers>
struct Packed {
  using Products = GateProducts<Gates<1>, T, Of>;
  Device dev{&harness::kSerial};
  Split split{ceil_div(kUnits, simd::kLanes<Accum<T>>), Products::kUnits, 1};
  Products products;

  explicit Packed(const std::vector<T>& weight, bool keeps = true)
      : products(dev, split, {weight.data(), {kUnits, kColumns}, {kColumns, 1}}, {}, kFrames,
                 keeps) {
    products.make_all_ready(dev);
    products.keep(dev);
  }

  const void* place() const { return products.panel(0); }
  std::vector<Accum<T>> numbers() const {
    const auto* first = products.panel(0);
    return {first, first + Of::words(kColumns) * products.width(0)};
  }
};

template <class T>
std::vector<T> drawn(unsigned seed) {
  srand(seed);
  std::vector<T> weight(kUnits * kColumns);
  for (T& value : weight) value = T(static_cast<float>(rand() % 1000) / 512.0f - 1.0f);
  return weight;
}
template <class To, class From>
std::vector<To> same_bits_as(const std::vector<From>& from) {
  std::vector<To> to(from.size() * sizeof(From) / sizeof(To));
  std::memcpy(to.data(), from.data(), from.size() * sizeof(From));
  return to;
}

// Where these weights lie once they are kept.
template <class T, class Of = Numbers>
const void* kept(const std::vector<T>& weight) {
  Packed<T, Of>{weight};  // a first time, from which nothing is kept
  const Packed<T, Of> second(weight), third(weight);
  EXPECT(second.place() == third.place());
  return third.place();
}

template <class T, class Of = Numbers>
void check_kept(unsigned seed) {
  auto weight = drawn<T>(seed);
  const void* const place = kept<T, Of>(weight);
  EXPECT((Packed<T, Of>(weight).place() == place));
  EXPECT((Packed<T, Of>(weight, false).place() != place));
  EXPECT((Packed<T, Of>(weight).numbers() == Packed<T, Of>(weight, false).numbers()));
  weight[kColumns + 3] = T(5.0f);
  EXPECT((Packed<T, Of>(weight).place() != place));
}
CASE(weights_that_come_again_are_packed_no_more) {
  check_kept<float>(1);
  check_kept<double>(2);
  check_kept<bf16>(3);
  check_kept<f16>(4);
#if NATIVEOPS_LEVEL >= 2
  check_kept<bf16, Pairs>(5);
#endif
#if NATIVEOPS_LEVEL >= 3
  check_kept<bf16, Tiles<1>>(6);
  check_kept<float, Tiles<2>>(7);
#endif
}

template <class T, class Other, class Of = Numbers, class OtherOf = Numbers>
void check_apart(unsigned seed) {
  const auto weight = drawn<T>(seed);
  const auto other = same_bits_as<Other>(weight);
  const void* const place = kept<T, Of>(weight);
  EXPECT((kept<Other, OtherOf>(other) != place));
  EXPECT(
      (Packed<Other, OtherOf>(other).numbers() == Packed<Other, OtherOf>(other, false).numbers()));
}
CASE(the_same_bits_in_another_dtype_are_other_weights) {
  check_apart<bf16, f16>(8);
  check_apart<f16, bf16>(9);
#if NATIVEOPS_LEVEL >= 2
  check_apart<bf16, f16, Pairs>(10);
  check_apart<bf16, bf16, Numbers, Pairs>(11);
#endif
#if NATIVEOPS_LEVEL >= 3
  check_apart<bf16, f16, Tiles<1>>(12);
  check_apart<float, float, Numbers, Tiles<2>>(13);
#endif
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) { return harness::run(argc, argv); }
