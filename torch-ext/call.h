// The tensors of one call: checked, and described as the kernels want them. Metadata (dtypes, options) is the Python
// functions' to check; it is checked again here because an op may be called without them, and memory must not depend on
// that. Data, lengths and ids, are checked here alone, where they are on the CPU; on a device only if asked for, since
// it costs a synchronisation: there the kernels know what to do with bad ones.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
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
  const ScalarType got = tensor.scalar_type();
  if (std::find(wanted.begin(), wanted.end(), got) != wanted.end()) return;
  std::ostringstream types;
  const char* separator = "";
  for (const ScalarType type : wanted) types << separator << torch::headeronly::toString(type), separator = " or ";
  check(false, name, " must be ", types.str(), ", got ", torch::headeronly::toString(got));
}

inline void check_lengths(const char* name, const Integers& lengths, int64_t B, int64_t lowest, int64_t highest) {
  for (int64_t b = 0; b < B; b++)
    check(lowest <= lengths[b] && lengths[b] <= highest, name, "[", b, "] must be in [", lowest, ", ", highest,
          "], got ", lengths[b]);
}

inline void check_labels(const Batch& batch, const Integers& labels, const Integers& label_lengths) {
  for (int64_t b = 0; b < batch.B; b++) {
    for (int64_t u = 0; u < label_lengths[b]; u++) {
      const int64_t label = labels[b * (batch.U1 - 1) + u];
      check(0 <= label && label < batch.V && label != batch.blank, "labels[", b, ", ", u, "] must be in [0, ", batch.V,
            ") and not blank (", batch.blank, "), got ", label);
    }
  }
}

// Where the rows of a packed batch lie, for the CPU's kernels. out may be null. Returns how many there are.
inline int64_t find_packed_rows(int64_t B, const Integers& input_lengths, const Integers& label_lengths,
                                PackedRows* out) {
  int64_t first = 0;
  for (int64_t b = 0; b < B; b++) {
    const int64_t in_frame = label_lengths[b] + 1;
    if (out) out[b] = {first, in_frame};
    first += input_lengths[b] * in_frame;
  }
  if (out) out[B] = {first, 0};
  return first;
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
  if (x.dim() == 2) return {const_cast<void*>(x.const_data_ptr()), dtype_of(x), 0, 0, x.stride(0)};
  return {const_cast<void*>(x.const_data_ptr()), dtype_of(x), x.stride(0), x.stride(1), x.stride(2)};
}

inline Integers integers_of(const Tensor& ids) { return {ids.const_data_ptr(), ids.scalar_type() == ScalarType::Long}; }

inline PerUtterance per_utterance(const Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.scalar_type() == ScalarType::Double};
}

inline Topology topology_of(const std::string& name) {
  check(name == "standard" || name == "modified", "topology must be standard or modified, got ", name);
  return name == "standard" ? kStandard : kModified;
}

inline Normalizer normalizer_of(const std::string& name) {
  check(name == "softmax" || name == "hat" || name == "none", "normalizer must be softmax, hat or none, got ", name);
  return name == "softmax" ? Normalizer::kSoftmax : name == "hat" ? Normalizer::kHat : Normalizer::kNone;
}

// Where a backend runs: on the CPU, or where x is, which may be a device that no host code can read.
enum class Side { kHost, kDevice };

// What the host may read without waiting for a device.
inline bool is_host(const Tensor& tensor) {
#if defined(RNNT_EMULATE)  // the emulated device has the CPU's memory
  return static_cast<void>(tensor), false;
#else
  return tensor.is_cpu();
#endif
}

inline Tensor on_host(const Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : torch::stable::to(tensor, torch::stable::Device(torch::headeronly::DeviceType::CPU));
}

// Checks the kind of ids, and makes them contiguous.
inline void take_ids(const Tensor& scores, const char* name, Tensor& ids, std::initializer_list<int64_t> sizes) {
  check_type(name, ids, {ScalarType::Int, ScalarType::Long});
  check_sizes(name, ids, sizes);
  check(ids.is_cpu() || ids.device() == scores.device(), name, " must be where the scores are, or on the CPU");
  ids = torch::stable::contiguous(ids);
}

// Also checks what they are, where that can be seen or is asked for, and brings them to where the scores are.
inline void take_lengths(Side side, const Tensor& scores, const char* name, Tensor& lengths, int64_t B, int64_t lowest,
                         int64_t highest, bool validate) {
  take_ids(scores, name, lengths, {B});
  if (side == Side::kHost || is_host(lengths) || validate)
    check_lengths(name, integers_of(on_host(lengths)), B, lowest, highest);
  if (lengths.device() != scores.device()) lengths = torch::stable::to(lengths, scores.device());
}

inline void check_overwritable(const char* name, const Tensor& x) {
  const int64_t last = x.dim() - 1;
  check(last >= 0 && (x.size(last) == 1 || x.stride(last) == 1), name, " must have contiguous rows, got shape ",
        text_of(x.sizes()), " with strides ", text_of(x.strides()));
}

// The tensors of one call, owned as long as the kernels run, and what the kernels are told of them.
struct Call {
  Tensor x, labels, input_lengths, label_lengths;
  std::optional<Tensor> packed;  // [B + 1, 2], what batch.packed points to; on a device, the kernels' to find
  Batch batch;

