// How a V-wide row becomes the values of its arcs (README, eq. 8). The maximum and the rest are kept apart: x - maximum
// is exact where it matters, a float log-sum-exp of a peaked row is not; and where the maximum has nearly all of the
// probability, the rest still says what it lacks.

// rest is the sum of exp(x - maximum) less the 1 of the maximum itself. A NaN, a +inf or nothing but -inf in the row
// makes it NaN. Without a normalizer both are 0.
template <typename Real>
struct Softmax {
  Real maximum, rest;

  // exp(x - maximum) / (1 + rest)
  RNNT_HD Value<Real> value(Real x) const {
    const Value<Real> over_sum = {splat<Real>(1) / (splat<Real>(1) + rest), splat<Real>(0)};
    return normalised(value_from_nats<Real>(Lanes<Real>::widen(x) - Lanes<Real>::widen(maximum)) * over_sum);
  }
};

// exp(x - maximum)
template <typename Real>
RNNT_HD Real exponential(Real x, Real maximum) {
  return exp_of(x - maximum);
}
