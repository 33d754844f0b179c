// SPDX-License-Identifier: Apache-2.0
// Tiles in software against the definition of the instructions, and matrix products by tiles
// against plain loops.
#include <cmath>
#include <limits>
#include <vector>

#include "harness.h"
#include "nativeops/devices/cpu/tile_products.h"

namespace nativeops::tuned {

tiles::Config config(int rows) {
  tiles::Config c;
  for (int tile : {0, 1, 2}) {
    c.rows[tile] = static_cast<uint8_t>(tile == 2 ? tiles::kMaxRows : rows);
    c.bytes[tile] = tiles::kMaxBytes;
  }
  return c;
}

// A product of one row with one column whose left and right numbers are given, on top of `sum`.
float product(float sum, const std::vector<float>& left, const std::vector<float>& right) {
  bf16 a[32] = {}, b[16][32] = {};
  float sums[16] = {sum};
  for (size_t k = 0; k < left.size(); ++k) a[k] = bf16(left[k]);
  for (size_t k = 0; k < right.size(); ++k) b[k / 2][k % 2] = bf16(right[k]);
  tiles::configure(config(1));
  tiles::load<0>(sums, sizeof sums);
  tiles::load<1>(a, sizeof a);
  tiles::load<2>(b, sizeof b[0]);
  tiles::add_products<0, 1, 2>();
  tiles::store<0>(sums, sizeof sums);
  tiles::release();
  return sums[0];
}

CASE(pairs_are_multiplied_with_pairs) {
  EXPECT(product(100, {1, 2, 3, 4}, {5, 6, 7, 8}) == 100 + 5 + 12 + 21 + 32);
}
CASE(even_and_odd_products_are_summed_apart) {
  const float big = 0x1p24f;
  EXPECT(product(0, {big, 1, 0, 1}, {1, 1, 0, 1}) == big + 2);    // 1 + 1 comes first
  EXPECT(product(0, {big, 0, 1, 0, 1}, {1, 0, 1, 0, 1}) == big);  // each 1 is rounded away
  EXPECT(product(big, {1, 1}, {1, 1}) == big + 2);                // the sum goes on top
  EXPECT(product(1, {big, 1}, {1, 1}) == big);
}
CASE(a_product_is_not_rounded_before_it_is_added) {
  // (1 + 2^-7)² = 1 + 2^-6 + 2^-14; of a sum of -1 - 2^-6 only 2^-14 is left.
  const float a = 1 + 0x1p-7f;
  EXPECT(product(0, {-1, 0, -0x1p-6f, 0, a}, {1, 0, 1, 0, a}) == 0x1p-14f);
}
CASE(small_numbers_are_zero) {
  const float tiny = 0x1p-130f, least = 0x1p-126f;
  EXPECT(product(0, {tiny}, {0x1p20f}) == 0);  // as input
  EXPECT(product(0, {least}, {0.5f}) == 0);    // as product
  EXPECT(product(tiny, {0}, {0}) == 0);        // as sum
  EXPECT(product(0, {least}, {1}) == least);
}
CASE(infinity_and_nan_follow_ieee) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT(product(0, {infinity}, {2}) == infinity);
  EXPECT(std::isnan(product(0, {infinity}, {0})));
  EXPECT(std::isnan(product(0, {std::nanf("")}, {1})));
}
CASE(only_the_rows_of_a_tile_are_read_and_written) {
  float from[4 * 20], to[4 * 20];
  for (int i = 0; i < 80; ++i) from[i] = static_cast<float>(i), to[i] = -1;
  tiles::configure(config(3));
  tiles::load<0>(from, 20 * sizeof(float));
  tiles::store<0>(to, 20 * sizeof(float));
  for (int i = 0; i < 80; ++i) EXPECT(to[i] == (i / 20 < 3 && i % 20 < 16 ? from[i] : -1.0f));
}

