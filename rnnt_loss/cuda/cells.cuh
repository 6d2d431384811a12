// Which cell a thread works on, and what may be said of it without trusting lengths and labels: on the device they are
// checked here, where a bad one costs its own utterance the loss and nothing else.
#pragma once

#include "../params.h"
#include "tuning.h"

namespace rnnt::cuda {

// No frames where a length is out of range.
struct Utterance {
  int T, U;

  __device__ bool has(int t, int u) const { return 0 <= t && t < T && 0 <= u && u <= U; }
};

__device__ inline Utterance lengths_of(const Batch& batch, int64_t b) {
  const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b];
  const bool good = 1 <= T && T <= batch.T && 0 <= U && U < batch.U1;
  return {static_cast<int>(good ? T : 0), static_cast<int>(good ? U : 0)};
}

// Nor where the batch is packed and its rows are not where its lengths say.
__device__ inline Utterance utterance_of(const Batch& batch, int64_t b) {
  if (batch.packed && batch.packed[batch.B].first != batch.packed_rows) return {0, 0};
  return lengths_of(batch, b);
}

constexpr int kNoLabel = -1, kBadLabel = -2;

// The class of the label arc that leaves a cell of column u.
__device__ inline int label_of(const Batch& batch, int64_t b, int u, int U) {
  if (u >= U) return kNoLabel;
  const int64_t label = batch.labels[b * (batch.U1 - 1) + u];
  return 0 <= label && label < batch.V && label != batch.blank ? static_cast<int>(label) : kBadLabel;
}

// Values and posteriors of a cell's arcs lie together, so that a slot is one load.
template <typename acc_t>
struct alignas(4 * sizeof(acc_t)) Arcs {
  Value<acc_t> blank, label;
};
template <typename acc_t>
struct alignas(2 * sizeof(acc_t)) Posteriors {
  acc_t blank, label;
};

template <template <typename> class Slot, typename acc_t>
__device__ Slot<acc_t>* slots_of(const Planes& planes, int64_t b) {
  return reinterpret_cast<Slot<acc_t>*>(static_cast<acc_t*>(planes.data) + b * planes.stride_b);
}

// Which cell of [B, T, U1] a thread takes.
struct CellThread {
  int64_t cell, b;
  int t, u, label;  // the class of its label arc
  bool exists, of_nobody, is_cell;

  __device__ explicit CellThread(const Batch& batch) {
    cell = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    exists = cell < batch.rows();
    if (!exists) return;
    t = static_cast<int>(cell / batch.U1 % batch.T), u = static_cast<int>(cell % batch.U1);
    b = cell / batch.U1 / batch.T;
    const Utterance utterance = utterance_of(batch, b);
    of_nobody = utterance.T == 0, is_cell = utterance.has(t, u);
    label = is_cell && batch.labels.data ? label_of(batch, b, u, utterance.U) : kNoLabel;
  }
  static int64_t blocks(const Batch& batch) { return (batch.rows() + kThreads - 1) / kThreads; }
};

template <typename scalar_t>
using acc_of = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

}  // namespace rnnt::cuda
