// alpha and beta for those who ask for them (README, eq. 9), and the posteriors of the arcs from them.
#include "../backend.h"
#include "lattice.cuh"
#include "progress.cuh"
#include "rows.cuh"

namespace rnnt::cuda {
namespace {

// Two blocks an utterance, one for each sweep, side by side.
__global__ void __launch_bounds__(kThreads, 1) alpha_beta_kernel(AlphaBetaParams p) {
  const int64_t b = blockIdx.x / 2;
  const bool is_alpha = blockIdx.x % 2 == 0;
  const Lattice lattice(p.batch, b);
  const Arcs<double>* arcs = slots_of<Arcs, double>(p.arcs, b);
  Value<double>* columns = columns_of<Value<double>>(p.workspace, p.batch, blockIdx.x);
  const int U1 = lattice.U1;
  const int64_t cells = p.batch.T * U1;
  double* out = (is_alpha ? p.alpha : p.beta) + b * cells;
  const auto keep_of = [&](int u) {
    const Cells of_label(lattice, u);
    return [=](int front, Value<double> value, double = 0) {
      if (of_label.has(front)) out[static_cast<int64_t>(front - of_label.first) * U1 + u] = nats_from_value(value);
    };
  };
  for (int64_t cell = threadIdx.x; cell < cells; cell += kThreads)
    if (cell / U1 >= lattice.T || cell % U1 > lattice.U) out[cell] = -INFINITY;
  if (is_alpha) {
    for (int u = threadIdx.x; u < U1; u += kThreads) keep_of(u)(0, u == 0 ? one<double>() : zero<double>());
    sweep_alpha(lattice, arcs, FramesDone::all(), columns, keep_of, p.loss, b);
  } else {
    using Sweep = BetaSweep<decltype(keep_of(0))>;
    __shared__ typename Wavefront<Sweep>::Channels channels;
    Wavefront<Sweep> wavefront(channels, columns, lattice.steps);
    wavefront.each_panel(lattice.U, U1, [&](int u, bool is_active, auto run) {
      if (!is_active) return;
      Sweep sweep(lattice, arcs, u, keep_of(u));
      run(sweep);
    });
  }
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) posteriors_kernel(PosteriorFromAlphaBetaParams p, RowBlocks blocks) {
  const Batch& batch = p.batch;
  const RowThread at(batch, blocks, blockIdx.x);
  const Utterance utterance = utterance_of(batch, at.b);
  if (!at.exists || !utterance.has(at.t, at.u)) return;
  const scalar_t* row = at.template row_of<scalar_t>(batch, p.x);
  const double before = p.alpha[at.row], *beta = p.beta + at.b * batch.T * batch.U1, log_z = beta[0];
  const auto posterior = [&](int label, Arc arc) {
    if (log_z != log_z) return log_z;
    if (label < 0) return 0.0;
    const int t = at.t + arc.dt, u = at.u + arc.du;
    const double score = load(row[label]);
    const double after = t < utterance.T ? beta[t * batch.U1 + u] : u == utterance.U ? 0.0 : -INFINITY;
    // A dead end on either side (both, where there is no path): -inf is a value, never subtracted from itself.
    const bool dead = before == -INFINITY || score == -INFINITY || after == -INFINITY;
    return dead ? 0.0 : exp(before + score + after - log_z);
  };
  slots_of<Posteriors, double>(p.posteriors, at.b)[at.slot(batch)] = {
      posterior(static_cast<int>(batch.blank), batch.topology.blank),
      posterior(label_of(batch, at.b, at.u, utterance.U), batch.topology.label)};
}

}  // namespace

void alpha_beta(const AlphaBetaParams& p, void* stream) {
  if (p.batch.B) launch(alpha_beta_kernel, 2 * p.batch.B, kThreads, stream, p);
}

void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  const RowBlocks blocks = RowBlocks::of(p.batch, 1);
  dispatch(p.x.dtype, [&](auto scalar) {
    launch(posteriors_kernel<decltype(scalar)>, blocks.count(), kThreads, stream, p, blocks);
  });
}

}  // namespace rnnt::cuda
