// The lattice functions over a range of utterances: the core's sweeps between the planes in memory.
#include "../core/lattice.h"

#include <algorithm>
#include <vector>

#include "../backend.h"
#include "cell.h"

namespace rnnt::cpu {
namespace {

// Calls f(float()) or f(double()).
template <typename F>
void with_acc(bool wide, F f) {
  wide ? f(double()) : f(float());
}

template <typename acc_t>
struct ArcReader {
  ArcPlanes<acc_t> planes;
  FrontLayout layout;

  Value<acc_t> blank(int64_t f, int64_t u) const {
    return {planes.blank_mantissa[layout.slot(f, u)], planes.blank_exponent[layout.slot(f, u)]};
  }
  Value<acc_t> label(int64_t f, int64_t u) const {
    return {planes.label_mantissa[layout.slot(f, u)], planes.label_exponent[layout.slot(f, u)]};
  }
};

}  // namespace

void lattice(const LatticeParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  with_acc(p.arcs.wide, [&](auto acc) {
    using acc_t = decltype(acc);
    std::vector<Value<acc_t>> work(2 * (batch.U1 + 1));
    for (int64_t b = first; b < last; b++) {
      acc_t* shares = p.shares ? static_cast<acc_t*>(p.shares) + b * layout.slots() : nullptr;
      const ArcReader<acc_t> arcs{{p.arcs, batch, b}, layout};
      const auto keep = [&](int64_t f, int64_t u, Value<acc_t>, acc_t share) {
        if (shares) shares[layout.slot(f, u)] = share;
      };
      const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b];
      p.loss[b] = 0.0 - forward<Sum>(batch.topology, T, U, work.data(), arcs, keep);  // 0 - 0 is +0, where -0 is not
    }
  });
}

void alpha_beta(const AlphaBetaParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const int64_t cells = batch.T * batch.U1;
  std::vector<Value<double>> work(2 * (batch.U1 + 1));
  for (int64_t b = first; b < last; b++) {
    const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b];
    double *alpha = p.alpha + b * cells, *beta = p.beta + b * cells;
    std::fill_n(alpha, cells, -INFINITY);
    std::fill_n(beta, cells, -INFINITY);
    const ArcReader<double> arcs{{p.arcs, batch, b}, layout};
    const auto cell = [&](int64_t f, int64_t u) { return batch.topology.frame(f, u) * batch.U1 + u; };
    const auto keep_alpha = [&](int64_t f, int64_t u, Value<double> value, double) {
      if (batch.topology.frame(f, u) < T) alpha[cell(f, u)] = nats_from_value(value);
    };
    const auto keep_beta = [&](int64_t f, int64_t u, Value<double> value) {
      beta[cell(f, u)] = nats_from_value(value);
    };
    p.loss[b] = 0.0 - forward<Sum>(batch.topology, T, U, work.data(), arcs, keep_alpha);
    backward(batch.topology, T, U, work.data(), arcs, keep_beta);
  }
}

void posteriors(const PosteriorParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  with_acc(p.wide, [&](auto acc) {
    using acc_t = decltype(acc);
    std::vector<acc_t> work(2 * (batch.U1 + 1));
    for (int64_t b = first; b < last; b++) {
      const PosteriorPlanes<acc_t> out(p.posteriors, batch, b);
      if (!std::isfinite(p.loss[b])) {  // no path: all posteriors are 0; no loss: there are none
        std::fill_n(out.blank, layout.slots(), p.loss[b] == INFINITY ? acc_t(0) : acc_t(NAN));
        std::fill_n(out.label, layout.slots(), p.loss[b] == INFINITY ? acc_t(0) : acc_t(NAN));
        continue;
      }
      const acc_t* shares = static_cast<const acc_t*>(p.shares) + b * layout.slots();
      const auto share = [&](int64_t f, int64_t u) { return shares[layout.slot(f, u)]; };
      const auto keep = [&](int64_t f, int64_t u, acc_t blank, acc_t label) {
        out.blank[layout.slot(f, u)] = blank;
        out.label[layout.slot(f, u)] = label;
      };
      flow(batch.topology, batch.input_lengths[b], batch.label_lengths[b], work.data(), share, keep);
    }
  });
}

void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams& p, int64_t first, int64_t last) {
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    for (int64_t b = first; b < last; b++) {
      const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b], cells = batch.T * batch.U1;
      const double *alpha = p.alpha + b * cells, *beta = p.beta + b * cells;
      const int64_t* labels = batch.labels + b * (batch.U1 - 1);
      const PosteriorPlanes<double> out(p.posteriors, batch, b);
      const double log_z = beta[0];
      const auto posterior = [&](double before, double score, double after) {
        if (std::isnan(log_z)) return log_z;
        // A dead end on either side, or no path at all: -inf is a value, never subtracted from itself.
        return before == -INFINITY || score == -INFINITY || after == -INFINITY || log_z == -INFINITY
                   ? 0.0
                   : std::exp(before + score + after - log_z);
      };
      const auto beta_at = [&](int64_t t, int64_t u) {
        if (t == T) return u == U ? 0.0 : static_cast<double>(-INFINITY);
        return beta[t * batch.U1 + u];
      };
      for (int64_t t = 0; t < T; t++) {
        for (int64_t u = 0; u <= U; u++) {
          const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u);
          const double before = alpha[t * batch.U1 + u];
          const int64_t slot = layout.slot(batch.topology.front(t, u), u);
          out.blank[slot] = posterior(before, load(row[batch.blank]), beta_at(t + batch.topology.blank.dt, u));
          out.label[slot] =
              u < U ? posterior(before, load(row[labels[u]]), beta_at(t + batch.topology.label.dt, u + 1)) : 0.0;
        }
      }
    }
  });
}

}  // namespace rnnt::cpu
