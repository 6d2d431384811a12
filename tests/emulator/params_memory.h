// The memory behind each of the kernels' parameter structs, as params.h describes it: launch() calls declare() with the
// arguments of the kernel.
#pragma once

#include "../../rnnt_loss/backend.h"
#include "../../rnnt_loss/core/core.h"
#include "memory.h"

namespace rnnt {

using emulator::Content, emulator::Memory, emulator::Use;

inline size_t size_of(Dtype dtype) {
  size_t bytes = 0;
  dispatch(dtype, [&](auto element) { bytes = sizeof element; });
  return bytes;
}

inline void declare_numbers(Memory& memory, const char* name, const void* data, int64_t count, bool wide, Use use) {
  const size_t number = wide ? sizeof(double) : sizeof(float);
  memory.add(name, data, count * number, number, use);
}

inline void declare_planes(Memory& memory, const char* name, const Batch& batch, const Planes& planes, int each,
                           Use use) {
  declare_numbers(memory, name, planes.data, (batch.B - 1) * planes.stride_b + each * batch.layout().slots(),
                  planes.wide, use);
}

// The lengths an utterance has if both are in range; else nothing of it may be looked at.
struct Extent {
  int64_t T = 0, labels = 0, rows = 0;

  Extent(const Batch& batch, int64_t b) {
    const int64_t frames = batch.input_lengths[b], length = batch.label_lengths[b];
    if (frames < 1 || frames > batch.T || length < 0 || length >= batch.U1) return;
    T = frames, labels = length, rows = length + 1;
  }
};

inline void declare_packed_rows(Memory& memory, const Batch& batch, const PackedRows* rows, Use use) {
  memory.add("packed rows", rows, (batch.B + 1) * sizeof(PackedRows), sizeof(int64_t), use);
}

// Packed, there is no padding, and nothing of an input may be looked at unless the rows are where the lengths say.
inline void declare_packed(Memory& memory, const char* name, const Batch& batch, const Rows& rows, Use use) {
  const int64_t element = size_of(rows.dtype), n = batch.packed_rows;
  if (n) memory.add_scattered(name, rows.data, ((n - 1) * rows.stride_u + batch.V) * element, element, use);
  const bool is_input = use != Use::kOutput && batch.packed[batch.B].first == n;
  for (int64_t row = 0; row < n; row++)
    memory.part(static_cast<char*>(rows.data) + row * rows.stride_u * element, batch.V * element,
                is_input ? Content::kWritten : Content::kUnwritten);
}

// Rows of padding are unwritten as an input is concerned, and part of an output like any other.
inline void declare_rows(Memory& memory, const char* name, const Batch& batch, const Rows& rows, Use use) {
  if (batch.packed) return declare_packed(memory, name, batch, rows, use);
  const int64_t element = size_of(rows.dtype), B = batch.B, T = batch.T, U1 = batch.U1, V = batch.V;
  const int64_t last = rows.row_offset(batch, B - 1, T - 1, U1 - 1) + V;
  memory.add_scattered(name, rows.data, last * element, element, use);
  for (int64_t b = 0; b < B; b++) {
    const Extent extent(batch, b);
    for (int64_t t = 0; t < T; t++) {
      for (int64_t u = 0; u < U1; u++) {
        const bool is_input = use != Use::kOutput && t < extent.T && u < extent.rows;
        memory.part(static_cast<char*>(rows.data) + rows.row_offset(batch, b, t, u) * element, V * element,
                    is_input ? Content::kWritten : Content::kUnwritten);
      }
    }
  }
}

inline size_t size_of_one(const Integers& ids) { return ids.wide ? sizeof(int64_t) : sizeof(int32_t); }

inline void declare_lengths(Memory& memory, const Batch& batch) {
  const auto declare = [&](const char* name, const Integers& lengths) {
    memory.add(name, lengths.data, batch.B * size_of_one(lengths), size_of_one(lengths), Use::kInput);
  };
  declare("input_lengths", batch.input_lengths);
  declare("label_lengths", batch.label_lengths);
}

inline void declare_batch(Memory& memory, const Batch& batch) {
  const int64_t U = batch.U1 - 1;
  declare_lengths(memory, batch);
  if (batch.packed) declare_packed_rows(memory, batch, batch.packed, Use::kInput);
  if (U == 0) return;
  const size_t label = size_of_one(batch.labels);
  memory.add_scattered("labels", batch.labels.data, batch.B * U * label, label, Use::kInput);
  memory.part(batch.labels.data, batch.B * U * label, Content::kUnwritten);
  for (int64_t b = 0; b < batch.B; b++)
    memory.part(static_cast<const char*>(batch.labels.data) + b * U * label, Extent(batch, b).labels * label,
                Content::kWritten);
}

inline void declare_workspace(Memory& memory, const Batch& batch, void* workspace) {
  memory.add("workspace", workspace, cuda::workspace_bytes(batch), sizeof(int), Use::kUpdate);
}

// What score_rows and score_backward touch besides arcs and posteriors.
inline void declare_score(Memory& memory, const ScoreParams& p) {
  declare_batch(memory, p.batch);
  declare_rows(memory, "x", p.batch, p.x, Use::kInput);
  declare_numbers(memory, "softmax", p.softmax, 2 * p.batch.rows(), p.arcs.wide, Use::kOutput);
}
inline void declare_score_backward(Memory& memory, const ScoreBackwardParams& p) {
  const bool reads_x = p.normalizer != Normalizer::kNone, in_place = p.x.data == p.grad_x.data;
  declare_batch(memory, p.batch);
  if (reads_x && !in_place) declare_rows(memory, "x", p.batch, p.x, Use::kInput);
  if (reads_x) declare_numbers(memory, "softmax", p.softmax, 2 * p.batch.rows(), p.posteriors.wide, Use::kInput);
  declare_numbers(memory, "grad_loss", p.grad_loss.data, p.batch.B, p.grad_loss.wide, Use::kInput);
  declare_rows(memory, "grad_x", p.batch, p.grad_x, reads_x && in_place ? Use::kInPlace : Use::kOutput);
}

// Likewise the sweeps.
inline void declare_lattice(Memory& memory, const LatticeParams& p) {
  const Batch& batch = p.batch;
  declare_numbers(memory, "loss", p.loss.data, batch.B, p.loss.wide, Use::kOutput);
  declare_numbers(memory, "shares", p.shares, batch.B * batch.layout().slots(), p.arcs.wide, Use::kOutput);
  declare_workspace(memory, batch, p.workspace);
}
inline void declare_flow(Memory& memory, const PosteriorParams& p) {
  const Batch& batch = p.batch;
  declare_numbers(memory, "loss", p.loss.data, batch.B, p.loss.wide, Use::kInput);
  declare_numbers(memory, "shares", p.shares, batch.B * batch.layout().slots(), p.posteriors.wide, Use::kInput);
  declare_workspace(memory, batch, p.workspace);
}

// By kernel. RowBlocks tells no addresses, and whether there are sweeps tells which of the others are used.

inline void declare(Memory& memory, const Batch& batch, const PackedRows* rows) {
  declare_lengths(memory, batch);
  declare_packed_rows(memory, batch, rows, Use::kOutput);
}

template <typename RowBlocks>
void declare(Memory& memory, const ScoreParams& p, const RowBlocks&) {
  declare_score(memory, p);
  if (!p.scores) declare_planes(memory, "arcs", p.batch, p.arcs, 4, Use::kScratch);
}

inline void declare(Memory& memory, const ScoreParams& p) {
  declare_batch(memory, p.batch);
  declare_rows(memory, "x", p.batch, p.x, Use::kInput);
  declare_numbers(memory, "softmax", p.softmax, 2 * p.batch.rows(), p.arcs.wide, Use::kInput);
  declare_numbers(memory, "scores", p.scores, 2 * p.batch.rows(), p.arcs.wide, Use::kOutput);
}

inline void declare(Memory& memory, const LatticeParams& p) {
  declare_batch(memory, p.batch);
  declare_planes(memory, "arcs", p.batch, p.arcs, 4, Use::kInput);
  declare_lattice(memory, p);
}

template <typename RowBlocks>
void declare(Memory& memory, const ScoreParams& p, const LatticeParams& lattice, const RowBlocks& blocks, int sweeps) {
  declare(memory, p, blocks);
  if (sweeps) declare_lattice(memory, lattice);
}

inline void declare(Memory& memory, const PosteriorParams& p) {
  declare_batch(memory, p.batch);
  declare_flow(memory, p);
  declare_planes(memory, "posteriors", p.batch, p.posteriors, 2, Use::kScratch);
}

template <typename RowBlocks>
void declare(Memory& memory, const PosteriorParams& flow, const ScoreBackwardParams& p, const RowBlocks&, int sweeps) {
  declare_score_backward(memory, p);
  if (sweeps) declare_flow(memory, flow);
  if (p.of_scores)
    declare_numbers(memory, "of_scores", p.of_scores, 2 * p.batch.rows(), p.posteriors.wide, Use::kInput);
  else
    declare_planes(memory, "posteriors", p.batch, p.posteriors, 2, sweeps ? Use::kScratch : Use::kInput);
}

inline void declare(Memory& memory, const AlphaBetaParams& p) {
  const Batch& batch = p.batch;
  declare_batch(memory, batch);
  declare_planes(memory, "arcs", batch, p.arcs, 4, Use::kInput);
  declare_numbers(memory, "loss", p.loss.data, batch.B, p.loss.wide, Use::kOutput);
  declare_numbers(memory, "alpha", p.alpha, batch.rows(), true, Use::kOutput);
  declare_numbers(memory, "beta", p.beta, batch.rows(), true, Use::kOutput);
  declare_workspace(memory, batch, p.workspace);
}

template <typename RowBlocks>
void declare(Memory& memory, const PosteriorFromAlphaBetaParams& p, const RowBlocks&) {
  declare_batch(memory, p.batch);
  declare_rows(memory, "x", p.batch, p.x, Use::kInput);
  declare_numbers(memory, "alpha", p.alpha, p.batch.rows(), true, Use::kInput);
  declare_numbers(memory, "beta", p.beta, p.batch.rows(), true, Use::kInput);
  declare_planes(memory, "posteriors", p.batch, p.posteriors, 2, Use::kScratch);
}

// The columns behind the classes of rows, and what they are read to or written from.
inline void declare_tail(Memory& memory, Batch batch, Rows rows, const Tail& tail, bool backward) {
  const bool wide = rows.dtype == Dtype::kFloat64;
  declare_lengths(memory, batch);
  declare_numbers(memory, "tail", tail.data, batch.rows() * tail.columns, wide, backward ? Use::kInput : Use::kOutput);
  rows.data = static_cast<char*>(rows.data) + batch.V * size_of(rows.dtype);
  batch.V = tail.columns;
  declare_rows(memory, backward ? "grad_x" : "x", batch, rows, backward ? Use::kOutput : Use::kInput);
}
inline void declare(Memory& memory, const Batch& batch, const Rows& x, const Tail& tail) {
  declare_tail(memory, batch, x, tail, false);
}
inline void declare(Memory& memory, const Batch& batch, const Rows& grad_x, const Tail& tail,
                    const PerUtterance& grad_loss) {
  declare_tail(memory, batch, grad_x, tail, true);
  declare_numbers(memory, "grad_loss", grad_loss.data, batch.B, grad_loss.wide, Use::kInput);
}

inline void declare(Memory& memory, const TdtParams& p) {
  const int64_t cells = p.batch.rows();
  const bool backward = p.grad_logits;
  declare_lengths(memory, p.batch);
  declare_rows(memory, "logits", p.batch, p.logits, Use::kInput);
  declare_numbers(memory, "arcs", p.arcs, p.durations.arcs() * cells, p.wide, backward ? Use::kInput : Use::kOutput);
  if (!backward) return declare_numbers(memory, "tokens", p.tokens, 2 * cells, p.wide, Use::kInput);
  declare_numbers(memory, "grad_tokens", p.grad_tokens, 2 * cells, p.wide, Use::kOutput);
  declare_numbers(memory, "grad_logits", p.grad_logits, cells * p.batch.V, p.wide, Use::kOutput);
}

// Lengths and scores.
inline void declare_inputs(Memory& memory, const ArcLatticeParams& p) {
  const auto declare_lengths = [&](const char* name, const Integers& lengths) {
    const size_t size = lengths.wide ? sizeof(int64_t) : sizeof(int32_t);
    memory.add(name, lengths.data, p.B * size, size, Use::kInput);
  };
  declare_lengths("input_lengths", p.input_lengths);
  declare_lengths("label_lengths", p.label_lengths);
  declare_numbers(memory, "scores", p.scores, p.B * p.T * p.U1 * p.arcs.count, p.wide, Use::kInput);
}

inline void declare(Memory& memory, const ArcLatticeParams& p) {
  const int64_t scores = p.B * p.T * p.U1 * p.arcs.count;
  declare_inputs(memory, p);
  declare_numbers(memory, "loss", p.loss.data, p.B, p.loss.wide, Use::kOutput);
  if (p.posteriors) declare_numbers(memory, "posteriors", p.posteriors, scores, p.wide, Use::kOutput);
  if (p.tangent) declare_numbers(memory, "tangent", p.tangent, scores, true, Use::kInput);
  if (p.tangent) declare_numbers(memory, "derivative", p.derivative, scores, true, Use::kOutput);
  declare_numbers(memory, "workspace", p.workspace, p.B * arc_memory(p), p.wide, Use::kScratch);
}

inline void declare(Memory& memory, const PathParams& p) {
  const int64_t B = p.lattice.B, paths = p.n * B, labels = paths * (p.lattice.U1 - 1);
  declare_inputs(memory, p.lattice);
  if (p.uniforms)
    declare_numbers(memory, "uniforms", p.uniforms, paths * (p.lattice.T + p.lattice.U1), true, Use::kInput);
  declare_numbers(memory, "frames", p.frames, labels, true, Use::kOutput);
  declare_numbers(memory, "arcs", p.path_arcs, labels, true, Use::kOutput);
  declare_numbers(memory, "score", p.score, B, true, Use::kOutput);
  declare_numbers(memory, "workspace", p.workspace, B * path_memory(p.lattice), true, Use::kScratch);
}

}  // namespace rnnt
