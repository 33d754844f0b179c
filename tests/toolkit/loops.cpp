// SPDX-License-Identifier: Apache-2.0
// Every loop shape against a plain loop. Compiled for the CPU and for its debug device.
#include <stdexcept>
#include <string>
#include <vector>

#include "harness.h"

using harness::Array;
using harness::Layout;
using harness::on_each_device;

namespace nativeops {

CASE(for_each_visits_every_index_once) {
  on_each_device([](Device& dev) {
    for (int64_t n : {0, 1, 7, 70000}) {
      std::vector<int> one(n);
      View<int, 1> line = dense(one.data(), n);
      for_each(dev, line, [=] KERNEL(int64_t i) { line(i) += 1; });
      for (int count : one) EXPECT(count == 1);
    }
    for (int64_t n : {0, 1, 5}) {
      std::vector<int> two(n * 4001), three(n * 7 * 901), four(n * 3 * 5 * 301);
      View<int, 2> plane = dense(two.data(), n, 4001);
      View<int, 3> space = dense(three.data(), n, 7, 901);
      View<int, 4> more = dense(four.data(), n, 3, 5, 301);
      for_each(dev, plane, [=] KERNEL(int64_t i, int64_t j) { plane(i, j) += 1; });
      for_each(
          dev, space, [=] KERNEL(int64_t i, int64_t j, int64_t k) { space(i, j, k) += 1; }, 99);
      for_each(dev, more,
               [=] KERNEL(int64_t i, int64_t j, int64_t k, int64_t l) { more(i, j, k, l) += 1; });
      for (const auto& counts : {two, three, four}) {
        for (int count : counts) EXPECT(count == 1);
      }
    }
  });
}

CASE(for_each_maps_views_of_any_strides) {
  on_each_device([](Device& dev) {
    for (Layout layout : harness::kLayouts) {
      auto test = [&](auto zero) {
        using T = decltype(zero);
        Array<T> x(2, 5, 33, layout), y(2, 5, 33, Layout::kGaps);
        View<const T, 3> in = x.in();
        View<T, 3> out = y.view;
        for_each(dev, out, [=] KERNEL(int64_t b, int64_t i, int64_t j) {
          out(b, i, j) = T(2 * in(b, i, j));
        });
        x.each([&](int64_t b, int64_t i, int64_t j) {
          EXPECT(float(y.view(b, i, j)) == 2 * float(x.view(b, i, j)));
        });
        EXPECT(y.intact());
      };
      FOR_EACH_DTYPE(test);
    }
  });
}

// Rows of all lengths, since these decide how a block's threads lie beside a row.
CASE(rows_of_any_length_are_visited_and_filled) {
  on_each_device([](Device& dev) {
    for (int64_t n : {0, 1, 2, 3, 5, 8, 9, 19, 31, 33, 63, 80, 100, 129, 513, 1030}) {
      std::vector<int> counts(3 * 11 * n), values(counts.size() + 1, -1);
      View<int, 3> count = dense(counts.data(), 3, 11, n), value = dense(values.data(), 3, 11, n);
      for_each(dev, count, [=] KERNEL(int64_t i, int64_t j, int64_t k) { count(i, j, k) += 1; });
      const auto number = [=] KERNEL(int64_t i, int64_t j, int64_t k) {
        return static_cast<int64_t>(1000 * (100 * i + j) + count(i, j, k));
      };
      fill(dev, value, number);
      for (int each : counts) EXPECT(each == 1);
      for (int64_t i = 0; i < 3 * 11 * n; ++i) {
        EXPECT(values[i] == 1000 * (100 * (i / n / 11) + i / n % 11) + 1);
      }
      EXPECT(values.back() == -1);
    }
    for (int64_t n : {1, 70000}) {
      std::vector<float> line(n);
      View<float, 1> view = dense(line.data(), n);
      fill(dev, view, [=] KERNEL(int64_t i) { return view(i) + static_cast<float>(i); });
      for (int64_t i = 0; i < n; ++i) EXPECT(line[i] == static_cast<float>(i));
    }
  });
}

CASE(rows_are_summed_in_parts) {
  on_each_device([](Device& dev) {
    for (int64_t rows : {0, 1, 31, 32, 33, 100}) {
      for (int64_t n : {0, 1, 7, 64, 65, 300}) {
        std::vector<float> squares(rows * n, -1.0f), totals(n, -1.0f), again(n, -1.0f);
        View<float, 2> square = dense(squares.data(), rows, n);
        View<float, 1> total = dense(totals.data(), n), other = dense(again.data(), n);
        sum_rows(dev, rows, total, [=] KERNEL(int64_t i, int64_t k) {
          square(i, k) = static_cast<float>(i * i);
          return static_cast<float>(i * i + k);
        });
        for (int64_t i = 0; i < rows * n; ++i) {
          EXPECT(squares[i] == static_cast<float>(i / n * (i / n)));
        }
        const float all = static_cast<float>((rows - 1) * rows * (2 * rows - 1) / 6);
        for (int64_t k = 0; k < n; ++k) EXPECT(totals[k] == all + static_cast<float>(rows * k));
        if (rows > 0) add_rows(dev, square, other);
        for (int64_t k = 0; rows > 0 && k < n; ++k) EXPECT(again[k] == all);
      }
    }
  });
}

CASE(teams_fill_rows_and_sum_columns) {
  on_each_device([](Device& dev) {
    for (int64_t d : {1, 5, 64, 65, 600}) {
      std::vector<double> rows(3 * d), sums(3 * d);
      View<double, 2> row = dense(rows.data(), 3, d), sum = dense(sums.data(), 3, d);
      for_each_item(dev, 3, [=] KERNEL(Team team, int64_t n) {
        team.fill(at(row, n), [=](int64_t i) { return static_cast<int>(i + n); });
        team.sums(at(sum, n), n, 9, [=](int64_t i, int64_t k) { return i * row(n, k); });
      });
      for (int64_t n = 0; n < 3; ++n) {
        const int64_t all = n == 2 ? 35 : 36;
        for (int64_t i = 0; i < d; ++i) {
          EXPECT(row(n, i) == static_cast<double>(i + n));
          EXPECT(sum(n, i) == static_cast<double>(all * (i + n)));
        }
      }
    }
  });
}

CASE(warps_share_the_items_of_a_team) {
  on_each_device([](Device& dev) {
    for (int64_t d : {1, 5, 32, 65}) {
      constexpr int64_t kRows = 7;
      std::vector<double> rows(2 * kRows * d), sums(2 * kRows), largest(2 * kRows);
      View<double, 3> row = dense(rows.data(), 2, kRows, d);
      View<double, 2> sum = dense(sums.data(), 2, kRows), most = dense(largest.data(), 2, kRows);
      for_each_large_item(dev, 2, [=] KERNEL(Team team, int64_t n) {
        team.each_by_warp(0, kRows, [=](Warp warp, int64_t i) {
          warp.each(0, d, [=](int64_t k) { row(n, i, k) = static_cast<double>(100 * i + k + n); });
          warp.sync();
          const double all = warp.sum(0, d, [=](int64_t k) { return row(n, i, d - 1 - k); });
          const double top = warp.max(0, d, [=](int64_t k) { return row(n, i, d - 1 - k); });
          if (warp.rank() == 0) sum(n, i) = all, most(n, i) = top;
        });
      });
      for (int64_t n = 0; n < 2; ++n) {
        for (int64_t i = 0; i < kRows; ++i) {
          EXPECT(sum(n, i) == static_cast<double>(d * (100 * i + n) + d * (d - 1) / 2));
          EXPECT(most(n, i) == static_cast<double>(100 * i + d - 1 + n));
        }
      }
    }
  });
}

CASE(tiles_exchange_through_shared_memory) {
  on_each_device([](Device& dev) {
    for (int64_t n : {0, 1, 33, 50}) {
      Array<float> x(2, n, 41, Layout::kGaps), y(2, 41, n);
      In<float, 3> in = x.in();
      Out<float, 3> out = y.view;
      for_each_tile(dev, in, [=] KERNEL(Block block) {
        SHARED float tile[kTile][kTile + 1];
        PerThread<float> add(1.0f);
        block.each([&](int r, int c) {
          const int64_t i = block.row + r, j = block.col + c;
          if (i < in.size(1) && j < in.size(2)) tile[c][r] = in(block.batch, i, j);
          add(r, c) += static_cast<float>(r);
        });
        block.sync();
        block.each([&](int r, int c) {
          const int64_t i = block.row + c, j = block.col + r;
          const float own = add(r, c) - static_cast<float>(r);
          if (i < in.size(1) && j < in.size(2)) out(block.batch, j, i) = tile[r][c] + own;
        });
      });
      x.each(
          [&](int64_t b, int64_t i, int64_t j) { EXPECT(y.view(b, j, i) == x.view(b, i, j) + 1); });
      EXPECT(y.intact());
    }
  });
}

CASE(teams_reduce_and_proceed_in_phases) {
  on_each_device([](Device& dev) {
    for (int64_t items : {0, 1, 7}) {
      const int64_t d = 219;
      Array<float> x(1, items, d), y(1, items, d);
      std::vector<float> facts(items * 4);
      In<float, 3> in = x.in();
      Out<float, 3> out = y.view;
      View<float, 2> fact = dense(facts.data(), items, 4);
      for_each_item(dev, items, [=] KERNEL(Team team, int64_t n) {
        SHARED float row[256];
        team.each(0, d, [&](int64_t i) { row[i] = in(0, n, i); });
        team.sync();
        team.each(0, d, [&](int64_t i) { out(0, n, i) = row[d - 1 - i]; });
        const float sum = team.sum(0, d, [&](int64_t i) { return row[i]; });
        const float most = team.max(3, d, [&](int64_t i) { return row[i]; });
        const float least = team.min(3, d, [&](int64_t i) { return row[i]; });
        const bool any = team.any(0, d, [&](int64_t i) { return row[i] > 1.9f; });
        team.each(0, 1, [&](int64_t) {
          fact(n, 0) = sum;
          fact(n, 1) = most;
          fact(n, 2) = least;
          fact(n, 3) = any ? 1.0f : 0.0f;
        });
      });
      for (int64_t n = 0; n < items; ++n) {
        float sum = 0, most = -9, least = 9, any = 0;
        for (int64_t i = 0; i < d; ++i) {
          const float v = x.view(0, n, i);
          EXPECT(y.view(0, n, d - 1 - i) == v);
          sum += v;
          if (i >= 3) most = max2(most, v), least = min2(least, v);
          if (v > 1.9f) any = 1;
        }
        EXPECT(fact(n, 0) == sum && fact(n, 1) == most && fact(n, 2) == least && fact(n, 3) == any);
      }
    }
  });
}

CASE(teams_have_scratch_of_any_size) {
  on_each_device([](Device& dev) {
    for (int64_t count : {1, 100, 9000}) {
      std::vector<double> sums(5);
      View<double, 1> sum = dense(sums.data(), 5);
      for_each_item<double>(dev, 5, count, [=] KERNEL(Team team, int64_t n, View<double, 1> s) {
        team.each(0, s.size(0), [&](int64_t i) { s(i) = static_cast<double>(i + n); });
        team.sync();
        const int64_t last = s.size(0) - 1;
        const double total = team.sum(0, s.size(0), [&](int64_t i) { return s(last - i); });
        team.each(0, 1, [&](int64_t) { sum(n) = total; });
      });
      for (int64_t n = 0; n < 5; ++n) {
        EXPECT(sums[n] == static_cast<double>(count * (count - 1) / 2 + n * count));
      }
    }
  });
}

CASE(launch_runs_every_block_of_the_grid) {
  on_each_device([](Device& dev) {
    std::vector<int> seen(3 * 2 * 4);
    View<int, 3> s = dense(seen.data(), 4, 2, 3);
    launch(dev, Dim3(3, 2, 4), Dim3(32), [=] KERNEL() {
      if (threadIdx.x == 0) s(blockIdx.z, blockIdx.y, blockIdx.x) += 1;
    });
    for (int count : seen) EXPECT(count == 1);
    launch(dev, Dim3(3, 0), Dim3(32), [=] KERNEL() { s(0, 0, 0) = 7; });
    EXPECT(seen[0] == 1);
  });
}

CASE(range_gives_every_index_to_one_thread) {
  on_each_device([](Device& dev) {
    for (int64_t n : {0, 1, 2, 31, 1000, 50001}) {
      for (unsigned grid : {grid_for(n), 3u}) {
        std::vector<int> seen(n);
        View<int, 1> s = dense(seen.data(), n);
        launch(dev, grid, 64, [=] KERNEL() {
          for (int64_t i : range(n)) s(i) += 1;
        });
        for (int count : seen) EXPECT(count == 1);
      }
    }
  });
}

CASE(kernels_in_cuda_style_count_and_sum) {
  on_each_device([](Device& dev) {
    const int64_t n = 3000;
    std::vector<int> bins(10);
    std::vector<int64_t> wide(1);
    std::vector<float> sums(4);
    View<int, 1> bin = dense(bins.data(), 10);
    View<int64_t, 1> total = dense(wide.data(), 1);
    View<float, 1> sum = dense(sums.data(), 4);
    launch(dev, 4, 64, [=] KERNEL() {
      SHARED int local[10];
      for (unsigned i = threadIdx.x; i < 10; i += blockDim.x) local[i] = 0;
      __syncthreads();
      float own = 0, most = -1;
      for (int64_t i : range(n)) {
        atomicAdd(&local[i % 10], 1);
        own += 1;
        most = max2(most, static_cast<float>(i));
      }
      __syncthreads();
      for (unsigned i = threadIdx.x; i < 10; i += blockDim.x) atomicAdd(&bin(i), local[i]);
      const float all = block_sum(own);
      const bool positive = block_max(most) > 0 && warp_sum(1.0f) >= 1;
      if (threadIdx.x == 0) sum(blockIdx.x) = positive ? all : -1;
      if (threadIdx.x == 0) atomicAdd(&total(0), int64_t{1} << 40);
    });
    for (int count : bins) EXPECT(count == 300);
    EXPECT(sums[0] + sums[1] + sums[2] + sums[3] == n);
    EXPECT(wide[0] == int64_t{4} << 40);
  });
}

// The text of a CUDA kernel as people know it, from the grid-stride loop to the shuffles.
CASE(cuda_text_runs_as_it_is) {
  on_each_device([](Device& dev) {
    const int n = 3000;
    std::vector<float> from(n), to(n);
    for (int i = 0; i < n; ++i) from[i] = static_cast<float>(i % 7);
    const float* x = from.data();
    float* y = to.data();
    float total = 0, largest = 0, first[2] = {};
    float *sum = &total, *most = &largest, *lanes = first;
    launch(dev, dim3(4), dim3(64), [=] KERNEL() {
      __shared__ float part[32];
      float own = 0, high = 0;
      int idx = threadIdx.x + blockDim.x * blockIdx.x;
      while (idx < n) {
        y[idx] = 2 * x[idx];
        own += x[idx];
        high = max2(high, x[idx]);
        idx += gridDim.x * blockDim.x;
      }
      for (int offset = warpSize / 2; offset > 0; offset /= 2) {
        own += __shfl_down_sync(0xffffffff, own, offset);
        high = max2(high, __shfl_xor_sync(0xffffffff, high, offset));
      }
      const unsigned warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
      if (lane == 0) part[warp] = own;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (unsigned w = 0; w < (blockDim.x + warpSize - 1) / warpSize; ++w)
          atomicAdd(sum, part[w]);
      }
      __syncthreads();
      if (threadIdx.x == 0) part[0] = 0;
      __syncthreads();
      const float told = __shfl_sync(0xffffffff, high, 0);
      const float before = __shfl_up_sync(0xffffffff, static_cast<float>(lane), 1);
      __syncwarp();
      if (blockIdx.x == 0 && threadIdx.x == 0) *most = told, lanes[0] = before;
    });
    float expected = 0;
    for (int i = 0; i < n; ++i) {
      EXPECT(to[i] == 2 * from[i]);
      expected += from[i];
    }
    EXPECT(total == expected && largest == 6 && first[0] == 0);
  });
}

