// SPDX-License-Identifier: Apache-2.0
// TensorFlow: each op with one kernel and one shape function, through TensorFlow's C API. No header
// of TensorFlow is used; its functions are looked up when the first tensor is seen.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "nativeops/bindings/core.h"

// Opaque types of the C API.
struct TF_DimensionHandle;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace nativeops::tensorflow {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void*, TF_OpKernelContext*);
using DeleteFunction = void (*)(void*);

// TF_AllocatorAttributes.
struct AllocatorAttributes {
  size_t struct_size;
  unsigned char on_host;
};

// Each function of the C API that is used: result, name behind `TF_`, parameters.
#define NATIVEOPS_TENSORFLOW_FUNCTIONS(F)                                                         \
  F(TF_Status*, NewStatus, ())                                                                    \
  F(void, DeleteStatus, (TF_Status*))                                                             \
  F(void, SetStatus, (TF_Status*, int, const char*))                                              \
  F(int, GetCode, (const TF_Status*))                                                             \
  F(const char*, Message, (const TF_Status*))                                                     \
  F(void*, TensorData, (const TF_Tensor*))                                                        \
  F(int, NumDims, (const TF_Tensor*))                                                             \
  F(int64_t, Dim, (const TF_Tensor*, int))                                                        \
  F(int, TensorType, (const TF_Tensor*))                                                          \
  F(void, DeleteTensor, (TF_Tensor*))                                                             \
  F(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                               \
  F(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                            \
  F(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                     \
  F(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                    \
  F(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                   \
  F(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction)) \
  F(TF_KernelBuilder*, NewKernelBuilder,                                                          \
    (const char*, const char*, CreateFunction, ComputeFunction, DeleteFunction))                  \
  F(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                    \
  F(void, OpKernelConstruction_GetAttrInt64,                                                      \
    (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))                                \
  F(void, OpKernelConstruction_GetAttrSize,                                                       \
    (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                      \
  F(void, OpKernelConstruction_GetAttrStringList,                                                 \
    (TF_OpKernelConstruction*, const char*, char**, size_t*, int, void*, size_t, TF_Status*))     \
  F(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                   \
  F(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                          \
  F(TF_Tensor*, AllocateOutput,                                                                   \
    (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))                     \
  F(TF_Tensor*, AllocateTemp,                                                                     \
    (TF_OpKernelContext*, int, const int64_t*, int, const AllocatorAttributes*, TF_Status*))      \
  F(TF_Tensor*, ForwardInputOrAllocateOutput,                                                     \
    (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))           \
  F(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                             \
  F(TF_ShapeHandle*, NewShapeHandle, ())                                                          \
  F(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                   \
  F(TF_DimensionHandle*, NewDimensionHandle, ())                                                  \
  F(void, DeleteDimensionHandle, (TF_DimensionHandle*))                                           \
  F(int, DimensionHandleValueKnown, (TF_DimensionHandle*))                                        \
  F(int64_t, DimensionHandleValue, (TF_DimensionHandle*))                                         \
  F(void, ShapeInferenceContextGetInput,                                                          \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  F(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))            \
  F(int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))             \
  F(void, ShapeInferenceContextDim,                                                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, TF_DimensionHandle*))                   \
  F(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                    \
  F(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))    \
  F(void, ShapeInferenceContextConcatenateShapes,                                                 \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))   \
  F(void, ShapeInferenceContextSetOutput,                                                         \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  F(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))

struct Api {
#define NATIVEOPS_MEMBER(result, name, parameters) result(*name) parameters;
  NATIVEOPS_TENSORFLOW_FUNCTIONS(NATIVEOPS_MEMBER)
#undef NATIVEOPS_MEMBER
};
extern Api api;

// TensorFlow's numbers of errors.
enum Code : int { kOk = 0, kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };

class Status {
 public:
  Status() : status_(api.NewStatus()) {}
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { api.DeleteStatus(status_); }
  operator TF_Status*() const { return status_; }
  bool ok() const { return api.GetCode(status_) == kOk; }

 private:
  TF_Status* status_;
};

// A shape of which some sizes (core::kAnySize), or even the number of axes, are not known yet.
struct Shape {
  int rank = -1;
  int64_t size[NATIVEOPS_MAX_RANK];
};

// The outputs' shapes, as far as the inputs tell. Null attributes are not known either. False if
// the shapes cannot fit, whatever is not known.
bool infer(const core::Op& op, const Shape* inputs, const NativeopsAttribute* attributes,
           Shape* outputs);

// TensorFlow's shape function of an op.
void infer_shapes(const core::Op& op, TF_ShapeInferenceContext* context, TF_Status* status);

// Says why arguments do not fit, in the words of signature.py; nothing if it cannot be asked.
using Explain = std::string (*)(int id, const NativeopsTensor* inputs,
                                const NativeopsAttribute* attributes);
extern Explain explain;

// TensorFlow's numbers of the core's dtypes.
extern const int kTypes[core::kDtypeCount];

// TensorFlow's callbacks of an op's kernel. A kernel is an op with the attributes of one node.
void* create_kernel(int id, TF_OpKernelConstruction* construction);
void compute_kernel(void* kernel, TF_OpKernelContext* context);
void delete_kernel(void* kernel);

// Looks up the C API in the loaded library. Null, or what is missing.
const char* connect(const char* library, Explain explain);

// Registers an op with TensorFlow, or lets a registered name mean another version. Returns what
// went wrong, or nothing.
std::string implement(int id, const char* name);

}  // namespace nativeops::tensorflow
