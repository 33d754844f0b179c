// SPDX-License-Identifier: Apache-2.0
// Loops that g++ must vectorise on every instruction set; test_toolkit.py reads its report on them.
#include "nativeops/devices/kernel.h"

namespace nativeops {

#define LOOP(name, To, From, expression)                          \
  void name(const From* __restrict x, To* __restrict y, long n) { \
    for (long i = 0; i < n; ++i) y[i] = To(expression);           \
  }

LOOP(exps, float, float, exp(x[i]))
LOOP(logs, float, float, log(x[i]))
LOOP(log1ps, float, float, log1p(x[i]))
LOOP(tanhs, float, float, tanh(x[i]))
LOOP(sigmoids, float, float, sigmoid(x[i]))
LOOP(erfs, float, float, erf(x[i]))
LOOP(roots, float, float, sqrt(x[i]))
LOOP(logaddexps, float, float, logaddexp(x[i], y[i]))
LOOP(signs, float, float, sign(x[i]))
LOOP(maxima, float, float, max_or_nan(x[i], y[i]))
LOOP(exps_of_doubles, double, double, exp(x[i]))
LOOP(logs_of_doubles, double, double, log(x[i]))
LOOP(log1ps_of_doubles, double, double, log1p(x[i]))
LOOP(tanhs_of_doubles, double, double, tanh(x[i]))
LOOP(sigmoids_of_doubles, double, double, sigmoid(x[i]))
LOOP(erfs_of_doubles, double, double, erf(x[i]))
LOOP(widened_f16, float, f16, x[i])
LOOP(widened_bf16, float, bf16, x[i])
LOOP(narrowed_f16, f16, float, x[i])
LOOP(narrowed_bf16, bf16, float, x[i])

}  // namespace nativeops
