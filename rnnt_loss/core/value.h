// A non-negative number of unlimited range (README, eq. 6): mantissa * 2^(32 exponent). The mantissa keeps full
// precision within [2^-16, 2^16), the exponent is an integer held in a Real: exact up to 2^24 (2^53), and -inf for
// zero, so that no sentinel is ever mistaken for a value. NaN lives in the mantissa and survives every operation.

constexpr int kRadixBits = 32;

template <typename Real>
struct Value {
  Real mantissa;
  Real exponent;
};

template <typename Real>
RNNT_HD Value<Real> zero() {
  return {splat<Real>(0), splat<Real>(-INFINITY)};
}

template <typename Real>
RNNT_HD Value<Real> one() {
  return {splat<Real>(1), splat<Real>(0)};
}

// 2^(32 n) for an integer n <= 1
template <typename Real>
RNNT_HD Real radix_power(Real n) {
  using L = Lanes<Real>;
  return L::from_biased_exponent(
      maximum(L::mul_add(n, splat<Real>(kRadixBits), splat<Real>(L::kBias)), splat<Real>(0)));
}

// e^nats. The integer part of the logarithm leaves in double, so a score keeps its precision however large it is.
template <typename Real>
RNNT_HD Value<Real> value_from_nats(Wide<Real> nats) {
  const Wide<Real> log2 = nats * kLog2e, whole = nearest(log2), exponent = nearest(whole * (1.0 / kRadixBits));
  const Wide<Real> fraction = (log2 - whole) * kLn2,
                   rest = whole - exponent * kRadixBits;  // NaN for inf of either sign
  const Real mantissa = exp_fraction(Lanes<Real>::narrow(fraction)) * power_of_two(Lanes<Real>::narrow(rest));
  const Real as_real = Lanes<Real>::narrow(exponent), none = splat<Real>(0);
  return {select(as_real == splat<Real>(-INFINITY), none, mantissa), as_real};
}

// e^score of what is no more exact than Real itself. Beyond 2.9e6 nats it is as if the score had one rounding more.
template <typename Real>
RNNT_HD Value<Real> value_from_score(Real score) {
  using L = Lanes<Real>;
  const Real round = splat<Real>(0x1.8p23f), limit = splat<Real>(0.35f), none = splat<Real>(0);
  const Real half = splat<Real>(kRadixBits / 2);
  const auto is_zero = score == splat<Real>(-INFINITY);
  const Real largest = splat<Real>(0x1p126f);  // of which there are multiples. Masks may be the lowest number there is
  score = minimum(largest, maximum(-largest, score));
  const Real n = L::mul_add(score, splat<Real>(static_cast<float>(kLog2e)), round) - round;
  const Real exponent = L::mul_add(n, splat<Real>(1.0f / kRadixBits), round) - round;
  Real rest = L::mul_add(exponent, splat<Real>(-kRadixBits), n);
  rest = minimum(half, maximum(-half, rest));  // of more than 1e9 nats, whose exponents are rounded themselves
  Real fraction = L::mul_add(n, splat<Real>(-kLn2Rest), L::mul_add(n, splat<Real>(-kLn2Most), score));
  fraction = minimum(limit, maximum(-limit, fraction));
  return {select(is_zero, none, exp_fraction(fraction) * power_of_two(rest)),
          select(is_zero, splat<Real>(-INFINITY), exponent)};
}
RNNT_HD Value<double> value_from_score(double score) { return value_from_nats<double>(score); }

// For values of at most 2^32, products too. In two steps: what is left of a large mantissa and a power too small for
// one.
template <typename Real>
RNNT_HD Real number_from_value(Value<Real> a) {
  const Real half = power_of_two(a.exponent * (kRadixBits / 2));
  return a.mantissa * half * half;
}

template <typename Real>
RNNT_HD double nats_from_value(Value<Real> a) {
  return ::log(static_cast<double>(a.mantissa)) + static_cast<double>(a.exponent) * (kRadixBits * kLn2);
}

// Not normalised: the mantissa lies within [2^-32, 2^32).
template <typename Real>
RNNT_HD Value<Real> operator*(Value<Real> a, Value<Real> b) {
  return {a.mantissa * b.mantissa, a.exponent + b.exponent};
}

// One step is enough for what a product, or the sum of some thousand products, can reach.
template <typename Real>
RNNT_HD Value<Real> normalised(Value<Real> a) {
  const Real one = splat<Real>(1), up = splat<Real>(0x1p32f), down = splat<Real>(0x1p-32f), none = splat<Real>(0);
  const auto small = a.mantissa < splat<Real>(0x1p-16f);
  const auto large = a.mantissa >= splat<Real>(0x1p16f);
  return {a.mantissa * select(small, up, select(large, down, one)),
          a.exponent + select(small, -one, select(large, one, none))};
}
