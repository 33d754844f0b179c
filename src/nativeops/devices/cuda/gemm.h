// SPDX-License-Identifier: Apache-2.0
// gemm on CUDA: cuBLAS, opened when a kernel first multiplies. It is not linked, and a machine
// without it needs none.
#pragma once
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

#include "nativeops/devices/cuda/device.h"
#include "nativeops/devices/product.h"

namespace nativeops::matrix_product {

// The numbers of cuBLAS' enumerations that are used.
enum : int { kAsItIs = 0, kTransposed = 1, kDefaultAlgorithm = -1 };
// Parts of a sum are not added up in the dtype of the result, where that is a narrower one.
enum : int { kSumsAsAsked = 16 };
template <class T>
constexpr int kCublasType = std::is_same_v<T, float>    ? 0
                            : std::is_same_v<T, double> ? 1
                            : std::is_same_v<T, bf16>   ? 14
                                                        : 2;
template <class T>
constexpr int kCublasSums = std::is_same_v<T, double> ? 70 : 68;  // in float64, else in float32

// A library of cuBLAS, and one handle per device; a handle serves one call at a time.
class Cublas {
 public:
  using Handle = struct cublasContext*;

  static Cublas& instance() {
    static Cublas library;
    return library;
  }

  // c = alpha·a·b + beta·c of column-major matrices, each with its transposition and the step from
  // one column to the next.
  struct Matrix {
    const void* data;
    int transposed;
    int64_t step, batch_step;
  };
  template <class Tab, class T>
  void multiply(Device& dev, const int64_t (&size)[3], int64_t batch, Matrix a, Matrix b, Matrix c,
                Scaled<Accum<T>> scaled) {
    const size_t bytes = workspace_bytes(dev.device_id);
    const Workspace<char> own = dev.workspace<char>(static_cast<int64_t>(bytes));
    std::lock_guard<std::mutex> lock(mutex_);
    const Handle handle = handle_of(dev.device_id);
    check(set_stream_(handle, dev.stream), "take the stream");
    check(set_workspace_(handle, own.data(), bytes), "take a workspace");
    check(gemm_(handle, a.transposed, b.transposed, size[0], size[1], size[2], &scaled.alpha,
                a.data, kCublasType<Tab>, a.step, a.batch_step, b.data, kCublasType<Tab>, b.step,
                b.batch_step, &scaled.beta, const_cast<void*>(c.data), kCublasType<T>, c.step,
                c.batch_step, batch, kCublasSums<T>, kDefaultAlgorithm),
          "multiply");
  }

 private:
  Cublas() {
    void* library = nullptr;
    // What a framework has loaded suits the driver; another version may not.
    for (const int how : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
      for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
        if (!library) library = dlopen(name, how);
      }
    }
    if (!library) {
      throw std::runtime_error(
          "gemm: cuBLAS was not found: install it (`pip install nvidia-cublas`), or put "
          "libcublas.so.12 or .13 on LD_LIBRARY_PATH.");
    }
    look_up(library, "cublasCreate_v2", create_);
    look_up(library, "cublasSetStream_v2", set_stream_);
    look_up(library, "cublasSetWorkspace_v2", set_workspace_);
    look_up(library, "cublasSetMathMode", set_math_mode_);
    look_up(library, "cublasGemmStridedBatchedEx_64", gemm_);
  }

  template <class Function>
  static void look_up(void* library, const char* name, Function& function) {
    void* address = dlsym(library, name);
    if (!address) throw std::runtime_error(std::string("gemm: cuBLAS lacks ") + name + ".");
    std::memcpy(&function, &address, sizeof address);
  }
  static void check(int status, const char* what) {
    if (status == 0) return;
    throw std::runtime_error(std::string("gemm: cuBLAS could not ") + what + ", status " +
                             std::to_string(status) + ".");
  }
  // What cuBLAS takes by itself; but that one serves all streams, and with two at work NVIDIA does
  // not promise the same bits for the same numbers.
  static size_t workspace_bytes(int device) {
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "tell what the GPU is");
    return size_t{major >= 9 ? 32u : 4u} << 20;
  }
  Handle handle_of(int device) {
    Handle& handle = handles_[device];
    if (handle) return handle;
    // Also while a graph of calls is recorded, which this is none of: it allocates.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "start cuBLAS");
    const int status = create_(&handle);
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "start cuBLAS");
    check(status, "start");
    check(set_math_mode_(handle, kSumsAsAsked), "take the kind of sums");
    return handle;
  }

  int (*create_)(Handle*) = nullptr;
  int (*set_stream_)(Handle, cudaStream_t) = nullptr;
  int (*set_workspace_)(Handle, void*, size_t) = nullptr;
  int (*set_math_mode_)(Handle, int) = nullptr;
  int (*gemm_)(Handle, int, int, int64_t, int64_t, int64_t, const void*, const void*, int, int64_t,
               int64_t, const void*, int, int64_t, int64_t, const void*, void*, int, int64_t,
               int64_t, int64_t, int, int) = nullptr;
  std::mutex mutex_;
  std::map<int, Handle> handles_;  // they live as long as the process
};

