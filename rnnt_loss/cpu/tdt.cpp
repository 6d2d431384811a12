// Scores of arcs with durations over a range of rows. float runs on the best vectors the machine has, double on
// scalars.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "../backend.h"
#include "cell.h"
#include "isa.h"

#define RNNT_KERNELS "tdt_kernels.h"
#include "each_isa.h"

namespace rnnt::cpu {

void tdt_scores(const TdtParams& p, int64_t first, int64_t last) {
  p.wide ? baseline::tdt_scores_rows<double>(p, first, last) : RNNT_DISPATCH(float_tdt_scores)(p, first, last);
}

void tdt_scores_backward(const TdtParams& p, int64_t first, int64_t last) {
  p.wide ? baseline::tdt_scores_backward_rows<double>(p, first, last)
         : RNNT_DISPATCH(float_tdt_scores_backward)(p, first, last);
}

}  // namespace rnnt::cpu
