// The tensors of one call: checked, and described as the kernels want them. Metadata (dtypes, options) is the Python
// functions' to check; it is checked again here because an op may be called without them, and memory must not depend on
// that. Data, lengths and ids, are checked here alone.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

#include "../rnnt_loss/cpu/isa.h"
#include "../rnnt_loss/params.h"

namespace rnnt {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws what Python sees as RuntimeError. Not STD_TORCH_CHECK, which puts its own place in the message.
template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

template <typename Sizes>
std::string text_of(const Sizes& sizes) {
  std::ostringstream text;
  text << "[";
  const char* separator = "";
  for (const int64_t size : sizes) text << separator << size, separator = ", ";
  return text.str() + "]";
}

inline void check_sizes(const char* name, const Tensor& tensor, std::initializer_list<int64_t> wanted) {
  const auto got = tensor.sizes();
  if (!std::equal(got.begin(), got.end(), wanted.begin(), wanted.end()))
    check(false, name, " must have shape ", text_of(wanted), ", got ", text_of(got));
}

inline void check_type(const char* name, const Tensor& tensor, std::initializer_list<ScalarType> wanted) {
  check(tensor.is_cpu(), name, " must be on the CPU");
  const ScalarType got = tensor.scalar_type();
  if (std::find(wanted.begin(), wanted.end(), got) != wanted.end()) return;
  std::ostringstream types;
  const char* separator = "";
  for (const ScalarType type : wanted) types << separator << torch::headeronly::toString(type), separator = " or ";
  check(false, name, " must be ", types.str(), ", got ", torch::headeronly::toString(got));
}

inline void check_tensor(const char* name, const Tensor& tensor, std::initializer_list<int64_t> sizes,
                         std::initializer_list<ScalarType> types) {
  check_type(name, tensor, types);
  check_sizes(name, tensor, sizes);
}

inline void check_lengths(const char* name, const int64_t* lengths, int64_t B, int64_t lowest, int64_t highest) {
  for (int64_t b = 0; b < B; b++)
    check(lowest <= lengths[b] && lengths[b] <= highest, name, "[", b, "] must be in [", lowest, ", ", highest,
          "], got ", lengths[b]);
}

inline void check_data(const Batch& batch) {
  check_lengths("input_lengths", batch.input_lengths, batch.B, 1, batch.T);
  check_lengths("label_lengths", batch.label_lengths, batch.B, 0, batch.U1 - 1);
  for (int64_t b = 0; b < batch.B; b++) {
    for (int64_t u = 0; u < batch.label_lengths[b]; u++) {
      const int64_t label = batch.labels[b * (batch.U1 - 1) + u];
      check(0 <= label && label < batch.V && label != batch.blank, "labels[", b, ", ", u, "] must be in [0, ", batch.V,
            ") and not blank (", batch.blank, "), got ", label);
    }
  }
}

inline Tensor contiguous_as(const Tensor& tensor, ScalarType dtype) {
  return torch::stable::contiguous(torch::stable::to(tensor, dtype));
}

inline Tensor new_tensor(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, sizes, dtype);
}

template <typename T>
const T* data_of(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

constexpr double kNoClamp = std::numeric_limits<double>::infinity();

inline Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Double: return Dtype::kFloat64;
    case ScalarType::Half: return Dtype::kFloat16;
    case ScalarType::BFloat16: return Dtype::kBFloat16;
    default: return Dtype::kFloat32;
  }
}

inline Rows rows_of(const Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), dtype_of(x), x.stride(0), x.stride(1), x.stride(2)};
}

inline Topology topology_of(const std::string& name) {
  check(name == "standard" || name == "modified", "topology must be standard or modified, got ", name);
  return name == "standard" ? kStandard : kModified;
}

// The tensors of one call, owned as long as the kernels run, and what the kernels are told of them.
struct Call {
  Tensor x, labels, input_lengths, label_lengths;
  Batch batch;

  // name: what the op calls its scores
  Call(const char* name, const Tensor& scores, const Tensor& y, const Tensor& T, const Tensor& U, int64_t blank,
       Topology topology)
      : x(scores), labels(y), input_lengths(T), label_lengths(U) {
    check(x.dim() == 4 && x.size(2) >= 1, name, " must have shape [B, T, U + 1, V], got ", text_of(x.sizes()));
    check_type(name, x, {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16});
    const int64_t V = x.size(3);
    check(-V <= blank && blank < V, "blank must be in [", -V, ", ", V, "), got ", blank);
    batch = {x.size(0), x.size(1), x.size(2), V, nullptr, nullptr, nullptr, blank < 0 ? blank + V : blank, topology};
    check_tensor("labels", labels, {batch.B, batch.U1 - 1}, {ScalarType::Int, ScalarType::Long});
    check_tensor("input_lengths", input_lengths, {batch.B}, {ScalarType::Int, ScalarType::Long});
    check_tensor("label_lengths", label_lengths, {batch.B}, {ScalarType::Int, ScalarType::Long});
    labels = contiguous_as(labels, ScalarType::Long);
    input_lengths = contiguous_as(input_lengths, ScalarType::Long);
    label_lengths = contiguous_as(label_lengths, ScalarType::Long);
    batch.labels = data_of<int64_t>(labels);
    batch.input_lengths = data_of<int64_t>(input_lengths);
    batch.label_lengths = data_of<int64_t>(label_lengths);
    check_data(batch);
    cpu::instruction_set();  // whatever may throw does it here: on another thread its message would be lost
    // The kernels want the elements of a row side by side; rows may lie anywhere.
    if (batch.V > 1 && x.stride(3) != 1) x = torch::stable::contiguous(x);
  }

  bool is_double() const { return x.scalar_type() == ScalarType::Double; }
  ScalarType acc_type() const { return is_double() ? ScalarType::Double : ScalarType::Float; }
  int64_t slots() const { return batch.layout().slots(); }
  Rows rows() const { return rows_of(x); }
};

}  // namespace rnnt
