// How the values that arrive at a node become one, and the share of it that came by the first of them (README,
// eq. 3). Sum gives the total probability; its shares are posteriors of the arc given the node. Max keeps the better
// value; its shares are 0 and 1, so that the flow back through them is the best path.
#pragma once

#include "value.h"

namespace rnnt {

// Both mantissas brought to the larger exponent; exactly 0 where a value is too small to show.
template <typename Real>
struct Aligned {
  Real a, b, exponent;
};

template <typename Real>
RNNT_HD Aligned<Real> aligned(Value<Real> a, Value<Real> b) {
  const Real exponent = maximum(a.exponent, b.exponent);
  return {a.mantissa * radix_power(a.exponent - exponent), b.mantissa * radix_power(b.exponent - exponent), exponent};
}

struct Sum {
  template <typename Real>
  RNNT_HD static Value<Real> merge(Value<Real> a, Value<Real> b, Real& share_of_a) {
    const Aligned<Real> x = aligned(a, b);
    const Real sum = x.a + x.b;
    share_of_a = select(sum > 0, x.a / sum, Real(0));  // where nothing arrives there is no share
    return normalised(Value<Real>{sum, x.exponent});
  }
};

struct Max {  // a tie goes to the first
  template <typename Real>
  RNNT_HD static Value<Real> merge(Value<Real> a, Value<Real> b, Real& share_of_a) {
    const Aligned<Real> x = aligned(a, b);
    const bool first = x.a >= x.b;
    share_of_a = select(first && x.a > 0, Real(1), Real(0));
    // Adding 0 times the loser keeps a NaN on either side.
    return normalised(Value<Real>{select(first, x.a, x.b) + Real(0) * (x.a + x.b), x.exponent});
  }
};

}  // namespace rnnt