template <int kParts>
void parts_of(float value, float (&part)[2]) {
  simd::Vec<float> parts[kParts];
  Tiles<kParts>::split(simd::broadcast(value), parts);
  for (int p = 0; p < kParts; ++p) part[p] = parts[p].raw[0];
}
CASE(one_part_is_the_nearest_bf16) {
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1021) {
    const float value = bit_cast<float>(static_cast<uint32_t>(bits));
    float part[2];
    parts_of<1>(value, part);
    EXPECT(harness::same_bits(part[0], static_cast<float>(bf16(value))));
  }
}
CASE(two_parts_are_a_float_but_for_its_last_places) {
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1021) {
    const float value = bit_cast<float>(static_cast<uint32_t>(bits));
    float part[2];
    parts_of<2>(value, part);
    for (float p : part) EXPECT((bit_cast<uint32_t>(p) & 0xffff) == 0);
    if (std::isnan(value)) {
      EXPECT(std::isnan(part[0]));
    } else if (std::isinf(value)) {
      EXPECT(part[0] == value && part[1] == 0);
    } else {
      const double missing = double(value) - part[0] - part[1];
      const bool cut = std::fabs(value) >= 0x1.ffp127f;  // where the nearest bf16 is infinite
      EXPECT(std::isfinite(part[0]) && std::isfinite(part[1]));
      EXPECT(std::fabs(missing) <= std::fabs(value) * (cut ? 0x1p-16 : 0x1p-17) + 0x1p-134);
    }
  }
}

// Rows times panel, as wide, tall and deep as said, and its error for numbers around 1.
template <int kParts>
double product_error(int vectors, int64_t count, int64_t depth, bool one_init) {
  using Of = Tiles<kParts>;
  const int64_t words = Of::words(depth), width = vectors * 16, offset = 16;
  const int64_t distance = offset + words + 16, stride = width + 3;
  auto numbers = [](int64_t n) {
    std::vector<float> all(static_cast<size_t>(n));
    for (float& value : all) value = static_cast<float>(rand() % 2001 - 1000) / 977.0f;
    return all;
  };
  const auto x = numbers(count * depth), m = numbers(depth * width), init = numbers(count * width);
  const float nan = std::nanf("");  // what nobody may read
  std::vector<float> memory(static_cast<size_t>(count * distance), nan), sums(count * stride, -77);
  std::vector<float> panel(static_cast<size_t>(width * words), nan);
  std::vector<const float*> rows;
  for (int64_t r = 0; r < count; ++r) {
    float* row = memory.data() + r * distance;
    rows.push_back(row);
    for (int64_t k = 0; k < depth; k += 16) {
      Of::write(row + offset, words, k, simd::load(&x[r * depth + k], depth - k), depth - k);
    }
  }
  for (int v = 0; depth > 0 && v < vectors; ++v) {
    const View<const float, 2> columns{m.data() + v * 16, {depth, 16}, {width, 1}};
    Of::pack(columns, panel.data(), vectors, v, words);
  }
  const int64_t init_stride = one_init ? 0 : width;
  Of::multiply(vectors, rows.data(), count, offset, words, panel.data(), init.data(), init_stride,
               sums.data(), stride);
  double worst = 0;
  for (int64_t i = 0; i < count * stride; ++i) {
    const int64_t r = i / stride, c = i % stride;
    double want = c < width ? double(init[r * init_stride + c]) : -77;
    for (int64_t k = 0; c < width && k < depth; ++k) {
      want += double(x[r * depth + k]) * double(m[k * width + c]);
    }
    const double error = std::fabs(want - double(sums[i]));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}
CASE(rows_times_panel_is_the_plain_product) {
  for (int vectors = 1; vectors <= 4; ++vectors) {
    for (int64_t count : {0, 1, 3, 15, 16, 17, 20, 31, 32, 33, 47, 65}) {
      for (int64_t depth : {0, 1, 2, 17, 31, 32, 33, 100}) {
        const typename Tiles<1>::Thread of_one;
        EXPECT(product_error<1>(vectors, count, depth, depth % 2) <= 0.1);
        const typename Tiles<2>::Thread of_two;
        EXPECT(product_error<2>(vectors, count, depth, depth % 2) <= 1e-4);
      }
    }
  }
}
CASE(what_is_written_is_read_again) {
  alignas(64) float row[Tiles<2>::words(40)];
  for (int64_t k = 0; k < 40; k += 16) {
    Tiles<2>::write(row, Tiles<2>::words(40), k, simd::broadcast(1 + 0x1p-12f), 40 - k);
  }
  for (int64_t k = 0; k < 64; ++k) {
    const auto v = Tiles<2>::read(row, Tiles<2>::words(40), k / 16 * 16);
    EXPECT(v.raw[k % 16] == (k < 40 ? 1 + 0x1p-12f : 0.0f));
  }
}

}  // namespace nativeops::tuned

int main(int argc, char** argv) { return harness::run(argc, argv); }
