// SPDX-License-Identifier: Apache-2.0
// Edit alignments on the CPU: two bits for each entry of the table tell the way back. Declared in
// edit_alignment.py.
#pragma once
#include "nativeops/devices/cpu/edit_tables.h"
#include "nativeops/ops/edit_alignment.h"

namespace nativeops::tuned {
namespace edits {

// The rows of the table are the labels of b, its columns those of a. Of a part of the columns there
// is all that the way back asks; before each part, the differences down the column are kept, from
// which it is computed again.
class WayBack {
 public:
  template <class I>
  WayBack(const Sequence<I>& a, const Sequence<I>& b)
      : codes_(b, a),
        words_(words_for(b.n)),
        columns_(a.n),
        size_(nativeops::edits::part_size(a.n)),
        kept_(words_ * (a.n / size_ + 1)),
        now_(words_, {~uint64_t{0}, 0}),
        down_(words_ * size_),
        same_(down_.size()) {}

  template <class W>
  void walk(W& way) {
    const int64_t last = columns_ / size_;
    for (int64_t p = 0; p < last; ++p) compute(p);
    for (int64_t p = last; p >= 0; --p) {
      std::copy_n(kept_.data() + p * words_, p < last ? words_ : 0, now_.data());
      compute(p);
      while (way.i > p * size_) step(way, way.i - 1 - p * size_);
    }
    while (way.j > 0) way.take(nativeops::edits::kDeletion);
  }

 private:
  // A label that is the same can always be a match; one that differs is a substitution where the
  // distance is not that of the row above in the column before.
  template <class W>
  void step(W& way, int64_t column) const {
    using namespace nativeops::edits;
    if (way.j == 0) return way.take(kInsertion);
    const int64_t row = way.j - 1, place = column * words_ + row / kBits;
    const bool match = codes_.text[way.i - 1] == codes_.pattern[row];
    if (match || (same_[place] >> row % kBits & 1) == 0) return way.take(!match);
    way.take(down_[place] >> row % kBits & 1 ? kDeletion : kInsertion);
  }

  void compute(int64_t part) {
    std::copy(now_.begin(), now_.end(), kept_.begin() + part * words_);
    const int64_t first = part * size_, many = std::min(size_, columns_ - first);
    for (int64_t c = 0; c < many; ++c) {
      const uint32_t label = codes_.text[first + c];
      uint64_t stays = 0, minus = 0;
      for (int64_t w = 0; w < words_; ++w) {
        const uint64_t equal = simd::matches(&codes_.pattern[w * kBits], label);
        same_[c * words_ + w] = now_[w].step(equal, stays >> 63, minus >> 63, stays, minus);
        down_[c * words_ + w] = now_[w].plus;
      }
    }
  }

  CodedPair codes_;
  int64_t words_, columns_, size_;
  std::vector<Rows<uint64_t>> kept_, now_;
  std::vector<uint64_t> down_, same_;
};

}  // namespace edits

template <class I>
void edit_alignment(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len, In<int32_t, 1> b_len,
                    Out<uint8_t, 2> steps, Out<int32_t, 1> n_steps, Out<int32_t, 2> counts) {
  const nativeops::edits::Sets<I> of{a, b, a_len, b_len};
  of.check();
  for_each_item(dev, a.size(0), [=](Team, int64_t item) {
    const auto pair = nativeops::edits::pair_of(of, item, item);
    auto way = nativeops::edits::way_of(pair, steps, item);
    edits::WayBack(edits::sequence(pair.a, pair.n), edits::sequence(pair.b, pair.m)).walk(way);
    way.finish(n_steps, counts, item);
  });
}

}  // namespace nativeops::tuned
