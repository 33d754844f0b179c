// SPDX-License-Identifier: Apache-2.0
// Shapes of results while some sizes are not known, as in the graph of a `tf.function`.
#include <algorithm>

#include "nativeops/bindings/tensorflow.h"

namespace nativeops::tensorflow {
namespace {

// Known to be absent, in the same sense as for the core.
bool is_absent(const core::Array& spec, const Shape& array) {
  if (!spec.optional || array.rank != static_cast<int>(spec.axes.size())) return false;
  return std::all_of(array.size, array.size + array.rank, [](int64_t size) { return size == 0; });
}

bool read_input(const core::Array& spec, const Shape& array, int64_t* sizes, Shape& batch) {
  const int lead = array.rank - static_cast<int>(spec.axes.size());
  if (lead < 0 || (lead > 0 && !spec.batch)) return false;
  if (lead > 0 && !core::merge_batch(array.size, lead, batch.size, batch.rank)) return false;
  for (size_t a = 0; a < spec.axes.size(); ++a) {
    const int slot = spec.axes[a].slot;
    const int64_t size = array.size[lead + a];
    if (slot < 0 || size == core::kAnySize) continue;
    if (sizes[slot] != core::kUntold && sizes[slot] != size) return false;
    sizes[slot] = size;
  }
  return true;
}

bool arithmetic_fits(const core::Array& spec, const Shape& array, const int64_t* sizes) {
  const int64_t* shape = array.size + array.rank - spec.axes.size();
  for (size_t a = 0; a < spec.axes.size(); ++a)
    if (spec.axes[a].slot < 0 && shape[a] != core::kAnySize &&
        core::is_known(spec.axes[a], sizes) && core::evaluate(spec.axes[a], sizes) != shape[a])
      return false;
  return true;
}

bool write_output(const core::Array& spec, const int64_t* sizes, const Shape& batch, Shape& out) {
  if (spec.batch)
    out = batch;
  else
    out.rank = 0;
  if (out.rank < 0) return true;
  if (out.rank + spec.axes.size() > NATIVEOPS_MAX_RANK) return false;
  for (const core::Axis& axis : spec.axes) {
    const bool known = core::is_known(axis, sizes);
    const int64_t size = known ? core::evaluate(axis, sizes) : core::kAnySize;
    if (known && size < 0) return false;
    out.size[out.rank++] = size;
  }
  return true;
}

struct Handle {
  TF_ShapeHandle* shape;
  explicit Handle(TF_ShapeHandle* shape) : shape(shape) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { api.DeleteShapeHandle(shape); }
};

// False if the shape has more axes than any op takes.
bool read_shape(TF_ShapeInferenceContext* context, int i, TF_Status* status, Shape& out) {
  const Handle handle(api.NewShapeHandle());
  api.ShapeInferenceContextGetInput(context, i, handle.shape, status);
  if (api.GetCode(status) != kOk || !api.ShapeInferenceContextRankKnown(context, handle.shape))
    return true;
  const int64_t rank = api.ShapeInferenceContextRank(context, handle.shape);
  if (rank > NATIVEOPS_MAX_RANK) return false;
  out.rank = static_cast<int>(rank);
  TF_DimensionHandle* size = api.NewDimensionHandle();
  for (int axis = 0; axis < out.rank; ++axis) {
    api.ShapeInferenceContextDim(context, handle.shape, axis, size);
    const bool known = api.DimensionHandleValueKnown(size);
    out.size[axis] = known ? api.DimensionHandleValue(size) : core::kAnySize;
  }
  api.DeleteDimensionHandle(size);
  return true;
}

void set_output(TF_ShapeInferenceContext* context, int i, const Shape& shape, TF_Status* status) {
  const Handle whole(api.ShapeInferenceContextScalar(context));
  for (int axis = 0; axis < shape.rank && api.GetCode(status) == kOk; ++axis) {
    // -1 is an unknown size here, too.
    const Handle one(
        api.ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(shape.size[axis])));
    api.ShapeInferenceContextConcatenateShapes(context, whole.shape, one.shape, whole.shape,
                                               status);
  }
  if (api.GetCode(status) == kOk)
    api.ShapeInferenceContextSetOutput(context, i, whole.shape, status);
}

}  // namespace

bool infer(const core::Op& op, const Shape* inputs, const NativeopsAttribute* attributes,
           Shape* outputs) {
  int64_t sizes[core::kMaxSizes];
  std::fill(std::begin(sizes), std::end(sizes), core::kUntold);
  for (size_t i = 0; attributes && i < op.attributes.size(); ++i)
    if (op.attributes[i].slot >= 0) sizes[op.attributes[i].slot] = attributes[i].integer;
  Shape batch;
  batch.rank = 0;
  bool any_rank = false;  // an array whose leading axes may be any
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (is_absent(op.inputs[i], inputs[i])) continue;
    if (inputs[i].rank < 0)
      any_rank |= op.inputs[i].batch;
    else if (!read_input(op.inputs[i], inputs[i], sizes, batch))
      return false;
  }
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (inputs[i].rank >= 0 && !is_absent(op.inputs[i], inputs[i]) &&
        !arithmetic_fits(op.inputs[i], inputs[i], sizes))
      return false;
  if (any_rank) batch.rank = -1;
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (!write_output(op.outputs[i], sizes, batch, outputs[i])) return false;
  return true;
}

void infer_shapes(const core::Op& op, TF_ShapeInferenceContext* context, TF_Status* status) {
  Shape inputs[NATIVEOPS_MAX_ARRAYS], outputs[NATIVEOPS_MAX_ARRAYS];
  bool fits = true;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    fits &= read_shape(context, static_cast<int>(i), status, inputs[i]);
  if (api.GetCode(status) != kOk) return;
  if (!fits || !infer(op, inputs, nullptr, outputs))
    return api.SetStatus(status, kInvalidArgument, core::unfit_text(op).c_str());
  api.ShapeInferenceContextSetUnknownShape(context, status);
  for (size_t i = 0; i < op.outputs.size() && api.GetCode(status) == kOk; ++i)
    if (op.certain >> i & 1 && outputs[i].rank >= 0)
      set_output(context, static_cast<int>(i), outputs[i], status);
}

}  // namespace nativeops::tensorflow
