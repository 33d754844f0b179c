// SPDX-License-Identifier: Apache-2.0
// Registration of ops with TensorFlow.
#include "nativeops/bindings/tensorflow.h"

#include <array>
#include <atomic>
#include <utility>

#include "nativeops/bindings/symbols.h"

namespace nativeops::tensorflow {

Api api;
Explain explain;
const int kTypes[core::kDtypeCount] = {1, 2, 14, 19, 3, 9, 4, 10};

namespace {

const char* const kTypeNames[core::kDtypeCount] = {"float", "double", "bfloat16", "half",
                                                   "int32", "int64",  "uint8",    "bool"};

// The callbacks for shapes and for making a kernel have no closure: each op takes a pair of
// functions of its own.
constexpr int kSlots = 1024;
struct Slot {
  std::string name;
  std::atomic<int> id{-1};  // replaced when the op is declared again, while graphs run
};
Slot slots[kSlots];
int slots_taken = 0;

struct Callbacks {
  ShapeFunction shape;
  CreateFunction create;
};

template <int I>
void shape_of_slot(TF_ShapeInferenceContext* context, TF_Status* status) {
  infer_shapes(core::op_at(slots[I].id), context, status);
}

template <int I>
void* create_of_slot(TF_OpKernelConstruction* construction) {
  return create_kernel(slots[I].id, construction);
}

template <int... I>
constexpr std::array<Callbacks, sizeof...(I)> table(std::integer_sequence<int, I...>) {
  return {Callbacks{shape_of_slot<I>, create_of_slot<I>}...};
}

// The type of an argument: its own, or the attribute that stands for a dtype variable.
std::string type_name(int kind) {
  if (kind >= 0) return kTypeNames[kind];
  return kind == core::kFloatVariable ? "Float" : kind == core::kIntVariable ? "Int" : "Accum";
}

void add_arrays(TF_OpDefinitionBuilder* builder, const core::Op& op) {
  bool floats = false, ints = false, sums = false;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const int kind = op.inputs[i].kind;
    floats |= kind == core::kFloatVariable;
    ints |= kind == core::kIntVariable;
    sums |= kind == core::kAccum;
    const std::string spec = "x" + std::to_string(i) + ": " + type_name(kind);
    api.OpDefinitionBuilderAddInput(builder, spec.c_str());
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    sums |= op.outputs[i].kind == core::kAccum;
    const std::string spec = "y" + std::to_string(i) + ": " + type_name(op.outputs[i].kind);
    api.OpDefinitionBuilderAddOutput(builder, spec.c_str());
  }
  if (floats) api.OpDefinitionBuilderAddAttr(builder, "Float: {float, double, bfloat16, half}");
  if (sums) api.OpDefinitionBuilderAddAttr(builder, "Accum: {float, double}");
  if (ints) api.OpDefinitionBuilderAddAttr(builder, "Int: {int32, int64}");
}

std::string add_definition(const core::Op& op, const Slot& slot, ShapeFunction shape) {
  TF_OpDefinitionBuilder* builder = api.NewOpDefinitionBuilder(slot.name.c_str());
  add_arrays(builder, op);
  // "name=value" for each attribute: as text, because TensorFlow's floats have 32 bits.
  api.OpDefinitionBuilderAddAttr(builder, "attributes: list(string) = []");
  const std::string want = "want: int = " + std::to_string(op.always);
  api.OpDefinitionBuilderAddAttr(builder, want.c_str());
  api.OpDefinitionBuilderSetShapeInferenceFunction(builder, shape);
  const Status status;
  api.RegisterOpDefinition(builder, status);
  return status.ok() ? "" : api.Message(status);
}

}  // namespace

const char* connect(const char* library, Explain how) {
  void* handle = loaded(library);
  if (!handle) return library;
#define NATIVEOPS_LOOK_UP(result, name, parameters) \
  if (!look_up(handle, "TF_" #name, api.name)) return "TF_" #name;
  NATIVEOPS_TENSORFLOW_FUNCTIONS(NATIVEOPS_LOOK_UP)
#undef NATIVEOPS_LOOK_UP
  explain = how;
  return nullptr;
}

std::string implement(int id, const char* name) {
  static constexpr auto callbacks = table(std::make_integer_sequence<int, kSlots>{});
  for (int i = 0; i < slots_taken; ++i)
    if (slots[i].name == name) return slots[i].id = id, "";
  if (slots_taken == kSlots) return "too many ops are registered with TensorFlow";
  const int i = slots_taken;
  slots[i].name = name;
  slots[i].id = id;
  if (std::string error = add_definition(core::op_at(id), slots[i], callbacks[i].shape);
      !error.empty())
    return error;
  ++slots_taken;
  TF_KernelBuilder* builder =
      api.NewKernelBuilder(name, "CPU", callbacks[i].create, compute_kernel, delete_kernel);
  const Status status;
  api.RegisterKernelBuilder(name, builder, status);
  return status.ok() ? "" : api.Message(status);
}

}  // namespace nativeops::tensorflow
