// SPDX-License-Identifier: Apache-2.0
// Packed weights that are kept from one call to the next, as long as the weights have the same
// bits. Nobody tells a kernel that a weight was changed, so each call takes a fingerprint of all
// bits: that reads them once, in the order they lie, where packing also writes them in another.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/view.h"

namespace nativeops::tuned {

// Two sums over a matrix's bits, of NH (Black, Halevi, Krawczyk, Krovetz & Rogaway 1999, UMAC):
// Σ (low half + key) · (high half + key) of its 64-bit words, for blocks of words whose sums are
// combined by multiplication. Keys are drawn at random by each process: a change within a block is
// missed with probability 2^-64, whatever the numbers. Changes of several blocks would, beside
// that, have to cancel out modulo 2^64 under one multiplier, which is known: this is no
// cryptography.
class Fingerprint {
  static constexpr int kBytes = simd::kVectorBytes, kBlock = 32;  // vectors with keys of their own
  using Words = uint64_t __attribute__((vector_size(kBytes)));
  using Halves = uint32_t __attribute__((vector_size(kBytes)));

 public:
  static constexpr int64_t kParts = 16;  // which threads share

  // Of weights whose rows have no gaps, and of a bias without gaps, if there is one.
  template <class T>
  Fingerprint(Device& dev, In<T, 2> weight, In<T, 1> bias) : parts_(kParts) {
    constexpr auto size = static_cast<int64_t>(sizeof(T));
    const int64_t vectors = weight.count() * size / kBytes;
    parallel_if_large(dev, kParts, vectors, [&](int64_t part) {
      const int64_t rows = weight.size(0), end = (part + 1) * rows / kParts;
      for (int64_t r = part * rows / kParts; r < end; ++r) {
        parts_[part].add(reinterpret_cast<const char*>(&weight(r, 0)), weight.size(1) * size);
      }
      if (part == 0 && bias) parts_[0].add(reinterpret_cast<const char*>(bias.data), rows * size);
    });
  }

  friend bool operator==(const Fingerprint& a, const Fingerprint& b) {
    return std::memcmp(a.parts_.data(), b.parts_.data(), sizeof(Part) * kParts) == 0;
  }

 private:
  struct Keys {
    Halves key[2][kBlock];

    static const Keys& of_process() {
      static const Keys keys;
      return keys;
    }
    Keys() {
      std::random_device random;
      for (auto& each : key) {
        for (Halves& vector : each) {
          for (int i = 0; i < kBytes / 4; ++i) vector[i] = random();
        }
      }
    }
  };

  struct Part {
    Words sum[2] = {};

    void add(const char* row, int64_t bytes) {
      const Keys& keys = Keys::of_process();
      constexpr int64_t kWhole = int64_t{kBlock} * kBytes;
      for (; bytes >= kWhole; row += kWhole, bytes -= kWhole) add_block(keys, row, kBlock, 0);
      if (bytes > 0) add_block(keys, row, bytes / kBytes, bytes % kBytes);
    }
    // So many whole vectors and so many bytes more.
    void add_block(const Keys& keys, const char* from, int64_t vectors, int64_t more) {
      Words block[2] = {};
      Halves x = {};
      for (int64_t v = 0; v < vectors; ++v) {
        std::memcpy(&x, from + v * kBytes, kBytes);
        for (int k = 0; k < 2; ++k) block[k] += product(x + keys.key[k][v]);
      }
      if (more > 0) {
        x = Halves{};
        std::memcpy(&x, from + vectors * kBytes, static_cast<size_t>(more));
        for (int k = 0; k < 2; ++k) block[k] += product(x + keys.key[k][vectors]);
      }
      for (int k = 0; k < 2; ++k) sum[k] = (sum[k] + block[k]) * uint64_t{0x9e3779b97f4a7c15};
    }
    // The low half of each word times the high half.
    static Words product(Halves x) {
      const auto words = reinterpret_cast<Words>(x);
#if NATIVEOPS_LEVEL >= 2
      // With a mask of all lanes: for GCC 12 the form without one reads what was never set.
      return reinterpret_cast<Words>(_mm512_maskz_mul_epu32(
          0xff, reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(words >> 32)));
#else
      return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(words),
                                                      reinterpret_cast<__m256i>(words >> 32)));
#endif
    }
  };
  std::vector<Part> parts_;
};

// What weights are packed for: in the same way, the same bits give the same memory.
struct Packing {
  int64_t rows, columns, panels, biases;
  const void* way;  // which is that of all that pack alike, dtype included, and of nobody else

  friend bool operator==(const Packing& a, const Packing& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};

// The packed weights of this process: those that were used last, up to kMost bytes. Weights are
// kept when they come for the second time, so that those of a training, which never do, cost no
// memory. No call waits for another: one that finds this in use packs for itself.
class KeptWeights {
 public:
  static constexpr size_t kMost = size_t{64} << 20;
  using Memory = std::shared_ptr<void>;

  // Never destroyed: other threads may still call while the process ends.
  static KeptWeights& of_process() {
    static auto* const all = new KeptWeights;
    return *all;
  }

  struct Found {
    Memory memory;
    bool come_again;  // without memory: they are worth keeping
  };
  Found find(const Packing& packing, const Fingerprint& fingerprint) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return {nullptr, false};
    for (auto one = all_.begin(); one != all_.end(); ++one) {
      if (!(one->packing == packing && one->fingerprint == fingerprint)) continue;
      all_.splice(all_.begin(), all_, one);
      return {one->memory, true};
    }
    all_.push_front({packing, fingerprint, nullptr, 0});
    if (all_.size() > kCount) drop_last();
    return {nullptr, false};
  }

  // Of the system, which has it back at once when it is dropped. Null if there is none.
  static Memory allocate(size_t bytes) {
    if (bytes > kMost / 2) return nullptr;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    return {memory, [bytes](void* m) { munmap(m, bytes); }};
  }

  void keep(const Packing& packing, const Fingerprint& fingerprint, Memory memory, size_t bytes) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return;
    for (auto& one : all_) {
      if (!(one.packing == packing && one.fingerprint == fingerprint)) continue;
      bytes_ += bytes - one.bytes;
      one.memory = std::move(memory), one.bytes = bytes;
      break;
    }
    while (bytes_ > kMost) drop_last();
  }

 private:
  static constexpr size_t kCount = 64;
  struct One {
    Packing packing;
    Fingerprint fingerprint;
    Memory memory;
    size_t bytes;
  };

  void drop_last() {
    bytes_ -= all_.back().bytes;
    all_.pop_back();
  }

  std::mutex mutex_;
  std::list<One> all_;  // the last used first
  size_t bytes_ = 0;
};

}  // namespace nativeops::tuned
