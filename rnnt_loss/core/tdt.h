// The arcs of a token-and-duration transducer (README, eq. 21, 22): each is a token with a duration, whose scores come
// from two heads. On the CPU the lanes are cells, on CUDA a thread has one.

// Of a cell's durations; logit(d) is number d. Without a normalizer they are scores.
template <typename Real, typename LogitAt>
RNNT_HD Softmax<Real> durations_softmax(const TdtParams& p, LogitAt logit) {
  const Real one = splat<Real>(1), none = splat<Real>(0);
  if (p.normalizer == Normalizer::kNone) return {none, none};
  Real largest = logit(0), rest = none, ones = none;
  RNNT_ONE_BY_ONE
  for (int d = 1; d < p.durations.count; d++) largest = maximum(logit(d), largest);
  RNNT_ONE_BY_ONE
  for (int d = 0; d < p.durations.count; d++) {  // terms of 1 are counted apart, as a row's are
    const Real x = logit(d);
    const auto is_largest = x == largest;
    rest = rest + select(is_largest, none, exponential(x, largest));
    ones = ones + select(is_largest, one, none);
  }
  return {largest, rest + (ones - one) + (largest - largest)};
}

// keep(k, score of arc k)
template <typename Real, typename LogitAt, typename Keep>
RNNT_HD void tdt_scores_of(const TdtParams& p, Real blank, Real label, LogitAt logit, Keep keep) {
  const Softmax<Real> softmax = durations_softmax<Real>(p, logit);
  const Real log_sum = softmax.log_sum();
  RNNT_ONE_BY_ONE
  for (int d = 0; d < p.durations.count; d++) {
    const Real score = logit(d) - softmax.maximum - log_sum;
    if (p.durations.has_blank(d)) keep(p.durations.blank_arc[d], blank + score);
    keep(p.durations.label_arc(d), label + score);
  }
}

// grad(k) is the gradient of the score of arc k. keep_tokens(of blank, of label), keep(d, gradient of logit d).
template <typename Real, typename LogitAt, typename GradAt, typename KeepTokens, typename Keep>
RNNT_HD void tdt_gradients_of(const TdtParams& p, LogitAt logit, GradAt grad, KeepTokens keep_tokens, Keep keep) {
  const Real half = splat<Real>(0.5f), none = splat<Real>(0);
  const Softmax<Real> softmax = durations_softmax<Real>(p, logit);
  const Real sum = splat<Real>(1) + softmax.rest;
  const auto of_blank = [&](int d)
                            RNNT_INLINE { return p.durations.has_blank(d) ? grad(p.durations.blank_arc[d]) : none; };
  const auto of_label = [&](int d) RNNT_INLINE { return grad(p.durations.label_arc(d)); };
  // What the gradients of all scores but a duration's own add up to is no difference where its own is nearly all: where
  // its probability is above 1/2, as at most one's is.
  Real blank = none, label = none, but_most = none;
  RNNT_ONE_BY_ONE
  for (int d = 0; d < p.durations.count; d++) {
    const Real by_blank = of_blank(d), by_label = of_label(d);
    blank = blank + by_blank, label = label + by_label;
    const auto is_most = half * sum < exponential(logit(d), softmax.maximum);
    but_most = but_most + select(is_most, none, by_blank + by_label);
  }
  keep_tokens(blank, label);
  RNNT_ONE_BY_ONE
  for (int d = 0; d < p.durations.count; d++) {
    const Real x = logit(d), own = of_blank(d) + of_label(d), exp_of_x = exponential(x, softmax.maximum);
    const Real others = select(half * sum < exp_of_x, but_most, blank + label - own);
    const Real g = -arc_gradient(exp_of_x, x == softmax.maximum, softmax.rest, own, others);
    keep(d, p.normalizer == Normalizer::kNone ? own : g);
  }
}
