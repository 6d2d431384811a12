// The backward kernel: the flow through the lattice and the rows of the gradient at the same time (progress.cuh).
#include "../backend.h"
#include "lattice.cuh"
#include "progress.cuh"
#include "score_backward.cuh"

namespace rnnt::cuda {
namespace {

// The first `sweeps` blocks let the occupancy of an utterance each flow back, the others take rows, the last frames
// first as the flow does. Without sweeps the posteriors are there already.
template <typename scalar_t, typename acc_t, bool kLogits>
__global__ void __launch_bounds__(kThreads, kBlocks)
    gradient_kernel(PosteriorParams flow, ScoreBackwardParams p, RowBlocks blocks, int sweeps) {
  const Batch& batch = p.batch;
  const int strips = static_cast<int>(strips_of(batch));
  int* const steps_done = static_cast<int*>(flow.workspace);
  if constexpr (std::is_same_v<acc_t, acc_of<scalar_t>>)  // posteriors in double of a float x are from alpha and beta
    if (static_cast<int>(blockIdx.x) < sweeps)
      return sweep_posteriors<acc_t>(flow, blockIdx.x, steps_done + blockIdx.x * strips * kLine);
  const RowThread at(batch, blocks, gridDim.x - 1 - blockIdx.x);
  const Utterance utterance = utterance_of(batch, at.b);
  if (sweeps) {
    const Topology topology = batch.topology;
    const int64_t steps = topology.last_front(utterance.T, utterance.U) - topology.front(at.t, at.u);
    wait_for_steps(steps_done + (at.b * strips + at.u / 32) * kLine, steps,
                   at.exists && utterance.has(at.t, at.u) && at.lane % 32 == 0);
  }
  if (!at.has_row(batch, utterance)) return;
  if constexpr (kLogits)
    logits_gradient<scalar_t>(p, at, utterance);
  else
    log_probs_gradient<scalar_t, acc_t>(p, at, utterance);
}

}  // namespace

void gradient(const PosteriorParams& flow, const ScoreBackwardParams& p, void* stream) {
  const Batch& batch = p.batch;
  if (batch.rows() == 0) return;
  const int sweeps = flow.shares ? static_cast<int>(batch.B) : 0;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    using acc_t = acc_of<scalar_t>;
    const RowBlocks blocks = RowBlocks::of(batch, lanes_for<scalar_t>(batch.V));
    const auto kernel = p.normalizer != Normalizer::kNone ? gradient_kernel<scalar_t, acc_t, true>
                        : p.posteriors.wide               ? gradient_kernel<scalar_t, double, false>
                                                          : gradient_kernel<scalar_t, acc_t, false>;
    launch(kernel, sweeps + blocks.count(), kThreads, stream, flow, p, blocks, sweeps);
  });
}

}  // namespace rnnt::cuda
