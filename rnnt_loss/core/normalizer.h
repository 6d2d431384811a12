// How a V-wide row becomes the values of its arcs (README, eq. 8). The maximum and the sum are kept apart: x - maximum
// is exact where it matters, a float log-sum-exp of a peaked row is not.

// sum is that of exp(x - maximum). A NaN, a +inf or nothing but -inf in the row makes the sum NaN. Without a
// normalizer the maximum is 0 and the sum 1.
template <typename Real>
struct Softmax {
  Real maximum, sum;

  // exp(x) / exp(maximum) / sum
  RNNT_HD Value<Real> value(Real x) const {
    const Value<Real> over_sum = {splat<Real>(1) / sum, splat<Real>(0)};
    return normalised(value_from_nats<Real>(Lanes<Real>::widen(x) - Lanes<Real>::widen(maximum)) * over_sum);
  }
};

// exp(x - maximum)
template <typename Real>
RNNT_HD Real exponential(Real x, Real maximum) {
  return exp_of(x - maximum);
}
