// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/xla.h"

#if __has_include("xla/ffi/api/c_api.h")
#include <xla/ffi/api/c_api.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <unordered_map>

#include "nativeops/bindings/core.h"
#include "nativeops/bindings/memory.h"

namespace nativeops::xla {
namespace {

// Names in the custom call that no attribute of an op can have.
constexpr std::string_view kKey = "op.key", kWant = "op.want";

struct Failure {
  XLA_FFI_Error_Code code;
  std::string text;
};

XLA_FFI_Error* error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = text;
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

[[noreturn]] void fail_fit(const core::Op& op) {
  throw Failure{XLA_FFI_Error_Code_INVALID_ARGUMENT, core::unfit_text(op)};
}

// XLA asks each handler once for its version. It refuses one newer than itself, and takes older
// ones; what is read below has been the same since version 0.1.
bool answer_metadata(const XLA_FFI_CallFrame& frame) {
  for (auto* e = frame.extension_start; e; e = e->next) {
    if (e->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(e)->metadata;
    const int theirs = frame.api ? frame.api->api_version.minor_version : 1;
    metadata.api_version.major_version = XLA_FFI_API_MAJOR;
    metadata.api_version.minor_version = std::min<int>(XLA_FFI_API_MINOR, theirs);
    metadata.traits = 0;
    return true;
  }
  return false;
}

int dtype_of(XLA_FFI_DataType dtype) {
  // In the order of core::kDtypes.
  constexpr XLA_FFI_DataType known[core::kDtypeCount] = {
      XLA_FFI_DataType_F32, XLA_FFI_DataType_F64, XLA_FFI_DataType_BF16, XLA_FFI_DataType_F16,
      XLA_FFI_DataType_S32, XLA_FFI_DataType_S64, XLA_FFI_DataType_U8,   XLA_FFI_DataType_PRED};
  for (int i = 0; i < core::kDtypeCount; ++i)
    if (known[i] == dtype) return i;
  return -1;
}

std::string_view text_of(const XLA_FFI_ByteSpan& span) { return {span.ptr, span.len}; }

// The position of an attribute of the custom call, -1 if there is none.
int64_t find(const XLA_FFI_Attrs& attrs, std::string_view name) {
  for (int64_t i = 0; i < attrs.size; ++i)
    if (text_of(*attrs.names[i]) == name) return i;
  return -1;
}

const core::Op& op_of(const XLA_FFI_Attrs& attrs) {
  const int64_t i = find(attrs, kKey);
  if (i < 0 || attrs.types[i] != XLA_FFI_AttrType_STRING)
    throw Failure{XLA_FFI_Error_Code_INVALID_ARGUMENT, "nativeops: a call that names no op"};
  const std::string_view key = text_of(*static_cast<XLA_FFI_ByteSpan*>(attrs.attrs[i]));
  // Ops stay where they are, and so do the keys that the map refers to.
  thread_local std::unordered_map<std::string_view, const core::Op*> known;
  if (const auto found = known.find(key); found != known.end()) return *found->second;
  const int id = core::find_op(std::string(key));
  if (id < 0)
    throw Failure{XLA_FFI_Error_Code_NOT_FOUND,
                  std::string(key) +
                      ": is not a known op. Import what declares it, and then call "
                      "`nativeops.frameworks.load(\"jax\")`."};
  const core::Op& op = core::op_at(id);
  known.emplace(op.key, &op);
  return op;
}

template <class T>
bool read_scalar(const XLA_FFI_Attrs& attrs, int64_t i, XLA_FFI_DataType dtype, T& value) {
  if (attrs.types[i] != XLA_FFI_AttrType_SCALAR) return false;
  const auto& scalar = *static_cast<XLA_FFI_Scalar*>(attrs.attrs[i]);
  if (scalar.dtype != dtype) return false;
  std::memcpy(&value, scalar.value, sizeof value);
  return true;
}

bool read_choice(const XLA_FFI_Attrs& attrs, int64_t i, const core::Attribute& spec,
                 int64_t& value) {
  if (attrs.types[i] != XLA_FFI_AttrType_STRING) return false;
  const std::string_view word = text_of(*static_cast<XLA_FFI_ByteSpan*>(attrs.attrs[i]));
  const auto at = std::find(spec.choices.begin(), spec.choices.end(), word);
  value = at - spec.choices.begin();
  return at != spec.choices.end();
}

bool read_attribute(const XLA_FFI_Attrs& attrs, const core::Attribute& spec,
                    NativeopsAttribute& value) {
  const int64_t i = find(attrs, spec.name);
  if (i < 0) {  // a program that was saved before the op got this attribute
    value = spec.fallback;
    return !spec.required;
  }
  value.integer = 0;
  switch (spec.type) {
    case core::AttributeType::integer:
      return read_scalar(attrs, i, XLA_FFI_DataType_S64, value.integer);
    case core::AttributeType::real:
      return read_scalar(attrs, i, XLA_FFI_DataType_F64, value.real);
    case core::AttributeType::choice:
      return read_choice(attrs, i, spec, value.integer);
    default: {
      bool flag;
      if (!read_scalar(attrs, i, XLA_FFI_DataType_PRED, flag)) return false;
      value.integer = flag;
      return true;
    }
  }
}

struct Arguments {
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];  // the inputs, then the outputs
  int64_t strides[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
  core::Place place;
};

// XLA's buffers are row-major, which the call's layouts ask for.
bool describe(const XLA_FFI_Buffer& buffer, const core::Place& place, NativeopsTensor& out,
              int64_t* strides) {
  const int dtype = dtype_of(buffer.dtype);
  if (dtype < 0 || buffer.rank > NATIVEOPS_MAX_RANK) return false;
  const int32_t rank = static_cast<int32_t>(buffer.rank);
  core::contiguous_strides(rank, buffer.dims, strides);
  out = {buffer.data,          place.device_type, place.device_id, rank,
         core::kDtypes[dtype], buffer.dims,       strides,         0};
  return true;
}

void read_inputs(const core::Op& op, const XLA_FFI_CallFrame& frame, Arguments& arguments) {
  if (frame.args.size != static_cast<int64_t>(op.inputs.size())) fail_fit(op);
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const auto& buffer = *static_cast<XLA_FFI_Buffer*>(frame.args.args[i]);
    if (!describe(buffer, arguments.place, arguments.tensors[i], arguments.strides[i]))
      fail_fit(op);
  }
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (!read_attribute(frame.attrs, op.attributes[i], arguments.attributes[i])) fail_fit(op);
}

// The results that the call makes are XLA's buffers; the others have a shape and no memory.
void read_outputs(const core::Op& op, const XLA_FFI_CallFrame& frame, core::Solution& solution,
                  Arguments& arguments) {
  int64_t want = op.always;
  if (const int64_t i = find(frame.attrs, kWant); i >= 0)
    if (!read_scalar(frame.attrs, i, XLA_FFI_DataType_S64, want)) fail_fit(op);
  int64_t made = 0;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    NativeopsTensor& out = arguments.tensors[op.inputs.size() + i];
    int64_t* strides = arguments.strides[op.inputs.size() + i];
    if (want >> i & 1) {
      if (made == frame.rets.size) fail_fit(op);
      const auto& buffer = *static_cast<XLA_FFI_Buffer*>(frame.rets.rets[made++]);
      if (!describe(buffer, arguments.place, out, strides) || !core::fits_output(solution, i, out))
        fail_fit(op);
      continue;
    }
    out = core::output_of(solution, i, strides, arguments.place.device_type,
                          arguments.place.device_id);
  }
  if (made != frame.rets.size) fail_fit(op);
}

void forget(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&args);
}

