// The arithmetic the core is written in, for lanes of one (float or double, on the host or on a CUDA thread) and for
// the compiler's vectors of float on the CPU: +, -, *, / and comparisons are the language's own, the rest is here.
// Nothing is fused: a result has the same bits at every width and on every instruction set.

constexpr double kLog2e = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

template <typename To, typename From>
RNNT_HD To from_bits(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// What differs from one kind of lanes to another. Wide: as many lanes of double. shift_up moves every lane to the next
// and takes the first from the last of `previous`; shift_down is its mirror.
template <typename Real>
struct Lanes;

template <typename Real>
struct LanesOfOne {
  using Scalar = Real;
  using Wide = double;
  static constexpr int kWidth = 1;
  RNNT_HD static Real splat(Real x) { return x; }
  RNNT_HD static double widen(Real x) { return x; }
  RNNT_HD static Real narrow(double x) { return static_cast<Real>(x); }
  RNNT_HD static int iota() { return 0; }
  RNNT_HD static Real load(const Real* p) { return *p; }
  RNNT_HD static void store(Real* p, Real x) { *p = x; }
  RNNT_HD static Real shift_up(Real previous, Real) { return previous; }
  RNNT_HD static Real shift_down(Real, Real next) { return next; }
  RNNT_HD static Real sum(Real x) { return x; }
};

template <>
struct Lanes<float> : LanesOfOne<float> {
  using Int = int32_t;
  static constexpr int kBias = 127;
  RNNT_HD static float from_int(int32_t n) { return static_cast<float>(n); }
  RNNT_HD static float from_biased_exponent(float biased) {
    return from_bits<float>(static_cast<int32_t>(biased) << 23);
  }
};

template <>
struct Lanes<double> : LanesOfOne<double> {
  static constexpr int kBias = 1023;
  RNNT_HD static double from_biased_exponent(double biased) {
    return from_bits<double>(static_cast<int64_t>(biased) << 52);
  }
};

template <typename Real>
using Wide = typename Lanes<Real>::Wide;

template <typename Real>
RNNT_HD Real splat(typename Lanes<Real>::Scalar x) {
  return Lanes<Real>::splat(x);
}

template <typename Mask, typename Real>
RNNT_HD Real select(Mask condition, Real yes, Real no) {
  return condition ? yes : no;
}

template <typename Real>
RNNT_HD Real maximum(Real a, Real b) {
  return a > b ? a : b;
}

// The nearest integer, for lanes of double. Beyond 2^51 x itself; NaN stays NaN.
template <typename Real>
RNNT_HD Real nearest(Real x) {
  const double round = 0x1.8p52;  // leaves a sum no fraction bits
  return select(maximum(x, -x) < 0x1p51, (x + round) - round, x);
}

// 2^n for an integer n at most 127 (1023); exactly 0 where that is no normal number, and for NaN: the difference of
// two zeros' exponents is one, and what it scales is 0 anyway.
template <typename Real>
RNNT_HD Real power_of_two(Real n) {
  const Real biased = n + Lanes<Real>::kBias, none = splat<Real>(0);
  return Lanes<Real>::from_biased_exponent(select(biased > none, biased, none));
}

// 2^f for |f| <= 1/2. Minimax polynomial with p(0) = 1, relative error 2e-9 before rounding.
template <typename Real>
RNNT_HD Real exp2_fraction(Real f) {
  Real p = splat<Real>(1.535336188e-04f);
  p = p * f + 1.339887442e-03f;
  p = p * f + 9.618437358e-03f;
  p = p * f + 5.550332471e-02f;
  p = p * f + 2.402264791e-01f;
  p = p * f + 6.931472029e-01f;
  return p * f + 1.0f;
}
RNNT_HD double exp2_fraction(double f) { return ::exp2(f); }

// 2^x for x <= 127; exactly 0 for x <= -127; NaN stays NaN.
template <typename Real>
RNNT_HD Real exp2_of(Real x) {
  const float round = 0x1.8p23f;
  const Real lowest = splat<Real>(-127.0f);
  x = select(x < lowest, lowest, x);
  const Real n = (x + round) - round;
  return exp2_fraction(x - n) * power_of_two(n);
}
RNNT_HD double exp2_of(double x) { return ::exp2(x); }
