// Scores of arcs with durations and their gradients, a thread a cell.
#include "../backend.h"
#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"

namespace rnnt::cuda {
namespace {

// The logits of a thread's durations, read anew at each use: registers cannot be picked by number.
template <typename acc_t>
struct DurationLogits {
  const acc_t* first;

  __device__ DurationLogits(const TdtParams& p, const CellThread& at)
      : first(static_cast<const acc_t*>(p.logits.data) + p.logits.row_offset(p.batch, at.b, at.t, at.u)) {}
  __device__ acc_t operator()(int d) const { return first[d]; }
};

template <typename acc_t>
__global__ void __launch_bounds__(kThreads) tdt_scores_kernel(TdtParams p) {
  const CellThread at(p.batch);
  if (!at.exists) return;
  const int64_t plane = p.batch.rows();
  acc_t* const arcs = static_cast<acc_t*>(p.arcs) + at.cell;
  const auto keep = [&](int k, acc_t score) { arcs[k * plane] = score; };
  if (at.is_cell) {
    const acc_t* tokens = static_cast<const acc_t*>(p.tokens) + at.cell;
    return tdt_scores_of<acc_t>(p, tokens[0], tokens[plane], DurationLogits<acc_t>(p, at), keep);
  }
  RNNT_ONE_BY_ONE
  for (int k = 0; k < p.durations.arcs(); k++) keep(k, 0);
}

template <typename acc_t>
__global__ void __launch_bounds__(kThreads) tdt_scores_backward_kernel(TdtParams p) {
  const CellThread at(p.batch);
  if (!at.exists) return;
  const int64_t plane = p.batch.rows(), D = p.durations.count;
  const acc_t* const arcs = static_cast<const acc_t*>(p.arcs) + at.cell;
  acc_t* const grad_tokens = static_cast<acc_t*>(p.grad_tokens) + at.cell;
  acc_t* const grad_logits = static_cast<acc_t*>(p.grad_logits) + at.cell * D;
  const auto keep_tokens = [&](acc_t blank, acc_t label) { grad_tokens[0] = blank, grad_tokens[plane] = label; };
  const auto keep = [&](int d, acc_t g) { grad_logits[d] = g; };
  const auto grad = [&](int k) { return arcs[k * plane]; };
  if (at.is_cell) return tdt_gradients_of<acc_t>(p, DurationLogits<acc_t>(p, at), grad, keep_tokens, keep);
  const acc_t none_has = at.of_nobody ? acc_t(NAN) : acc_t(0);
  keep_tokens(none_has, none_has);
  RNNT_ONE_BY_ONE
  for (int d = 0; d < D; d++) keep(d, none_has);
}

}  // namespace

void tdt_scores(const TdtParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  launch(p.wide ? tdt_scores_kernel<double> : tdt_scores_kernel<float>, CellThread::blocks(p.batch), kThreads, stream,
         p);
}

void tdt_scores_backward(const TdtParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  launch(p.wide ? tdt_scores_backward_kernel<double> : tdt_scores_backward_kernel<float>, CellThread::blocks(p.batch),
         kThreads, stream, p);
}

}  // namespace rnnt::cuda
