// The lattice functions over a range of utterances. float runs on the best vectors the machine has, double on scalars.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../backend.h"
#include "cell.h"
#include "isa.h"

#define RNNT_KERNELS "lattice_kernels.h"
#include "each_isa.h"

namespace rnnt::cpu {

void lattice(const LatticeParams& p, int64_t first, int64_t last) {
  p.arcs.wide ? baseline::lattice_of<double>(p, first, last) : RNNT_DISPATCH(float_lattice)(p, first, last);
}

void posteriors(const PosteriorParams& p, int64_t first, int64_t last) {
  p.posteriors.wide ? baseline::posteriors_from_shares<double>(p, first, last)
                    : RNNT_DISPATCH(float_posteriors)(p, first, last);
}

// What is always in double, on scalars.
using namespace baseline;

void alpha_beta(const AlphaBetaParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const int64_t cells = batch.T * batch.U1;
  std::vector<double> front(2 * layout.stride);
  std::vector<Value<double>> next(batch.U1 + 1);
  for (int64_t b = first; b < last; b++) {
    const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b];
    double *alpha = p.alpha + b * cells, *beta = p.beta + b * cells;
    std::fill_n(alpha, cells, -INFINITY);
    std::fill_n(beta, cells, -INFINITY);
    const ArcPlanes<double> arcs = arcs_of<double>(p.arcs, layout, b);
    arcs.clear_outside(batch.topology, layout, T, U);
    const auto keep_alpha = [&](int64_t f, int64_t u, Value<double> value, double) {
      const int64_t t = batch.topology.frame(f, u);
      if (0 <= t && t < T) alpha[t * batch.U1 + u] = nats_from_value(value);
    };
    const auto keep_beta = [&](int64_t f, int64_t u, Value<double> value) {
      beta[batch.topology.frame(f, u) * batch.U1 + u] = nats_from_value(value);
    };
    alpha[0] = 0;
    const double log_z = forward<Sum, double>(batch.topology, layout, T, U, arcs, front.data(),
                                              front.data() + layout.stride, keep_alpha);
    p.loss.set(b, 0.0 - log_z);
    backward(batch.topology, layout, T, U, arcs, next.data(), keep_beta);
  }
}

void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams& p, int64_t first, int64_t last) {
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    for (int64_t b = first; b < last; b++) {
      const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b], cells = batch.T * batch.U1;
      const double *alpha = p.alpha + b * cells, *beta = p.beta + b * cells;
      const PosteriorPlanes<double> out = posteriors_of<double>(p.posteriors, layout, b);
      const double log_z = beta[0];
      const auto posterior = [&](double before, double score, double after) {
        if (std::isnan(log_z)) return log_z;
        // A dead end on either side (both, where there is no path): -inf is a value, never subtracted from itself.
        return before == -INFINITY || score == -INFINITY || after == -INFINITY
                   ? 0.0
                   : std::exp(before + score + after - log_z);
      };
      const auto beta_at = [&](int64_t t, int64_t u) {
        if (t == T) return u == U ? 0.0 : static_cast<double>(-INFINITY);
        return beta[t * batch.U1 + u];
      };
      for (int64_t t = 0; t < T; t++) {
        for (int64_t u = 0; u <= U; u++) {
          const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(batch, b, t, u);
          const double before = alpha[t * batch.U1 + u];
          const int64_t slot = layout.slot(batch.topology.front(t, u), u);
          out.blank[slot] = posterior(before, load(row[batch.blank]), beta_at(t + batch.topology.blank.dt, u));
          out.label[slot] = u < U ? posterior(before, load(row[batch.labels[b * (batch.U1 - 1) + u]]),
                                              beta_at(t + batch.topology.label.dt, u + 1))
                                  : 0.0;
        }
      }
    }
  });
}

}  // namespace rnnt::cpu
