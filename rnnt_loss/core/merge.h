// How the values that arrive at a node become one, and their shares of it (README, eq. 3). Sum gives the total
// probability; its shares are the posteriors of the arcs given the node. Max keeps the better value; its shares are 0
// and 1, so that the flow back through them is the best path.
//
// Of the two shares the smaller is kept, with a minus sign (that of -0 counts) where it is the second's. So both keep
// their relative precision: a posterior of 1e-20 beside one of 1 is as exact as that.

template <typename Real>
struct Shares {
  Real first, second;
};

template <typename Real>
RNNT_HD Shares<Real> shares_of(Real kept) {
  const auto bits = from_bits<typename Lanes<Real>::Int>(kept);
  const Real smaller = from_bits<Real>(bits & Lanes<Real>::kMagnitude), larger = splat<Real>(1) - smaller;
  return {select(bits < 0, larger, smaller), select(bits < 0, smaller, larger)};
}

// What brings the smaller of two exponents to the larger, of their difference; exactly 0 where it is too small to show.
template <typename Real>
RNNT_HD Real alignment(Real difference) {
  return radix_power(from_bits<Real>(from_bits<typename Lanes<Real>::Int>(difference) | ~Lanes<Real>::kMagnitude));
}

// Both mantissas brought to the larger exponent.
template <typename Real>
struct Aligned {
  Real a, b, exponent;
};

template <typename Real>
RNNT_HD Aligned<Real> aligned(Value<Real> a, Value<Real> b) {
  const Real difference = a.exponent - b.exponent, scale = alignment(difference);
  const auto a_is_smaller = difference < splat<Real>(0);
  return {select(a_is_smaller, a.mantissa * scale, a.mantissa), select(a_is_smaller, b.mantissa, b.mantissa * scale),
          select(a_is_smaller, b.exponent, a.exponent)};
}

// Not normalised. So may be many products (value.h) added up before the sum is: their exponents do not depend on what
// the mantissas add up to, and no addition has to wait for more than the one before it.
template <typename Real>
RNNT_HD Value<Real> operator+(Value<Real> a, Value<Real> b) {
  const Real difference = a.exponent - b.exponent;
  const auto a_is_smaller = difference < splat<Real>(0);
  const Real smaller = select(a_is_smaller, a.mantissa, b.mantissa);
  const Real larger = select(a_is_smaller, b.mantissa, a.mantissa);
  return {Lanes<Real>::mul_add(smaller, alignment(difference), larger), select(a_is_smaller, b.exponent, a.exponent)};
}

struct Sum {
  template <typename Real>
  RNNT_HD static Value<Real> merge(Value<Real> a, Value<Real> b, Real& shares) {
    const Aligned<Real> x = aligned(a, b);
    const Real sum = x.a + x.b, least = splat<Real>(0x1p-100f);  // the share of what does not arrive is 0
    const Real smaller = quotient(select(x.a > x.b, x.b, x.a), maximum(sum, least));
    shares =
        select(x.a > x.b, -smaller, smaller);  // negated last, or the 0 of a label that does not arrive lost its sign
    return normalised(Value<Real>{sum, x.exponent});
  }
};

struct Max {  // a tie goes to the first
  template <typename Real>
  RNNT_HD static Value<Real> merge(Value<Real> a, Value<Real> b, Real& shares) {
    const Aligned<Real> x = aligned(a, b);
    const Real none = splat<Real>(0);
    shares = select(x.a >= x.b, select(x.a > none, -none, none), none);
    // Adding 0 times the loser keeps a NaN on either side.
    return normalised(Value<Real>{select(x.a >= x.b, x.a, x.b) + none * (x.a + x.b), x.exponent});
  }
};
