// SPDX-License-Identifier: Apache-2.0
// For programs whose kernels multiply matrices: the product that the core would lend them.
#pragma once
#include "harness.h"
#if !defined(NATIVEOPS_CPU_THREADS)
#include "nativeops/devices/cpu/matrix_product.h"

static const bool has_products =
    (harness::multiplier() = nativeops::matrix_product::multiply_any, true);
#endif
