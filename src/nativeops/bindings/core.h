// SPDX-License-Identifier: Apache-2.0
// The core: declared ops, what their arguments determine, and one call of a kernel.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nativeops/devices/abi.h"

namespace nativeops::core {

constexpr int kMaxSizes = 48;  // named axes and integer attributes of one op

// The dtypes in the order of `kDtypes`; a kind below 0 is a dtype variable.
// `kAccum` is the dtype that sums of the floats are taken in.
enum Kind : int8_t { kFloatVariable = -1, kIntVariable = -2, kAccum = -3 };
constexpr int kFloats = 4, kInts = 2, kDtypeCount = 8;
constexpr int kFirstInt = 4;  // int32, int64 follow the floats
constexpr int kFloat32 = 0, kUint8 = 6;
extern const NativeopsDtype kDtypes[kDtypeCount];
extern const char* const kDtypeNames[kDtypeCount];
int dtype_index(NativeopsDtype dtype);  // -1 if no op takes it

// One step of a size's arithmetic on a stack; the numbers are those of sizes.OPERATORS.
enum Operator : int32_t { kNumber, kName, kAdd, kSubtract, kMultiply, kFloorDivide, kMax, kMin };
struct Step {
  Operator op;
  int64_t operand;
};

struct Axis {
  int slot = -1;  // of a bare name; else `steps` compute the size
  std::vector<Step> steps;
};

struct Array {
  int kind = 0;
  bool batch = false;
  bool optional = false;  // an input that may be absent
  std::string name;
  int reuses = -1;  // the input whose memory an output may take over
  std::vector<Axis> axes;
};

enum class AttributeType : int8_t { integer, real, boolean, choice };
struct Attribute {
  std::string name;
  AttributeType type = AttributeType::integer;
  bool required = false;
  NativeopsAttribute fallback{};
  double low = 0, high = 0;
  std::vector<std::string> choices;
  int slot = -1;  // where its value stands among the sizes; -1 if it is not an integer
};

constexpr int kDevices = 2;  // CPU, CUDA
constexpr int kCombinations = kFloats * kInts;

struct Op {
  std::string name, called;    // by the kernel, and in errors
  std::string key, signature;  // the key is the name, and a user's op's version behind a dot
  std::vector<Array> inputs, outputs;
  std::vector<Attribute> attributes;
  uint32_t always = 0;  // the outputs that are made when the caller says nothing
  bool selective = false;
  size_t required = 0;   // inputs, before the optional ones
  uint32_t certain = 0;  // the outputs that every call makes
  NativeopsKernel kernels[kDevices][kCombinations] = {};
  mutable bool made_large = false;  // by XLA, on the CPU; by any thread, so only atomically

  void note_large() const { __atomic_store_n(&made_large, true, __ATOMIC_RELAXED); }
  bool has_made_large() const { return __atomic_load_n(&made_large, __ATOMIC_RELAXED); }
};

// What the inputs of one call determine.
struct Solution {
  int64_t sizes[kMaxSizes];
  int batch_rank;
  int64_t batch[NATIVEOPS_MAX_RANK];
  int combination;  // of the dtype variables
  int float_index, int_index;
  int rank[NATIVEOPS_MAX_ARRAYS];  // of the outputs
  int64_t shape[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  int dtype[NATIVEOPS_MAX_ARRAYS];
  int64_t bytes[NATIVEOPS_MAX_ARRAYS];
};

int add_op(Op op);
Op& op_at(int id);
// The id of the first op with this key, -1 if there is none. Saved programs name it: ops with the
// same key are the same.
int find_op(const std::string& key);
int op_count();

constexpr int64_t kUntold = INT64_MIN;  // of a name that nothing has told yet
constexpr int64_t kAnySize = -1;        // of an array in a graph that is only being built

// The size of an axis, from the sizes of all names; below 0 if there is none.
int64_t evaluate(const Axis& axis, const int64_t* sizes);
bool is_known(const Axis& axis, const int64_t* sizes);
// Broadcasts leading axes into those of others, right-aligned; `kAnySize` may be 1 or the others'
// size. False if they do not fit.
bool merge_batch(const int64_t* shape, int rank, int64_t* batch, int& batch_rank);

// An optional input that was not given, where frameworks have no word for it: its named axes are
// all empty, and it has no leading ones.
bool is_absent(const Array& spec, const NativeopsTensor& array);
// The same, made here. Its dtype does not count.
NativeopsTensor absent(const Array& spec);

// Whether the arguments fit; why they do not is explained in Python, by signature.py.
bool solve(const Op& op, const NativeopsTensor* inputs, const NativeopsAttribute* attributes,
           Solution& solution);

// Whether the `given` outputs, a bit each, can be written while the inputs are read: none of their
// elements shares memory with another one's or with an input, but for the very array whose memory
// an output may take over.
bool are_apart(const Op& op, const NativeopsTensor* inputs, const NativeopsTensor* outputs,
               uint32_t given);

enum class Status : int { ok = 0, failed = 1, no_memory = 2, no_kernel = 3 };

struct Place {
  int32_t device_type, device_id;
  void* stream;
  const NativeopsServices* services = nullptr;  // null: the core's own
  void* frame = nullptr;                        // what these services know the call by
};

// Runs the kernel. The outputs' `data` and `strides` are set; null data means: do not make it.
Status run(const Op& op, const Solution& solution, const NativeopsTensor* inputs,
           NativeopsTensor* outputs, const NativeopsAttribute* attributes, Place place);
const char* last_message();  // why it did not run, if it did not
bool refused_value();        // whether that message tells of an argument's value
// The same with the op's name, and that arguments do not fit, for errors of frameworks.
std::string failure_text(const Op& op);
std::string unfit_text(const Op& op);

// Row-major strides of a shape.
void contiguous_strides(int rank, const int64_t* shape, int64_t* strides);
// Output i, row-major, before it has memory; so it stays where it is not made.
NativeopsTensor output_of(const Solution& solution, size_t i, int64_t* strides,
                          int32_t device_type = kNativeopsCpu, int32_t device_id = 0);
// Whether an array has the dtype and the shape of output i.
bool fits_output(const Solution& solution, size_t i, const NativeopsTensor& array);

// Loads a library of kernels; null and an error text, or the library's table.
const NativeopsLibrary* load_library(const char* path, std::string& error);
// The best instruction set to use from now on, as a position in `kLevels`.
void select_level(int level);
int selected_level();
int machine_level();
extern const char* const kLevels[4];
const NativeopsServices* services();
// The same for CUDA, where the core has no memory to lend.
const NativeopsServices* cuda_services();
// Copies an array on CUDA: a loaded library's kernel; null before one is loaded.
NativeopsKernel cuda_copy();
// Workspaces of the core: host memory.
NativeopsMemory lend(const NativeopsCall* call, size_t bytes);
void take_back(const NativeopsCall* call, NativeopsMemory memory);
// The loaded library of the instruction set in use; null if there is none.
const NativeopsLibrary* selected_library();

}  // namespace nativeops::core
