// The forward kernels. Logits are read by rows, and swept at the same time where that pays (progress.cuh).
#include "../backend.h"
#include "lattice.cuh"
#include "progress.cuh"
#include "score.cuh"

namespace rnnt::cuda {
namespace {

// The first `sweeps` blocks sweep an utterance each, the others take rows.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads, kBlocks)
    logits_kernel(ScoreParams score, LatticeParams lattice, RowBlocks blocks, int sweeps) {
  int* const blocks_done = static_cast<int*>(lattice.workspace);
  if (static_cast<int>(blockIdx.x) < sweeps)
    return sweep_loss<acc_of<scalar_t>>(lattice, blockIdx.x, FramesDone(blocks_done, blocks));
  const RowThread at(score.batch, blocks, blockIdx.x - sweeps);
  score_rows<scalar_t>(score, at);
  if (sweeps == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) count(blocks_done + at.group);
}

template <typename scalar_t, typename acc_t>
__global__ void __launch_bounds__(kThreads) log_probs_kernel(ScoreParams p, RowBlocks blocks) {
  score_row<scalar_t, acc_t>(p, RowThread(p.batch, blocks, blockIdx.x));
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) cell_scores_kernel(ScoreParams p) {
  const CellThread at(p.batch);
  if (at.exists) cell_scores<scalar_t>(p, at);
}

template <typename acc_t>
__global__ void __launch_bounds__(kThreads, 1) lattice_kernel(LatticeParams p) {
  sweep_loss<acc_t>(p, blockIdx.x, FramesDone::all());
}

}  // namespace

int64_t workspace_bytes(const Batch& batch) { return bytes_of_workspace(batch); }

namespace {

// Rows and, where that pays, sweeps: whether it did. Without loss to be had, rows alone.
bool logits_and_sweeps(const ScoreParams& p, const LatticeParams& lattice, void* stream) {
  const Batch& batch = p.batch;
  int sweeps = 0;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    const RowBlocks blocks = RowBlocks::of(batch, lanes_for<scalar_t>(batch.V));
    const bool pays = lattice.loss.data && batch.B <= kBlocks * multiprocessors() / kSweepsOfPlaces;
    sweeps = pays ? static_cast<int>(batch.B) : 0;
    launch(logits_kernel<scalar_t>, sweeps + blocks.count(), kThreads, stream, p, lattice, blocks, sweeps);
  });
  return sweeps;
}

}  // namespace

void score(const ScoreParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  if (p.scores) {
    if (p.normalizer != Normalizer::kNone) logits_and_sweeps(p, {}, stream);
    dispatch(p.x.dtype, [&](auto scalar) {
      launch(cell_scores_kernel<decltype(scalar)>, CellThread::blocks(p.batch), kThreads, stream, p);
    });
    return tail(p, stream);
  }
  const RowBlocks blocks = RowBlocks::of(p.batch, 1);
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    const auto kernel = p.arcs.wide ? log_probs_kernel<scalar_t, double> : log_probs_kernel<scalar_t, acc_of<scalar_t>>;
    launch(kernel, blocks.count(), kThreads, stream, p, blocks);
  });
}

void loss(const ScoreParams& p, const LatticeParams& lattice, void* stream) {
  const Batch& batch = p.batch;
  if (batch.B == 0) return;
  bool is_swept = false;
  if (p.normalizer == Normalizer::kNone)
    score(p, stream);
  else if (batch.rows())
    is_swept = logits_and_sweeps(p, lattice, stream);
  if (!is_swept)
    launch(lattice.arcs.wide ? lattice_kernel<double> : lattice_kernel<float>, batch.B, kThreads, stream, lattice);
}

}  // namespace rnnt::cuda