#if defined(NATIVEOPS_CPU_THREADS)
using RefusedShuffle = std::runtime_error;
#else
using RefusedShuffle = NoSuchLane;
#endif
CASE(shuffles_beyond_the_warp_are_refused) {
  on_each_device([](Device& dev) {
    bool refused = false;
    try {
      launch(dev, 1, 20, [=] KERNEL() { __shfl_down_sync(0xffffffff, 1.0f, 16); });
    } catch (const RefusedShuffle& error) {
      refused = std::string(error.what()).find("warp") != std::string::npos;
    }
    EXPECT(refused);
  });
}

CASE(floats_add_atomically_in_kernels_of_users) {
  on_each_device([](Device& dev) {
    float sum = 0;
    float* target = &sum;
    double sum_of_doubles = 0;
    double* wide = &sum_of_doubles;
    launch(dev, 7, 64, [=] KERNEL() {
      for (int64_t i : range(1000)) {
        if (i >= 0) atomicAdd(target, 0.5f);
        atomicAdd(wide, 0.25);
      }
    });
    EXPECT(sum == 500 && sum_of_doubles == 250);
  });
}

CASE(exceptions_come_out_of_parallel) {
  on_each_device([](Device& dev) {
    bool caught = false;
    try {
      dev.parallel(100, [](int64_t i) {
        if (i == 57) throw std::runtime_error("57");
      });
    } catch (const std::runtime_error& error) {
      caught = std::string(error.what()) == "57";
    }
    EXPECT(caught);
  });
}

