// How a V-wide row becomes the values of its arcs (README, eq. 8). The maximum and the rest are kept apart: x - maximum
// is exact where it matters, a float log-sum-exp of a peaked row is not; and where the maximum has nearly all of the
// probability, the rest still says what it lacks.

// rest is the sum of exp(x - maximum) less the 1 of the maximum itself. A NaN, a +inf or nothing but -inf in the row
// makes it NaN. Without a normalizer both are 0.
template <typename Real>
struct Softmax {
  Real maximum, rest;

  // log(1 + rest)
  RNNT_HD Real log_sum() const {
    const Real one = splat<Real>(1), sum = one + rest;
    return log_of_sum(sum, rest - (sum - one));
  }

  // log p(x), and p(x), of a logit x
  RNNT_HD Real score(Real x) const { return x - maximum - log_sum(); }
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

// HAT's choice between blank and a label (README, eq. 11): a sigmoid, as the softmax of the blank's logit and 0. NaN
// for a logit of +inf, as in a row.
template <typename Real>
RNNT_HD Softmax<Real> blank_or_label(Real blank) {
  const Real none = splat<Real>(0), larger = maximum(none, blank);
  return {larger, exponential(minimum(none, blank), larger) + (larger - larger)};
}

// Of a label of logit x, the choice of a label included.
template <typename Real>
RNNT_HD Real label_score(Softmax<Real> choice, Softmax<Real> labels, Real x) {
  return labels.score(x) + choice.score(splat<Real>(0));
}
// Likewise: one exponential and one quotient for both.
template <typename Real>
RNNT_HD Value<Real> label_value(Softmax<Real> choice, Softmax<Real> labels, Real x) {
  using L = Lanes<Real>;
  const Real one = splat<Real>(1), none = splat<Real>(0);
  const Value<Real> over_sums = {one / ((one + labels.rest) * (one + choice.rest)), none};
  return normalised(value_from_nats<Real>(L::widen(x) - L::widen(labels.maximum) - L::widen(choice.maximum)) *
                    over_sums);
}

// The gradient of an arc's class, of posterior `own`, beside an arc of posterior `other` (README, eq. 10):
// (own + other) p - own = other p - own (1 - p), where nothing large is subtracted from something large.
template <typename Real, typename Mask>
RNNT_HD Real arc_gradient(Real exponential_of_x, Mask is_largest, Real rest, Real own, Real other) {
  const Real one = splat<Real>(1), sum = one + rest, p = exponential_of_x / sum;
  return other * p - own * select(is_largest, rest / sum, one - p);
}

// What the gradient of one row needs besides the row.
template <typename acc_t>
struct Cell {
  int32_t blank, label;  // classes; label: negative for none
  acc_t blank_posterior, label_posterior;
  acc_t occupancy;  // the sum of both
  acc_t bound, upstream;
};

// The clamp and the upstream gradient; NaN stays NaN.
template <typename Real>
RNNT_HD Real finished(Real g, Real bound, Real upstream) {
  return minimum(bound, maximum(-bound, g)) * upstream;
}

// Of elements of the tail, from their gradients of log Z: 0 is 0 whatever comes from upstream.
template <typename Real>
RNNT_HD Real finished(const Tail& tail, Real gradient, Real upstream) {
  const Real none = splat<Real>(0), bound = splat<Real>(static_cast<typename Lanes<Real>::Scalar>(tail.clamp));
  return select(gradient == none, none, finished(-gradient, bound, upstream));
}