// Workspaces on CUDA are XLA's, which plans for all of a device's memory. Its CPU lends none.
NativeopsMemory allocate(const NativeopsCall* call, size_t bytes) {
  const auto& frame = *static_cast<const XLA_FFI_CallFrame*>(call->frame);
  XLA_FFI_DeviceMemory_Allocate_Args args{};
  args.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE;
  args.ctx = frame.ctx;
  args.size = bytes;
  args.alignment = 16;  // more is not asked for: memory of a GPU has 256
  if (XLA_FFI_Error* refused = frame.api->XLA_FFI_DeviceMemory_Allocate(&args)) {
    forget(frame.api, refused);
    args.data = nullptr;
  }
  return {args.data, nullptr, bytes};
}
void release(const NativeopsCall* call, NativeopsMemory memory) {
  const auto& frame = *static_cast<const XLA_FFI_CallFrame*>(call->frame);
  XLA_FFI_DeviceMemory_Free_Args args{};
  args.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE;
  args.ctx = frame.ctx;
  args.size = memory.bytes;
  args.data = memory.data;
  if (XLA_FFI_Error* refused = frame.api->XLA_FFI_DeviceMemory_Free(&args))
    forget(frame.api, refused);
}
const NativeopsServices* cuda_services() {
  static const NativeopsServices table = [] {
    NativeopsServices own = *core::cuda_services();
    own.allocate = allocate;
    own.release = release;
    return own;
  }();
  return &table;
}

