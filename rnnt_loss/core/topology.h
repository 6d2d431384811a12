// The lattice's shape as data (README, eq. 1 and 5). A node is (t, u); an arc goes to (t + dt, u + du); du = 0 is
// blank, du = 1 is label u. Paths lead from (0, 0) to (T, U).
//
// A front is the set of nodes with equal t + skew * u. The skew is chosen so that every arc leads from its front to
// the next one: in the coordinates (front, u) all topologies of one frame or label per arc are the same recursion,
// blank from (f, u) to (f + 1, u) and label from (f, u) to (f + 1, u + 1). The standard lattice's fronts are its
// anti-diagonals, those of one label per frame are its frames.
#pragma once

#include "platform.h"

namespace rnnt {

struct Arc {
  int dt, du;
};

struct Topology {
  Arc blank, label;

  RNNT_HD int64_t skew() const { return blank.dt - label.dt; }
  RNNT_HD int64_t front(int64_t t, int64_t u) const { return t + skew() * u; }
  RNNT_HD int64_t frame(int64_t front, int64_t u) const { return front - skew() * u; }

  // Cells (t < T) lie on the fronts 0 .. last_front - 1; the end node (T, U) alone counts on last_front.
  RNNT_HD int64_t last_front(int64_t T, int64_t U) const { return front(T, U); }
  RNNT_HD int64_t first_label(int64_t f, int64_t T) const { return skew() && f >= T ? f - T + 1 : 0; }
  RNNT_HD int64_t last_label(int64_t f, int64_t U) const { return skew() && f < U ? f : U; }
};

constexpr Topology kStandard = {{1, 0}, {0, 1}};  // Graves 2012
constexpr Topology kModified = {{1, 0}, {1, 1}};  // one label per frame

// Any arcs, in the fronts of t + u: there they lead from a front to one that lies arc_span behind it.
constexpr int kMostArcs = 32;

struct ArcSet {
  int count;
  bool ends_by_blank;  // an arc that says a label may not lead to frame T
  Arc arc[kMostArcs];

  RNNT_HD int64_t span(int k) const { return arc[k].dt + arc[k].du; }
};

// Labels u of the cells of a front from which arc k leads to a node of the lattice; none where last < first.
struct LabelRange {
  int64_t first, last;

  RNNT_HD bool has(int64_t u) const { return first <= u && u <= last; }
};

RNNT_HD LabelRange leaving(const ArcSet& arcs, int k, int64_t front, int64_t T, int64_t U) {
  const int64_t dt = arcs.arc[k].dt, du = arcs.arc[k].du;
  int64_t latest = T - dt - (arcs.ends_by_blank && du ? 1 : 0);  // frame
  if (latest > T - 1) latest = T - 1;
  const int64_t first = front - latest, last = U - du;
  return {first > 0 ? first : 0, last < front ? last : front};
}

// Where cell or node (front, u) of an utterance lies in arc scores, shares and posteriors. A front is contiguous, so
// that neighbours in u are neighbours in memory; its length is a multiple of 16 values, one cache line of floats.
struct FrontLayout {
  int64_t fronts, stride;

  RNNT_HD int64_t slots() const { return fronts * stride; }
  RNNT_HD int64_t slot(int64_t front, int64_t u) const { return front * stride + u; }
};

RNNT_HD FrontLayout front_layout(Topology topology, int64_t T, int64_t U1) {
  return {topology.last_front(T, U1 - 1) + 1, (U1 + 15) / 16 * 16};
}

}  // namespace rnnt
