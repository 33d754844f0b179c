// SPDX-License-Identifier: Apache-2.0
// The C ABI between the core and a library of kernels. It names no framework.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define NATIVEOPS_ABI 5
#define NATIVEOPS_MAX_RANK 16
#define NATIVEOPS_MAX_ARRAYS 48
#define NATIVEOPS_MAX_ATTRIBUTES 16

#ifdef __cplusplus
extern "C" {
#endif

// Device codes and dtype codes are DLPack's.
enum { kNativeopsCpu = 1, kNativeopsCuda = 2 };
enum {
  kNativeopsInt = 0,
  kNativeopsUInt = 1,
  kNativeopsFloat = 2,
  kNativeopsBfloat = 4,
  kNativeopsBool = 6
};

typedef struct NativeopsDtype {
  uint8_t code, bits;
  uint16_t lanes;
} NativeopsDtype;

// Has the layout of DLPack's DLTensor. Strides count elements.
typedef struct NativeopsTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  NativeopsDtype dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} NativeopsTensor;

typedef union NativeopsAttribute {
  int64_t integer;  // int, bool, and the position of a str among its choices
  double real;
} NativeopsAttribute;

struct NativeopsCall;

// Memory lent for the time of a call.
typedef struct NativeopsMemory {
  void* data;   // aligned to 64 bytes; null when there is none
  void* owner;  // what its allocator knows it by
  size_t bytes;
} NativeopsMemory;

// A batch of matrices. Strides count elements.
typedef struct NativeopsMatrices {
  void* data;
  NativeopsDtype dtype;
  int64_t size[3], stride[3];
} NativeopsMatrices;

// c = alpha·a·b + beta·c; what was in c does not count where beta is 0.
typedef struct NativeopsProduct {
  NativeopsMatrices a, b, c;
  double alpha, beta;
} NativeopsProduct;

struct NativeopsServices;

// Computes a product on the CPU. The sizes fit and the result is not empty.
typedef int32_t (*NativeopsMultiply)(const struct NativeopsServices* services,
                                     const struct NativeopsCall* call,
                                     const NativeopsProduct* product);

// What the core lends to a kernel.
typedef struct NativeopsServices {
  uint32_t size;  // of this struct, so that later fields can be told apart
  // Runs body(context, i) for every i in [0, n), spread over the thread pool; returns when all are
  // done.
  void (*parallel)(int64_t n, void (*body)(void* context, int64_t i), void* context);
  int32_t (*num_threads)(void);
  // A workspace: memory of the call's device from the framework's allocator, where it has one. On
  // CUDA it is safe to give it back before the stream is done with it. Any thread of the kernel may
  // ask. Null on CUDA where the framework has no allocator: a kernel then asks the driver.
  NativeopsMemory (*allocate)(const struct NativeopsCall* call, size_t bytes);
  void (*release)(const struct NativeopsCall* call, NativeopsMemory memory);
  // 1 where another process has just taken a CPU from the pool's threads: small work is then done
  // sooner by one of them.
  int32_t (*crowded)(void);
  // With the best instructions in use, whatever the caller was compiled for. Null on CUDA.
  NativeopsMultiply multiply;
} NativeopsServices;

typedef struct NativeopsCall {
  uint32_t size;
  int32_t device_id;
  void* stream;                   // the framework's CUDA stream; null on the CPU
  const NativeopsTensor* inputs;  // leading batch axes folded into one; data is null if absent
  NativeopsTensor* outputs;       // data is null for a kept result that nobody needs
  const NativeopsAttribute* attributes;
  const NativeopsServices* services;
  void* frame;    // the framework's own word for the call, for its allocator
  char* message;  // where a failing kernel writes its sentence
  size_t message_size;
} NativeopsCall;

// 0 when all went well; else NativeopsCall.message says what did not.
typedef int32_t (*NativeopsKernel)(const NativeopsCall* call);
enum { kNativeopsOk = 0, kNativeopsFailed = 1, kNativeopsNoMemory = 2 };

typedef struct NativeopsEntry {
  const char* op;
  const char* signature;  // as declared when the library was built: tells a stale build
  const char* dtypes;     // of the dtype variables, for example "float32" or "float32,int64"
  int32_t tuned;          // 1: a variant for this device beside the portable kernel
  NativeopsKernel kernel;
} NativeopsEntry;

typedef struct NativeopsLibrary {
  int32_t abi;
  const char* device;  // "cpu", "cpu-threads" or "cuda"
  const char* level;   // the instruction set: "portable", "avx2", "avx512", "amx"; "" elsewhere
  int32_t n_entries;
  const NativeopsEntry* entries;
  // Float32 numbers in a vector, and how many vector operations all threads do in a second, in a
  // mix of 2 (choose the smaller, add), 3 (subtract, clear the sign, add) or 4 (subtract, sign, add
  // twice); 0 and null without vectors.
  int32_t lanes;
  double (*vector_rate)(const NativeopsServices* services, int32_t mix);
  // Copies inputs[0] to outputs[0], of the same shape, on a device whose memory the core cannot
  // read; else null.
  NativeopsKernel copy;
  // With this library's instructions; null where a library lends none.
  NativeopsMultiply multiply;
} NativeopsLibrary;

// The one symbol that a library of kernels exports.
typedef const NativeopsLibrary* (*NativeopsLibraryFunction)(void);
#define NATIVEOPS_LIBRARY_SYMBOL "nativeops_library"

#ifdef __cplusplus
}
#endif
