// score over a range of rows. float runs on the best vectors the machine has, double on scalars.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../backend.h"
#include "cell.h"
#include "isa.h"

#define RNNT_KERNELS "score_kernels.h"
#include "each_isa.h"

namespace rnnt::cpu {

void score(const ScoreParams& p, int64_t first, int64_t last) {
  p.arcs.wide ? baseline::score_of<double>(p, first, last) : RNNT_DISPATCH(float_score)(p, first, last);
}

}  // namespace rnnt::cpu