// Whether cuBLAS can read a matrix where it lies, as rows or as columns.
template <class T>
bool lies_in_rows(const View<T, 3>& m) {
  return m.stride(2) == 1 && m.stride(1) >= max2<int64_t>(1, m.size(2)) && m.stride(0) >= 0;
}
template <class T>
bool lies_in_columns(const View<T, 3>& m) {
  return m.stride(1) == 1 && m.stride(2) >= max2<int64_t>(1, m.size(1)) && m.stride(0) >= 0;
}

template <class From, class T>
void copy_matrices(Device& dev, In<From, 3> from, Out<T, 3> to) {
  for_each(dev, to, [=] KERNEL(int64_t n, int64_t i, int64_t j) {
    to(n, i, j) = T(static_cast<Accum<From>>(from(n, i, j)));
  });
}

// A matrix that cuBLAS can read as numbers of type T: the view itself, or a copy in rows.
template <class From, class T>
class Readable {
 public:
  Readable(Device& dev, In<From, 3> m)
      : copied_(!std::is_same_v<From, T> || (!lies_in_rows(m) && !lies_in_columns(m))),
        memory_(dev.workspace<T>(copied_ ? m.count() : 0)) {
    if (copied_) {
      const Out<T, 3> to = dense(memory_.data(), m.size(0), m.size(1), m.size(2));
      copy_matrices<From, T>(dev, m, to);
      view_ = to;
    } else if constexpr (std::is_same_v<From, T>) {
      view_ = m;
    }
  }
  // cuBLAS' matrices are column-major: rows are the transposed matrix as it is.
  Cublas::Matrix transposed() const {
    const bool rows = lies_in_rows(view_);
    return {view_.data, rows ? kAsItIs : kTransposed, view_.stride(rows ? 1 : 2), view_.stride(0)};
  }

 private:
  In<T, 3> view_{};
  const bool copied_;
  const Workspace<T> memory_;
};

// cᵀ = bᵀ·aᵀ of column-major matrices is c = a·b of row-major ones. cuBLAS takes matrices of one
// dtype, and makes one of that or of what it sums up in.
template <class Ta, class Tb, class T>
void multiply(Device& dev, In<Ta, 3> a, In<Tb, 3> b, Out<T, 3> c, Scaled<Accum<T>> scaled) {
  constexpr bool kKnown =
      std::is_same_v<Ta, Tb> && (std::is_same_v<T, Ta> || std::is_same_v<T, Accum<Ta>>);
  using Operand = std::conditional_t<kKnown, Ta, Accum<T>>;
  using Result = std::conditional_t<kKnown, T, Accum<T>>;
  if constexpr (kKnown) {
    if (!lies_in_rows(c) && lies_in_columns(c)) {
      return multiply<Tb, Ta, T>(dev, transpose(b), transpose(a), transpose(c), scaled);
    }
  }
  const bool direct = std::is_same_v<T, Result> && lies_in_rows(c);
  const auto memory = dev.template workspace<Result>(direct ? 0 : c.count());
  Out<Result, 3> rows = dense(memory.data(), c.size(0), c.size(1), c.size(2));
  if constexpr (std::is_same_v<T, Result>) {
    if (direct) rows = c;
  }
  if (!direct && scaled.beta != 0) copy_matrices<T, Result>(dev, c, rows);
  const Readable<Ta, Operand> left(dev, a);
  const Readable<Tb, Operand> right(dev, b);
  Cublas::instance().multiply<Operand, Result>(
      dev, {c.size(2), c.size(1), a.size(2)}, c.size(0), right.transposed(), left.transposed(),
      {rows.data, kAsItIs, rows.stride(1), rows.stride(0)}, scaled);
  if (!direct) copy_matrices<Result, T>(dev, rows, c);
}

}  // namespace nativeops::matrix_product
