// The lattice of one utterance, front by front: forward with the share of each arrival (README, eq. 2 to 4), the
// occupancy's flow back through the shares (eq. 7), and beta (eq. 9). `arcs.blank(front, u)` and
// `arcs.label(front, u)` give the values of the arcs that leave a cell; `visit` receives what was computed.
#pragma once

#include "merge.h"
#include "topology.h"

namespace rnnt {

// The occupancy of a node, split over the arcs that arrive there.
template <typename Real>
struct Arrivals {
  Real by_blank, by_label;
};

template <typename Real>
RNNT_HD Arrivals<Real> split(Real occupancy, Real share_of_blank) {
  const Real by_blank = share_of_blank * occupancy;
  return {by_blank, occupancy - by_blank};
}

// log Z in nats; -inf where no path exists, NaN where an arc of any cell is NaN, also one that leads out of the
// lattice. visit(front, u, alpha, share of the blank arrival), the end node included.
// arrivals: [2 (U + 2)]. One front's arrivals are kept, by blank and by label; going down in u, a cell has taken
// its own before its lower neighbour puts the next front's there.
template <typename Merge, typename Real, typename Arcs, typename Visit>
RNNT_HD double forward(Topology topology, int64_t T, int64_t U, Value<Real>* arrivals, Arcs arcs, Visit visit) {
  Value<Real>*by_blank = arrivals, *by_label = arrivals + U + 2;
  for (int64_t u = 0; u < U + 2; u++) by_blank[u] = by_label[u] = zero<Real>();
  by_blank[0] = one<Real>();
  Real share, poison = 0;
  const int64_t end = topology.last_front(T, U);
  for (int64_t f = 0; f < end; f++) {
    for (int64_t u = topology.last_label(f, U); u >= topology.first_label(f, T); u--) {
      const Value<Real> alpha = Merge::merge(by_blank[u], by_label[u], share);
      visit(f, u, alpha, share);
      by_blank[u] = alpha * arcs.blank(f, u);
      by_label[u] = zero<Real>();
      poison += Real(0) * by_blank[u].mantissa;
      if (u == U) continue;
      by_label[u + 1] = alpha * arcs.label(f, u);
      poison += Real(0) * by_label[u + 1].mantissa;
    }
  }
  const Value<Real> total = Merge::merge(by_blank[U], by_label[U], share);
  visit(end, U, total, share);
  return nats_from_value(total) + poison;
}

// Posteriors of the arcs: visit(front, u, blank posterior, label posterior) for every cell. `share(front, u)` is what
// forward gave. work: [2 (U + 2)], the next front's occupancies split over their arrivals.
template <typename Real, typename Share, typename Visit>
RNNT_HD void flow(Topology topology, int64_t T, int64_t U, Real* work, Share share, Visit visit) {
  Real *to_blank = work, *to_label = work + U + 2;
  for (int64_t u = 0; u < U + 2; u++) to_blank[u] = to_label[u] = 0;
  const int64_t end = topology.last_front(T, U);
  const Arrivals<Real> last = split(Real(1), share(end, U));
  to_blank[U] = last.by_blank;
  to_label[U] = last.by_label;
  for (int64_t f = end - 1; f >= 0; f--) {
    for (int64_t u = topology.first_label(f, T); u <= topology.last_label(f, U); u++) {
      const Real blank = to_blank[u], label = u < U ? to_label[u + 1] : Real(0);
      visit(f, u, blank, label);
      const Arrivals<Real> in = split(blank + label, share(f, u));
      to_blank[u] = in.by_blank;
      to_label[u] = in.by_label;
    }
  }
}

// beta: visit(front, u, beta) for every cell. next: [U + 2], the next front's beta.
template <typename Real, typename Arcs, typename Visit>
RNNT_HD void backward(Topology topology, int64_t T, int64_t U, Value<Real>* next, Arcs arcs, Visit visit) {
  for (int64_t u = 0; u < U + 2; u++) next[u] = zero<Real>();
  next[U] = one<Real>();
  Real share;
  for (int64_t f = topology.last_front(T, U) - 1; f >= 0; f--) {
    for (int64_t u = topology.first_label(f, T); u <= topology.last_label(f, U); u++) {
      const Value<Real> by_label = u < U ? next[u + 1] * arcs.label(f, u) : zero<Real>();
      next[u] = Sum::merge(next[u] * arcs.blank(f, u), by_label, share);
      visit(f, u, next[u]);
    }
  }
}

}  // namespace rnnt
