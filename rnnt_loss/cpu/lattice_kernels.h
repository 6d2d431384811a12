// The lattice functions of one instruction set (see each_isa.h): the core's sweeps between the planes in memory.

template <typename Real>
void lattice_of(const LatticeParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  std::vector<acc_t> alpha(2 * layout.stride);
  for (int64_t b = first; b < last; b++) {
    const int64_t T = batch.input_lengths[b], U = batch.label_lengths[b];
    const ArcPlanes<acc_t> arcs = arcs_of<acc_t>(p.arcs, layout, b);
    arcs.clear_outside(batch.topology, layout, T, U);
    acc_t* shares = p.shares ? static_cast<acc_t*>(p.shares) + b * layout.slots() : nullptr;
    if (shares) std::fill_n(shares, layout.slots(), acc_t(0));  // the sweep does not come everywhere
    const auto keep = [&](int64_t f, int64_t u, Value<Real>, Real share) RNNT_INLINE {
      if (shares) Lanes<Real>::store(shares + layout.slot(f, u), share);
    };
    const double log_z =
        forward<Sum, Real>(batch.topology, layout, T, U, arcs, alpha.data(), alpha.data() + layout.stride, keep);
    p.loss.set(b, 0.0 - log_z);  // 0 - 0 is +0, where -0 is not
  }
}

template <typename Real>
void posteriors_from_shares(const PosteriorParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const FlushDenormals flush;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  std::vector<acc_t> occupancy(layout.stride);
  for (int64_t b = first; b < last; b++) {
    const PosteriorPlanes<acc_t> out = posteriors_of<acc_t>(p.posteriors, layout, b);
    const double loss = p.loss.at(b);
    if (!std::isfinite(loss)) {  // no path: all posteriors are 0; no loss: there are none
      std::fill_n(out.blank, layout.slots(), loss == INFINITY ? acc_t(0) : acc_t(NAN));
      std::fill_n(out.label, layout.slots(), loss == INFINITY ? acc_t(0) : acc_t(NAN));
      continue;
    }
    const auto keep = [&](int64_t f, int64_t u, Real blank, Real label) RNNT_INLINE {
      Lanes<Real>::store(out.blank + layout.slot(f, u), blank);
      Lanes<Real>::store(out.label + layout.slot(f, u), label);
    };
    flow<Real>(batch.topology, layout, batch.input_lengths[b], batch.label_lengths[b],
               static_cast<const acc_t*>(p.shares) + b * layout.slots(), occupancy.data(), keep);
  }
}

void float_lattice(const LatticeParams& p, int64_t first, int64_t last) { lattice_of<Floats>(p, first, last); }
void float_posteriors(const PosteriorParams& p, int64_t first, int64_t last) {
  posteriors_from_shares<Floats>(p, first, last);
}
