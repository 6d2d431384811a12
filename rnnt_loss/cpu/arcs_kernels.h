// The lattice of any arcs and the tensors at its ends, for one instruction set (see each_isa.h).

struct OneThread {
  static constexpr bool kRemembers = true;
  using Flag = int32_t;
  RNNT_HD int64_t rank() const { return 0; }
  RNNT_HD int64_t size() const { return 1; }
  RNNT_HD void sync() const {}
  RNNT_HD bool any(Flag condition) const { return condition; }
  template <typename Visit>
  RNNT_HD void each(int64_t rows, int64_t columns, Visit visit) const {
    for (int64_t row = 0; row < rows; row++)
      for (int64_t column = 0; column < columns; column++) visit(row, column);
  }
};

template <typename Real>
void arc_lattice_of(const ArcLatticeParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  std::vector<typename Lanes<Real>::Scalar> memory(arc_memory(p));
  for (int64_t b = first; b < last; b++)
    run_arc_lattice<Real>(p, b, p.input_lengths[b], p.label_lengths[b], memory.data(), OneThread());
}

void float_arc_lattice(const ArcLatticeParams& p, int64_t first, int64_t last) {
  arc_lattice_of<Floats>(p, first, last);
}

// visit(slot, first of cells, lanes) for the lanes of each front of an utterance, the first `labels` columns of it:
// lane i is cells[i * step].
template <typename Real, typename Visit>
RNNT_HD void each_front(const Batch& batch, int64_t b, int64_t labels, Visit visit) {
  constexpr int kWidth = Lanes<Real>::kWidth;
  const FrontLayout layout = batch.layout();
  const int64_t T = batch.input_lengths[b];
  for (int64_t f = 0; f < batch.topology.front(T - 1, labels - 1) + 1; f++) {
    const int64_t first = batch.topology.first_label(f, T), end = batch.topology.last_label(f, labels - 1) + 1;
    for (int64_t u = first / kWidth * kWidth; u < end; u += kWidth) {
      const LaneRange lanes = {static_cast<int>(std::max<int64_t>(first - u, 0)),
                               static_cast<int>(std::min<int64_t>(end - u, kWidth))};
      visit(layout.slot(f, u), (b * batch.T + batch.topology.frame(f, u)) * batch.U1 + u, lanes);
    }
  }
}

template <typename Real>
void cells_from_values_of(const CellsParams& p, int64_t first, int64_t last) {
  using L = Lanes<Real>;
  using acc_t = typename L::Scalar;
  const Batch& batch = p.batch;
  const int64_t in_utterance = batch.T * batch.U1, step = 1 - batch.topology.skew() * batch.U1;
  acc_t *of_blank = static_cast<acc_t*>(p.cells), *of_label = of_blank + batch.rows();
  for (int64_t b = first; b < last; b++) {
    const ArcPlanes<acc_t> arcs = arcs_of<acc_t>(p.planes, batch.layout(), b);
    std::fill_n(of_blank + b * in_utterance, in_utterance, acc_t(0));
    std::fill_n(of_label + b * in_utterance, in_utterance, acc_t(0));
    const int64_t U = batch.label_lengths[b];
    each_front<Real>(batch, b, U + 1, [&](int64_t slot, int64_t cell, LaneRange lanes) RNNT_INLINE {
      L::scatter(of_blank + cell, step, lanes, score_from_value(arcs.template blank<Real>(slot)));
    });
    each_front<Real>(batch, b, U, [&](int64_t slot, int64_t cell, LaneRange lanes) RNNT_INLINE {
      L::scatter(of_label + cell, step, lanes, score_from_value(arcs.template label<Real>(slot)));
    });
  }
}

template <typename Real>
void planes_from_cells_of(const CellsParams& p, int64_t first, int64_t last) {
  using L = Lanes<Real>;
  using acc_t = typename L::Scalar;
  const Batch& batch = p.batch;
  const int64_t step = 1 - batch.topology.skew() * batch.U1;
  const acc_t *of_blank = static_cast<const acc_t*>(p.cells), *of_label = of_blank + batch.rows();
  for (int64_t b = first; b < last; b++) {
    const PosteriorPlanes<acc_t> out = posteriors_of<acc_t>(p.planes, batch.layout(), b);
    const int64_t U = batch.label_lengths[b];
    each_front<Real>(batch, b, U + 1, [&](int64_t slot, int64_t cell, LaneRange lanes) RNNT_INLINE {
      L::store(out.blank + slot, L::gather(of_blank + cell, step, lanes, acc_t(0)));
    });
    each_front<Real>(batch, b, U, [&](int64_t slot, int64_t cell, LaneRange lanes) RNNT_INLINE {
      L::store(out.label + slot, L::gather(of_label + cell, step, lanes, acc_t(0)));
    });
  }
}

void float_cells_from_values(const CellsParams& p, int64_t first, int64_t last) {
  cells_from_values_of<Floats>(p, first, last);
}
void float_planes_from_cells(const CellsParams& p, int64_t first, int64_t last) {
  planes_from_cells_of<Floats>(p, first, last);
}
