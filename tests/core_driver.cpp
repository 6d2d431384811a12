// The core and the storage types behind a C interface, for test_core.py.
#include <algorithm>
#include <vector>

#include "../rnnt_loss/core/lattice.h"
#include "../rnnt_loss/core/normalizer.h"
#include "../rnnt_loss/dtype.h"

using namespace rnnt;

namespace {

struct Scores {
  const double *blank_nats, *label_nats;  // [T, U + 1]
  Topology topology;
  int64_t U1;

  int64_t cell(int64_t f, int64_t u) const { return topology.frame(f, u) * U1 + u; }
};

template <typename Real>
struct ScoreArcs : Scores {
  Value<Real> blank(int64_t f, int64_t u) const { return value_from_nats<Real>(blank_nats[cell(f, u)]); }
  Value<Real> label(int64_t f, int64_t u) const { return value_from_nats<Real>(label_nats[cell(f, u)]); }
};

// Returns log Z; posteriors, alpha and beta [T, U + 1] are in doubles whatever Real is.
template <typename Merge, typename Real>
double run(int64_t T, int64_t U, Topology topology, const double* blank, const double* label, double* blank_posterior,
           double* label_posterior, double* alpha, double* beta) {
  const ScoreArcs<Real> arcs{{blank, label, topology, U + 1}};
  const FrontLayout layout = front_layout(topology, T, U + 1);
  std::vector<Value<Real>> work(2 * (U + 2));
  std::vector<Real> shares(layout.slots()), flow_work(2 * (U + 2));
  const double log_z = forward<Merge>(topology, T, U, work.data(), arcs,
                                      [&](int64_t f, int64_t u, Value<Real> value, Real share) {
                                        shares[layout.slot(f, u)] = share;
                                        const int64_t t = topology.frame(f, u);
                                        if (t < T) alpha[t * (U + 1) + u] = nats_from_value(value);
                                      });
  flow(
      topology, T, U, flow_work.data(), [&](int64_t f, int64_t u) { return shares[layout.slot(f, u)]; },
      [&](int64_t f, int64_t u, Real b, Real l) {
        blank_posterior[arcs.cell(f, u)] = b;
        label_posterior[arcs.cell(f, u)] = l;
      });
  backward(topology, T, U, work.data(), arcs,
           [&](int64_t f, int64_t u, Value<Real> value) { beta[arcs.cell(f, u)] = nats_from_value(value); });
  return log_z;
}

}  // namespace

extern "C" {

double run_lattice(int64_t T, int64_t U, bool modified, bool best_path, bool wide, const double* blank,
                   const double* label, double* blank_posterior, double* label_posterior, double* alpha,
                   double* beta) {
  const Topology topology = modified ? kModified : kStandard;
  const auto function = best_path ? (wide ? run<Max, double> : run<Max, float>)
                                  : (wide ? run<Sum, double> : run<Sum, float>);
  return function(T, U, topology, blank, label, blank_posterior, label_posterior, alpha, beta);
}

// e^a + e^b, and the share of a
double add_in_nats(double a, double b, bool wide, double* share) {
  if (wide) return nats_from_value(Sum::merge(value_from_nats<double>(a), value_from_nats<double>(b), *share));
  float share_of_a;
  const double sum = nats_from_value(Sum::merge(value_from_nats<float>(a), value_from_nats<float>(b), share_of_a));
  *share = share_of_a;
  return sum;
}

void exp2_floats(int64_t n, const float* x, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = exp2_of(x[i]);
}
void load_halves(int64_t n, const uint16_t* bits, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = load(float16{bits[i]});
}
void load_bfloat16s(int64_t n, const uint16_t* bits, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = load(bfloat16{bits[i]});
}
void store_halves(int64_t n, const float* x, uint16_t* bits) {
  for (int64_t i = 0; i < n; i++) bits[i] = store<float16>(x[i]).bits;
}
void store_bfloat16s(int64_t n, const float* x, uint16_t* bits) {
  for (int64_t i = 0; i < n; i++) bits[i] = store<bfloat16>(x[i]).bits;
}
}
