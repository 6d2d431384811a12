// The lattice of one utterance, front by front: forward with the share of each arrival (README, eq. 2 to 4), the
// occupancy's flow back through the shares (eq. 7), and beta (eq. 9). A sweep takes Lanes<Real>::kWidth neighbours in u
// at a time, one with scalars.
//
// Arcs that leave no cell have to be zero (clear_outside): then lanes outside the lattice carry zero mass and zero
// occupancy, and no step needs to ask where it is.

// The values of an utterance's arcs, in its front layout.
template <typename Scalar>
struct ArcPlanes {
  Scalar *blank_mantissa, *blank_exponent, *label_mantissa, *label_exponent;

  template <typename Real>
  RNNT_HD Value<Real> blank(int64_t slot) const {
    return {Lanes<Real>::load(blank_mantissa + slot), Lanes<Real>::load(blank_exponent + slot)};
  }
  template <typename Real>
  RNNT_HD Value<Real> label(int64_t slot) const {
    return {Lanes<Real>::load(label_mantissa + slot), Lanes<Real>::load(label_exponent + slot)};
  }
  RNNT_HD void set_blank(int64_t slot, Value<Scalar> value) const {
    blank_mantissa[slot] = value.mantissa;
    blank_exponent[slot] = value.exponent;
  }
  RNNT_HD void set_label(int64_t slot, Value<Scalar> value) const {
    label_mantissa[slot] = value.mantissa;
    label_exponent[slot] = value.exponent;
  }

  RNNT_HD void clear_outside(Topology topology, FrontLayout layout, int64_t T, int64_t U) const {
    for (int64_t f = 0; f < topology.last_front(T, U); f++) {
      const int64_t first = topology.first_label(f, T), last = topology.last_label(f, U);
      for (int64_t u = 0; u < layout.stride; u++) {
        if (u == first) u = last;  // of the cells, the last may have no label arc
        if (u != last) set_blank(layout.slot(f, u), zero<Scalar>());
        if (u != last || u == U) set_label(layout.slot(f, u), zero<Scalar>());
      }
    }
  }
};

// log Z in nats; -inf where no path exists, NaN where an arc of any cell is NaN, also one that leads out of the
// lattice. keep(front, u, alpha, shares of the blank and the label arrival) is called for the nodes of every front but
// the first. mantissas, exponents: [stride], the alpha of one front.
template <typename Merge, typename Real, typename Scalar, typename Keep>
RNNT_HD double forward(Topology topology, FrontLayout layout, int64_t T, int64_t U, ArcPlanes<Scalar> arcs,
                       Scalar* mantissas, Scalar* exponents, Keep keep) {
  using L = Lanes<Real>;
  for (int64_t u = 0; u < layout.stride; u++) mantissas[u] = 0, exponents[u] = -INFINITY;
  mantissas[0] = 1, exponents[0] = 0;
  Real share, poison = splat<Real>(0);
  const int64_t end = topology.last_front(T, U);
  for (int64_t f = 1; f <= end; f++) {
    Value<Real> below = zero<Real>();
    const int64_t last = topology.last_label(f, U);
    for (int64_t u = topology.first_label(f - 1, T) / L::kWidth * L::kWidth; u <= last; u += L::kWidth) {
      const int64_t from = layout.slot(f - 1, u);
      const Value<Real> alpha = {L::load(mantissas + u), L::load(exponents + u)};
      const Value<Real> by_blank = alpha * arcs.template blank<Real>(from);
      const Value<Real> by_label = alpha * arcs.template label<Real>(from);
      poison += splat<Real>(0) * (by_blank.mantissa + by_label.mantissa);
      const Value<Real> shifted = {L::shift_up(below.mantissa, by_label.mantissa),
                                   L::shift_up(below.exponent, by_label.exponent)};
      below = by_label;
      const Value<Real> next = Merge::merge(by_blank, shifted, share);
      L::store(mantissas + u, next.mantissa);
      L::store(exponents + u, next.exponent);
      keep(f, u, next, share);
    }
  }
  return nats_from_value(Value<Scalar>{mantissas[U], exponents[U]}) +
         L::fold(poison, [](Real a, Real b) RNNT_INLINE { return a + b; });
}

// Posteriors of the arcs: keep(front, u, of blank, of label) for the cells of every front. shares: [fronts, stride],
// what forward kept. occupancy: [stride], that of one front.
template <typename Real, typename Scalar, typename Keep>
RNNT_HD void flow(Topology topology, FrontLayout layout, int64_t T, int64_t U, const Scalar* shares, Scalar* occupancy,
                  Keep keep) {
  using L = Lanes<Real>;
  for (int64_t u = 0; u < layout.stride; u++) occupancy[u] = 0;
  occupancy[U] = 1;
  for (int64_t f = topology.last_front(T, U) - 1; f >= 0; f--) {
    Real above = splat<Real>(0);
    const int64_t first = topology.first_label(f, T) / L::kWidth * L::kWidth;
    for (int64_t u = topology.last_label(f + 1, U) / L::kWidth * L::kWidth; u >= first; u -= L::kWidth) {
      const Real node = L::load(occupancy + u);
      const Shares<Real> share = shares_of(L::load(shares + layout.slot(f + 1, u)));
      const Real by_blank = share.first * node, by_label = share.second * node;
      const Real label = L::shift_down(by_label, above);
      above = by_label;
      L::store(occupancy + u, by_blank + label);
      keep(f, u, by_blank, label);
    }
  }
}

// beta: keep(front, u, beta) for the cells of every front. next: [U + 2], the beta of one front.
template <typename Real, typename Keep>
RNNT_HD void backward(Topology topology, FrontLayout layout, int64_t T, int64_t U, ArcPlanes<Real> arcs,
                      Value<Real>* next, Keep keep) {
  for (int64_t u = 0; u < U + 2; u++) next[u] = zero<Real>();
  next[U] = one<Real>();
  Real share;
  for (int64_t f = topology.last_front(T, U) - 1; f >= 0; f--) {
    for (int64_t u = topology.first_label(f, T); u <= topology.last_label(f, U); u++) {
      const int64_t slot = layout.slot(f, u);
      next[u] =
          Sum::merge(next[u] * arcs.template blank<Real>(slot), next[u + 1] * arcs.template label<Real>(slot), share);
      keep(f, u, next[u]);
    }
  }
}
