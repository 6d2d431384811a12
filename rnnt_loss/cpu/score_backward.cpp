// score_backward over a range of rows. float runs on the best vectors the machine has, double on scalars.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "../backend.h"
#include "cell.h"
#include "isa.h"

namespace rnnt::cpu {
// A gradient of more elements does not stay in the cache: it is written past it.
constexpr int64_t kStreamFrom = 1 << 20;
}  // namespace rnnt::cpu

#define RNNT_KERNELS "score_backward_kernels.h"
#include "each_isa.h"

namespace rnnt::cpu {

void score_backward(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  p.posteriors.wide ? baseline::score_backward_of<double>(p, first, last)
                    : RNNT_DISPATCH(float_score_backward)(p, first, last);
}

}  // namespace rnnt::cpu