CASE(entries_turn_exceptions_into_a_status) {
  char message[64] = "";
  NativeopsCall call{};
  call.services = &harness::kSerial;
  call.message = message;
  call.message_size = sizeof(message);
  EXPECT(guard(&call, [](Device&) {}) == kNativeopsOk);
  EXPECT(guard(&call, [](Device& dev) { dev.workspace<double>(int64_t{1} << 50); }) ==
         kNativeopsNoMemory);
  EXPECT(guard(&call, [](Device& dev) { dev.workspace<double>(INT64_MAX); }) == kNativeopsNoMemory);
  EXPECT(guard(&call, [](Device&) { throw std::runtime_error("the reason"); }) == kNativeopsFailed);
  EXPECT(std::string(message) == "the reason");
}

CASE(entries_see_tensors_as_views) {
  double numbers[12];
  for (int i = 0; i < 12; ++i) numbers[i] = i;
  int64_t shape[] = {2, 3}, strides[] = {6, 2};
  const NativeopsTensor tensor{numbers, kNativeopsCpu, 0, 2, {kNativeopsFloat, 64, 1},
                               shape,   strides,       8};
  NativeopsCall call{};
  call.inputs = &tensor;
  const In<double, 2> view = input<double, 2>(&call, 0);
  EXPECT(view.size(0) == 2 && view.size(1) == 3 && view(1, 2) == 11 && view(0, 0) == 1);
  NativeopsTensor unneeded = tensor;
  unneeded.data = nullptr;
  call.outputs = &unneeded;
  EXPECT(!(output<double, 2>(&call, 0)));
}

}  // namespace nativeops

int main(int argc, char** argv) { return harness::run(argc, argv); }