  // name: what the op calls its scores. max_input_length: of an op that takes them packed, [rows, V], too; T, then.
  // tail: columns of a row that are behind its classes
  Call(Side side, const char* name, const Tensor& scores, const Tensor& y, const Tensor& T, const Tensor& U,
       int64_t blank, Topology topology, bool validate = false, std::optional<int64_t> max_input_length = {},
       int64_t tail = 0)
      : x(scores), labels(y), input_lengths(T), label_lengths(U) {
    const bool is_packed = max_input_length && x.dim() == 2;
    check(is_packed || (x.dim() == 4 && x.size(2) >= 1), name, " must have shape [B, T, U + 1, V]",
          max_input_length ? " or, packed, [rows, V]" : "", ", got ", text_of(x.sizes()));
    check_type(name, x, {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16});
    check(0 <= tail && tail <= (is_packed ? 0 : kMostDurations), "tail must be in [0, ", is_packed ? 0 : kMostDurations,
          "], got ", tail);
    const int64_t V = x.size(x.dim() - 1) - tail;
    check(V < kLongestRow, name, " must have less than ", kLongestRow, " classes, got ", V);
    check(-V <= blank && blank < V, "blank must be in [", -V, ", ", V, "), got ", blank);
    batch = {0, 0, 0, V, {}, {}, {}, blank < 0 ? blank + V : blank, topology};
    if (is_packed)
      take_packed_sizes(*max_input_length);
    else
      batch.B = x.size(0), batch.T = x.size(1), batch.U1 = x.size(2);
    take(side, validate);
    check(batch.packed_rows <= batch.rows(), "logits must have at most B max_input_length (U + 1) = ", batch.rows(),
          " rows, got ", batch.packed_rows);
    if (side == Side::kHost) cpu::instruction_set();  // may throw: on another thread its message would be lost
    // The kernels want the elements of a row side by side; rows may lie anywhere.
    if (V + tail > 1 && x.stride(x.dim() - 1) != 1) x = torch::stable::contiguous(x);
  }

  bool is_double() const { return x.scalar_type() == ScalarType::Double; }
  ScalarType acc_type() const { return is_double() ? ScalarType::Double : ScalarType::Float; }
  int64_t slots() const { return batch.layout().slots(); }
  Rows rows() const { return rows_of(x); }

  // Another tensor of the call, which has to be where x is.
  void check_tensor(const char* name, const Tensor& tensor, std::initializer_list<int64_t> sizes,
                    std::initializer_list<ScalarType> types) const {
    check(tensor.device() == x.device(), name, " must be on the device of the scores");
    check_type(name, tensor, types);
    check_sizes(name, tensor, sizes);
  }

 private:
  static constexpr int64_t kLongestRow = int64_t{1} << 30;  // CUDA counts the elements of a row in 32 bits

  void take_packed_sizes(int64_t T) {
    check(labels.dim() == 2, "labels must have shape [B, U], got ", text_of(labels.sizes()));
    check(0 <= T && T <= std::numeric_limits<int32_t>::max(), "max_input_length must be in [0, 2^31), got ", T);
    batch.B = labels.size(0), batch.T = T, batch.U1 = labels.size(1) + 1, batch.packed_rows = x.size(0);
    packed = new_tensor(x, {batch.B + 1, 2}, ScalarType::Long);
    batch.packed = static_cast<const PackedRows*>(packed->const_data_ptr());
  }

  // Checks the ids, and brings them to where x is as the kernels want them.
  void take(Side side, bool validate) {
    const auto readable = [&](const Tensor& tensor) { return side == Side::kHost || is_host(tensor) || validate; };
    take_ids(x, "labels", labels, {batch.B, batch.U1 - 1});
    if (packed) {
      take_ids(x, "input_lengths", input_lengths, {batch.B});
      take_ids(x, "label_lengths", label_lengths, {batch.B});
      if (readable(input_lengths)) {
        const Tensor lengths = on_host(input_lengths);
        for (int64_t b = 0; b < batch.B; b++)
          check(integers_of(lengths)[b] <= batch.T, "max_input_length must be at least input_lengths[", b,
                "] = ", integers_of(lengths)[b], ", got ", batch.T);
      }
    }
    const bool lengths_readable = readable(input_lengths) && readable(label_lengths);
    const bool labels_readable = readable(labels) && readable(label_lengths);
    const Tensor frames_as_given = input_lengths, lengths_as_given = label_lengths;
    take_lengths(side, x, "input_lengths", input_lengths, batch.B, 1, batch.T, validate);
    take_lengths(side, x, "label_lengths", label_lengths, batch.B, 0, batch.U1 - 1, validate);
    const auto host = [](const Tensor& ids) { return torch::stable::contiguous(on_host(ids)); };
    if (labels_readable) {
      const Tensor lengths = host(lengths_as_given), ids = host(labels);
      check_labels(batch, integers_of(ids), integers_of(lengths));
    }
    if (packed && lengths_readable) {
      const Tensor frames = host(frames_as_given), lengths = host(lengths_as_given);
      PackedRows* out = side == Side::kHost ? static_cast<PackedRows*>(packed->mutable_data_ptr()) : nullptr;
      const int64_t rows = find_packed_rows(batch.B, integers_of(frames), integers_of(lengths), out);
      check(rows == batch.packed_rows, "logits must have ", rows,
            " rows, the sum of input_lengths (label_lengths + 1), got ", batch.packed_rows);
    }
    if (labels.device() != x.device()) labels = torch::stable::to(labels, x.device());
    batch.labels = integers_of(labels);
    batch.input_lengths = integers_of(input_lengths);
    batch.label_lengths = integers_of(label_lengths);
  }
};

}  // namespace rnnt
