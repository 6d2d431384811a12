// How a V-wide row becomes log-probabilities (README, eq. 8). The maximum and the sum are kept apart: x - maximum is
// exact where it matters, a float log-sum-exp of a peaked row is not.
#pragma once

#include "lanes.h"

namespace rnnt {

enum class Normalizer {
  kNone,     // the row holds log-probabilities
  kSoftmax,  // the row holds logits
};

// sum is that of exp(x - maximum). A NaN, a +inf or nothing but -inf in the row makes the sum NaN.
template <typename Real>
struct Softmax {
  Real maximum, sum;

  // exp(x - maximum)
  RNNT_HD static Real exponential(Real x, Real maximum) { return exp2_of((x - maximum) * static_cast<Real>(kLog2e)); }
  RNNT_HD double log_probability(double x) const { return (x - maximum) - ::log(static_cast<double>(sum)); }
};

}  // namespace rnnt
