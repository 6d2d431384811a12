// The lattice of any arcs over a range of utterances, paths through it, and the tensors at its ends. float runs on the
// best vectors the machine has, double and paths on scalars.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../backend.h"
#include "cell.h"
#include "isa.h"

#define RNNT_KERNELS "arcs_kernels.h"
#include "each_isa.h"

namespace rnnt::cpu {

void arc_lattice(const ArcLatticeParams& p, int64_t first, int64_t last) {
  p.wide ? baseline::arc_lattice_of<double>(p, first, last) : RNNT_DISPATCH(float_arc_lattice)(p, first, last);
}

namespace {

template <typename Scalar>
void paths_of(const PathParams& p, int64_t first, int64_t last) {
  std::vector<double> memory(baseline::path_memory(p.lattice));
  for (int64_t b = first; b < last; b++)
    baseline::run_paths<Scalar>(p, b, p.lattice.input_lengths[b], p.lattice.label_lengths[b], memory.data(),
                                baseline::OneThread());
}

// visit(row, slot, is_cell, has_label) for the rows of an utterance.
template <typename Visit>
void each_cell(const Batch& batch, int64_t b, Visit visit) {
  const FrontLayout layout = batch.layout();
  for (int64_t t = 0; t < batch.T; t++) {
    for (int64_t u = 0; u < batch.U1; u++) {
      const bool is_cell = u < cells_in_frame(batch, b, t);
      const int64_t slot = layout.slot(batch.topology.front(t, u), u);
      visit((b * batch.T + t) * batch.U1 + u, slot, is_cell, is_cell && u < batch.label_lengths[b]);
    }
  }
}

template <typename acc_t>
void cells_from_values_of(const CellsParams& p, int64_t first, int64_t last) {
  using namespace baseline;
  acc_t *of_blank = static_cast<acc_t*>(p.cells), *of_label = of_blank + p.batch.rows();
  for (int64_t b = first; b < last; b++) {
    const ArcPlanes<acc_t> arcs = arcs_of<acc_t>(p.planes, p.batch.layout(), b);
    each_cell(p.batch, b, [&](int64_t i, int64_t slot, bool is_cell, bool has_label) {
      of_blank[i] = is_cell ? static_cast<acc_t>(nats_from_value(arcs.template blank<acc_t>(slot))) : acc_t(0);
      of_label[i] = has_label ? static_cast<acc_t>(nats_from_value(arcs.template label<acc_t>(slot))) : acc_t(0);
    });
  }
}

template <typename acc_t>
void planes_from_cells_of(const CellsParams& p, int64_t first, int64_t last) {
  using namespace baseline;
  const acc_t *of_blank = static_cast<const acc_t*>(p.cells), *of_label = of_blank + p.batch.rows();
  for (int64_t b = first; b < last; b++) {
    const PosteriorPlanes<acc_t> out = posteriors_of<acc_t>(p.planes, p.batch.layout(), b);
    each_cell(p.batch, b, [&](int64_t i, int64_t slot, bool is_cell, bool has_label) {
      if (is_cell) out.blank[slot] = of_blank[i];
      if (has_label) out.label[slot] = of_label[i];
    });
  }
}

}  // namespace

void cells_from_values(const CellsParams& p, int64_t first, int64_t last) {
  p.planes.wide ? cells_from_values_of<double>(p, first, last) : cells_from_values_of<float>(p, first, last);
}
void paths(const PathParams& p, int64_t first, int64_t last) {
  p.lattice.wide ? paths_of<double>(p, first, last) : paths_of<float>(p, first, last);
}
void planes_from_cells(const CellsParams& p, int64_t first, int64_t last) {
  p.planes.wide ? planes_from_cells_of<double>(p, first, last) : planes_from_cells_of<float>(p, first, last);
}

}  // namespace rnnt::cpu
