// The core and the storage types behind a C interface, for test_core.py.
#include <algorithm>
#include <vector>

#include "../rnnt_loss/core/core.h"

using namespace rnnt;

namespace {

// Returns log Z; posteriors, alpha and beta [T, U + 1] are in doubles whatever Real is.
template <typename Merge, typename Real>
double run(int64_t T, int64_t U, Topology topology, const double* blank, const double* label, double* blank_posterior,
           double* label_posterior, double* alpha, double* beta) {
  const FrontLayout layout = front_layout(topology, T, U + 1);
  const int64_t slots = layout.slots();
  std::vector<Real> planes(4 * slots, Real(NAN)), shares(slots, Real(NAN)), front(2 * layout.stride, Real(NAN));
  const ArcPlanes<Real> arcs = {planes.data(), planes.data() + slots, planes.data() + 2 * slots,
                                planes.data() + 3 * slots};
  for (int64_t t = 0; t < T; t++) {
    for (int64_t u = 0; u <= U; u++) {
      const int64_t slot = layout.slot(topology.front(t, u), u), cell = t * (U + 1) + u;
      arcs.set_blank(slot, value_from_nats<Real>(blank[cell]));
      arcs.set_label(slot, value_from_nats<Real>(label[cell]));
    }
  }
  arcs.clear_outside(topology, layout, T, U);
  const auto cell_of = [&](int64_t f, int64_t u) {  // -1 for what is no cell
    const int64_t t = topology.frame(f, u);
    return 0 <= t && t < T && u <= U ? t * (U + 1) + u : -1;
  };
  std::fill_n(alpha, T * (U + 1), -INFINITY);
  alpha[0] = 0;
  const double log_z = forward<Merge, Real>(topology, layout, T, U, arcs, front.data(), front.data() + layout.stride,
                                            [&](int64_t f, int64_t u, Value<Real> value, Real share) {
                                              shares[layout.slot(f, u)] = share;
                                              if (cell_of(f, u) >= 0) alpha[cell_of(f, u)] = nats_from_value(value);
                                            });
  flow<Real>(topology, layout, T, U, shares.data(), front.data(), [&](int64_t f, int64_t u, Real b, Real l) {
    if (cell_of(f, u) < 0) return;
    blank_posterior[cell_of(f, u)] = b;
    label_posterior[cell_of(f, u)] = l;
  });
  std::vector<Value<Real>> next(U + 2);
  backward(topology, layout, T, U, arcs, next.data(),
           [&](int64_t f, int64_t u, Value<Real> value) { beta[cell_of(f, u)] = nats_from_value(value); });
  return log_z;
}

}  // namespace

extern "C" {

double run_lattice(int64_t T, int64_t U, bool modified, bool best_path, bool wide, const double* blank,
                   const double* label, double* blank_posterior, double* label_posterior, double* alpha, double* beta) {
  const Topology topology = modified ? kModified : kStandard;
  const auto function =
      best_path ? (wide ? run<Max, double> : run<Max, float>) : (wide ? run<Sum, double> : run<Sum, float>);
  return function(T, U, topology, blank, label, blank_posterior, label_posterior, alpha, beta);
}

// e^a + e^b, and the shares of both
double add_in_nats(double a, double b, bool wide, double* share_of_a, double* share_of_b) {
  const auto add = [&](auto real) {
    using Real = decltype(real);
    const Value<Real> sum = Sum::merge(value_from_nats<Real>(a), value_from_nats<Real>(b), real);
    const Shares<Real> shares = shares_of(real);
    *share_of_a = shares.first, *share_of_b = shares.second;
    return nats_from_value(sum);
  };
  return wide ? add(0.0) : add(0.0f);
}

void exp_floats(int64_t n, const float* x, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = exp_of(x[i]);
}
void log_floats(int64_t n, const float* x, const float* less, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = log_of_sum(x[i], less[i]);
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
