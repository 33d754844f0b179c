// SPDX-License-Identifier: Apache-2.0
// gemm on the CPU: a product that the package has compiled for every instruction set
// (matrix_product.h), so that a kernel with products compiles as fast as one without.
#pragma once
#include <new>
#include <stdexcept>
#include <type_traits>

#include "nativeops/devices/cpu/block.h"
#include "nativeops/devices/product.h"

namespace nativeops::matrix_product {

template <class T>
constexpr NativeopsDtype kDtype = {std::is_same_v<T, bf16> ? kNativeopsBfloat : kNativeopsFloat,
                                   8 * sizeof(T), 1};

template <class T>
NativeopsMatrices described(const View<T, 3>& m) {
  static_assert(std::is_floating_point_v<Accum<T>>, "gemm multiplies float64, float32, bf16, f16");
  return {const_cast<std::remove_const_t<T>*>(m.data),
          kDtype<std::remove_const_t<T>>,
          {m.size(0), m.size(1), m.size(2)},
          {m.stride(0), m.stride(1), m.stride(2)}};
}

template <class Ta, class Tb, class T>
void multiply(Device& dev, In<Ta, 3> a, In<Tb, 3> b, Out<T, 3> c, Scaled<Accum<T>> scaled) {
#if defined(__SANITIZE_ADDRESS__) && defined(NATIVEOPS_USER_OP)
  by_contract(dev, a, b, c, scaled);  // compiled here, where each access is watched
#else
  static_assert(std::is_same_v<Accum<Ta>, Accum<T>> && std::is_same_v<Accum<Tb>, Accum<T>>,
                "gemm sums up float64 in float64, and all others in float32: mix only the latter");
  const NativeopsProduct product{described(a), described(b), described(c),
                                 static_cast<double>(scaled.alpha),
                                 static_cast<double>(scaled.beta)};
  const int32_t status = dev.services->multiply(dev.services, dev.call, &product);
  if (status == kNativeopsNoMemory) throw std::bad_alloc();
  if (status != kNativeopsOk) throw std::runtime_error("gemm: no library here multiplies.");
#endif
}

}  // namespace nativeops::matrix_product