// The stream and the device that XLA runs this call on.
XLA_FFI_Error* find_place(const XLA_FFI_CallFrame& frame, core::Place& place) {
  XLA_FFI_Stream_Get_Args stream{};
  stream.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  stream.ctx = frame.ctx;
  if (XLA_FFI_Error* refused = frame.api->XLA_FFI_Stream_Get(&stream)) return refused;
  XLA_FFI_DeviceOrdinal_Get_Args device{};
  device.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  device.ctx = frame.ctx;
  if (XLA_FFI_Error* refused = frame.api->XLA_FFI_DeviceOrdinal_Get(&device)) return refused;
  place.stream = stream.stream;
  place.device_id = device.device_ordinal;
  place.services = cuda_services();
  place.frame = const_cast<XLA_FFI_CallFrame*>(&frame);
  return nullptr;
}

void execute(const XLA_FFI_CallFrame& frame, const core::Place& place) {
  const core::Op& op = op_of(frame.attrs);
  Arguments arguments;
  arguments.place = place;
  read_inputs(op, frame, arguments);
  core::Solution solution;
  if (!core::solve(op, arguments.tensors, arguments.attributes, solution)) fail_fit(op);
  read_outputs(op, frame, solution, arguments);
  // Later eager calls in JAX may find memory for such a result: see jax_large.py.
  if (place.device_type == kNativeopsCpu)
    for (size_t i = 0; i < op.outputs.size(); ++i)
      if (solution.bytes[i] >= static_cast<int64_t>(core::kLarge)) op.note_large();
  NativeopsTensor* outputs = arguments.tensors + op.inputs.size();
  switch (core::run(op, solution, arguments.tensors, outputs, arguments.attributes, place)) {
    case core::Status::ok:
      return;
    case core::Status::no_kernel:
      throw Failure{XLA_FFI_Error_Code_UNIMPLEMENTED, core::failure_text(op)};
    case core::Status::no_memory:
      throw Failure{XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, core::failure_text(op)};
    default:
      throw Failure{
          core::refused_value() ? XLA_FFI_Error_Code_INVALID_ARGUMENT : XLA_FFI_Error_Code_INTERNAL,
          core::failure_text(op)};
  }
}

template <int DeviceType>
XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) {
  if (answer_metadata(*frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    core::Place place = {DeviceType, 0, nullptr};
    if (DeviceType == kNativeopsCuda)
      if (XLA_FFI_Error* refused = find_place(*frame, place)) return refused;
    execute(*frame, place);
    return nullptr;
  } catch (const Failure& failure) {
    return error(frame->api, failure.code, failure.text.c_str());
  } catch (const std::exception& exception) {
    return error(frame->api, XLA_FFI_Error_Code_INTERNAL, exception.what());
  }
}

}  // namespace

void* handler(const char* platform) {
  const bool cpu = std::strcmp(platform, "cpu") == 0;
  return reinterpret_cast<void*>(cpu ? handle<kNativeopsCpu> : handle<kNativeopsCuda>);
}

}  // namespace nativeops::xla

#else  // built without jaxlib

namespace nativeops::xla {

void* handler(const char*) { return nullptr; }

}  // namespace nativeops::xla

#endif
