// The arithmetic the core is written in, for lanes of one (float or double, on the host or on a CUDA thread) and for
// the compiler's vectors of float on the CPU: +, -, *, / and comparisons are the language's own, the rest is here. Only
// mul_add is fused, where the instruction set can: a result has the same bits at every width.

constexpr double kLog2e = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;
// ln 2 in two parts, the first of so few bits that a multiple is exact, and so is what it leaves of a float.
constexpr float kLn2Most = 0.693359375f, kLn2Rest = -2.12194440e-4f;

template <typename To, typename From>
RNNT_HD To from_bits(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// What differs from one kind of lanes to another. Wide: as many lanes of double. gather and scatter: lane i is p[i *
// step]; of those outside of the range nothing is read, which are `rest`, or written. only makes these 0. shift_up
// moves every lane to the next and takes the first from the last of `previous`; shift_down is its mirror.
template <typename Real>
struct Lanes;

// Lanes first .. last - 1.
struct LaneRange {
  int first, last;
};

template <typename Real>
struct LanesOfOne {
  using Scalar = Real;
  using Wide = double;
  static constexpr int kWidth = 1;
  RNNT_HD static Real splat(Real x) { return x; }
  RNNT_HD static Real maximum(Real a, Real b) { return a > b ? a : b; }
  RNNT_HD static Real minimum(Real a, Real b) { return a < b ? a : b; }
  RNNT_HD static double widen(Real x) { return x; }
  RNNT_HD static Real narrow(double x) { return static_cast<Real>(x); }
  RNNT_HD static int iota() { return 0; }
  RNNT_HD static Real load(const Real* p) { return *p; }
  RNNT_HD static void store(Real* p, Real x) { *p = x; }
  RNNT_HD static Real gather(const Real* p, int64_t, LaneRange range, Real rest) {
    return range.first < range.last ? *p : rest;
  }
  RNNT_HD static void scatter(Real* p, int64_t, LaneRange range, Real x) {
    if (range.first < range.last) *p = x;
  }
  RNNT_HD static Real only(LaneRange range, Real x) { return range.first < range.last ? x : Real(0); }
  RNNT_HD static Real shift_up(Real previous, Real) { return previous; }
  RNNT_HD static Real shift_down(Real, Real next) { return next; }
  template <typename Combine>
  RNNT_HD static Real fold(Real x, Combine) {
    return x;
  }
};

template <>
struct Lanes<float> : LanesOfOne<float> {
  using Int = int32_t;
  using Uint = uint32_t;
  static constexpr int kBias = 127;
  static constexpr int32_t kMagnitude = 0x7fffffff;  // all bits but the sign
  RNNT_HD static float from_int(int32_t n) { return static_cast<float>(n); }
  RNNT_HD static float mul_add(float a, float b, float c) {
#if defined(RNNT_FUSED) || defined(RNNT_DEVICE)  // the first by each_isa.h, where the instruction set can
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
  }
  RNNT_HD static float from_biased_exponent(float biased) {
    return from_bits<float>(from_bits<uint32_t>(biased + 0x1p23f) << 23);  // leaves the integer in a sum's low bits
  }
};

template <>
struct Lanes<double> : LanesOfOne<double> {
  using Int = int64_t;
  using Uint = uint64_t;
  RNNT_HD static double from_int(int64_t n) { return static_cast<double>(n); }
  static constexpr int kBias = 1023;
  static constexpr int64_t kMagnitude = 0x7fffffffffffffff;
  RNNT_HD static double mul_add(double a, double b, double c) { return a * b + c; }
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

// With a NaN on either side: b.
template <typename Real>
RNNT_HD Real maximum(Real a, Real b) {
  return Lanes<Real>::maximum(a, b);
}
template <typename Real>
RNNT_HD Real minimum(Real a, Real b) {
  return Lanes<Real>::minimum(a, b);
}

// The nearest integer, for lanes of double. Beyond 2^51 x itself; NaN stays NaN.
template <typename Real>
RNNT_HD Real nearest(Real x) {
  const double round = 0x1.8p52;  // leaves a sum no fraction bits
  return select(select(x < 0.0, -x, x) < 0x1p51, (x + round) - round, x);
}

// 2^n for an integer n at most 127 (1023); exactly 0 where that is no normal number, and for NaN: the difference of
// two zeros' exponents is one, and what it scales is 0 anyway.
template <typename Real>
RNNT_HD Real power_of_two(Real n) {
  return Lanes<Real>::from_biased_exponent(maximum(n + Lanes<Real>::kBias, splat<Real>(0)));
}

// The polynomial in r with these coefficients, that of the highest power first.
template <typename Real, int N>
RNNT_HD Real polynomial(Real r, const float (&coefficients)[N]) {
  Real p = splat<Real>(coefficients[0]);
#if !defined(__CUDACC__)
#pragma GCC unroll 8
#endif
  for (int i = 1; i < N; i++) p = Lanes<Real>::mul_add(p, r, splat<Real>(coefficients[i]));
  return p;
}

// e^r for |r| <= ln(2) / 2, of relative error 2e-9 before rounding: what a path multiplies by the thousand.
template <typename Real>
RNNT_HD Real exp_fraction(Real r) {
  constexpr float kMinimax[] = {
      1.384365349e-03f, 8.374155316e-03f, 4.166800204e-02f, 1.666643126e-01f, 4.999999420e-01f, 1.000000032e+00f, 1.0f};
  return polynomial(r, kMinimax);
}
RNNT_HD double exp_fraction(double r) { return ::exp(r); }

// a / b for b within 2^-64 and 2^64. On a GPU without the branch of a general division, which would hold the sweeps up;
// its error there is below one unit in the last place, and it knows no -0.
template <typename Real>
RNNT_HD Real quotient(Real a, Real b) {
#if defined(RNNT_DEVICE)
  if constexpr (sizeof(Real) == sizeof(float)) {
    const Real reciprocal = __fdividef(1.0f, b), estimate = a * reciprocal;
    return fmaf(fmaf(-estimate, b, a), reciprocal, estimate);
  }
#endif
  return a / b;
}

// e^x for x <= 88, of relative error 1e-7 before rounding; exactly 0 for x < -87.7; NaN stays NaN.
template <typename Real>
RNNT_HD Real exp_of(Real x) {
#if defined(RNNT_DEVICE)
  // The hardware's 2^y, of relative error 1e-7 (1 + |x|); log2(e) in two parts, or the errors of a row would add up.
  return exp2f(fmaf(x, 1.44269502f, x * 1.92596299e-8f));
#else
  using L = Lanes<Real>;
  const Real round = splat<Real>(0x1.8p23f);  // leaves the nearest integer in a sum's low bits
  x = maximum(splat<Real>(-88), x);
  const Real rounded = L::mul_add(x, splat<Real>(static_cast<float>(kLog2e)), round);
  const Real n = rounded - round;
  const Real rest = L::mul_add(n, splat<Real>(-kLn2Rest), L::mul_add(n, splat<Real>(-kLn2Most), x));
  const Real power = from_bits<Real>((from_bits<typename L::Uint>(rounded) << 23) + 0x3f800000u);
  constexpr float kMinimax[] = {8.290315047e-03f, 4.189793020e-02f, 1.666763574e-01f,
                                4.999915063e-01f, 9.999997020e-01f, 1.0f};
  return polynomial(rest, kMinimax) * power;
#endif
}
RNNT_HD double exp_of(double x) { return ::exp(x); }

// log(x + less) for a normal x > 0, at least 1 in double, and a `less` that x is too large to hold; of relative error
// 7e-9 before rounding. NaN for a NaN or infinite `less`.
template <typename Real>
RNNT_HD Real log_of_sum(Real x, Real less) {
  using L = Lanes<Real>;
  using Int = typename L::Int;
  // x + less = 2^n (1 + f), where 1 + f lies within the roots of 1/2 and 2; of n, in the bits of a float, 2^23 is a
  // unit.
  const Int units = (from_bits<Int>(x) - 0x3f3504f3) & ~0x7fffff;
  const Real power = L::from_int(units >> 23), over_power = from_bits<Real>(-units + 0x3f800000);
  const Real f = (from_bits<Real>(from_bits<Int>(x) - units) - splat<Real>(1)) + less * over_power;
  constexpr float kMinimax[] = {-7.634402066e-02f, 1.276148111e-01f, -1.316017359e-01f, 1.420177221e-01f,
                                -1.662335992e-01f, 2.000122666e-01f, -2.500081956e-01f, 3.333333135e-01f};
  const Real above = f * f * L::mul_add(f, polynomial(f, kMinimax), splat<Real>(-0.5f));
  return L::mul_add(power, splat<Real>(kLn2Most), f + L::mul_add(power, splat<Real>(kLn2Rest), above));
}
RNNT_HD double log_of_sum(double x, double less) { return ::log1p((x - 1) + less); }
