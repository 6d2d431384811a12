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
