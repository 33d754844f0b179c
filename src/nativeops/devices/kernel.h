// SPDX-License-Identifier: Apache-2.0
// What a kernel includes: views, numbers, mathematics and the loop shapes of the device it is
// compiled for (products of matrices, which few need, are in gemm.h). One source serves three
// devices:
//   nvcc                        CUDA
//   g++                         the CPU: a block is one thread, blocks run on the pool
//   g++ -DNATIVEOPS_CPU_THREADS the CPU as a debugger: a block is many threads, as on CUDA
#pragma once
#include "nativeops/devices/half.h"
#include "nativeops/devices/math.h"
#include "nativeops/devices/view.h"

#if defined(__CUDACC__)
#include "nativeops/devices/cuda/block.h"
#include "nativeops/devices/cuda/device.h"
#elif defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu_threads/block.h"
#else
#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/cpu/contract.h"
#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/for_each.h"
#include "nativeops/devices/cpu/sums.h"
#include "nativeops/devices/cpu/team.h"
#include "nativeops/devices/cpu/tile.h"
#endif

#if defined(__CUDACC__) || defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/blocks/contract.h"
#include "nativeops/devices/blocks/for_each.h"
#include "nativeops/devices/blocks/reduce.h"
#include "nativeops/devices/blocks/sums.h"
#include "nativeops/devices/blocks/team.h"
#include "nativeops/devices/blocks/tile.h"
#endif
