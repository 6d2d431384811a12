// How the values that arrive at a node become one, and the share of it that came by the first of them (README,
// eq. 3). Sum gives the total probability; its shares are posteriors of the arc given the node. Max keeps the better
// value; its shares are 0 and 1, so that the flow back through them is the best path.

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
    const Real none = splat<Real>(0);
    share_of_a = select(sum > none, x.a / sum, none);  // where nothing arrives there is no share
    return normalised(Value<Real>{sum, x.exponent});
  }
};

struct Max {  // a tie goes to the first
  template <typename Real>
  RNNT_HD static Value<Real> merge(Value<Real> a, Value<Real> b, Real& share_of_a) {
    const Aligned<Real> x = aligned(a, b);
    const Real none = splat<Real>(0);
    share_of_a = select(x.a >= x.b, select(x.a > none, splat<Real>(1), none), none);
    // Adding 0 times the loser keeps a NaN on either side.
    return normalised(Value<Real>{select(x.a >= x.b, x.a, x.b) + none * (x.a + x.b), x.exponent});
  }
};
