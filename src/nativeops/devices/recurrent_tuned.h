// SPDX-License-Identifier: Apache-2.0
// The recurrent layers as tuned for the device that kernel.h chose: the same words, in namespace
// tuned, as in recurrent.h and recurrent_grad.h.
#pragma once
#if defined(__CUDACC__) || defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/blocks/recurrent_grad.h"
#else
#include "nativeops/devices/cpu/recurrent_grad.h"
#endif
