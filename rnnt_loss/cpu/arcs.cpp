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

template <typename Scalar, bool kBest>
void paths_of(const PathParams& p, int64_t first, int64_t last) {
  std::vector<double> memory(baseline::path_memory(p.lattice));
  for (int64_t b = first; b < last; b++)
    baseline::run_paths<Scalar, kBest>(p, b, p.lattice.input_lengths[b], p.lattice.label_lengths[b], memory.data(),
                                       baseline::OneThread());
}

}  // namespace

void paths(const PathParams& p, int64_t first, int64_t last) {
  if (p.uniforms)
    p.lattice.wide ? paths_of<double, false>(p, first, last) : paths_of<float, false>(p, first, last);
  else
    p.lattice.wide ? paths_of<double, true>(p, first, last) : paths_of<float, true>(p, first, last);
}

}  // namespace rnnt::cpu
