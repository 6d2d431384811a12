// A non-negative number of unlimited range (README, eq. 6): mantissa * 2^(32 exponent). The mantissa keeps full
// precision within [2^-16, 2^16), the exponent is an integer held in a Real: exact up to 2^24 (2^53), and -inf for
// zero, so that no sentinel is ever mistaken for a value. NaN lives in the mantissa and survives every operation.
#pragma once

#include "lanes.h"

namespace rnnt {

constexpr int kRadixBits = 32;

template <typename Real>
struct Value {
  Real mantissa;
  Real exponent;
};

template <typename Real>
RNNT_HD Value<Real> zero() {
  return {Real(0), Real(-INFINITY)};
}

template <typename Real>
RNNT_HD Value<Real> one() {
  return {Real(1), Real(0)};
}

// 2^(32 n) for an integer n <= 0
template <typename Real>
RNNT_HD Real radix_power(Real n) {
  return power_of_two(Real(kRadixBits) * n);
}

// e^nats. The integer part of the logarithm leaves in double, so a score keeps its precision however large it is.
template <typename Real>
RNNT_HD Value<Real> value_from_nats(double nats) {
  if (nats == -INFINITY) return zero<Real>();
  const double log2 = nats * kLog2e;
  const double whole = ::rint(log2);
  const double exponent = ::rint(whole / kRadixBits);
  const Real mantissa = exp2_fraction(static_cast<Real>(log2 - whole));  // +inf and NaN: inf - inf is NaN
  return {mantissa * power_of_two(static_cast<Real>(whole - kRadixBits * exponent)), static_cast<Real>(exponent)};
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

// One step is enough for what a product or the sum of two products can reach.
template <typename Real>
RNNT_HD Value<Real> normalised(Value<Real> a) {
  const bool small = a.mantissa < Real(0x1p-16), large = a.mantissa >= Real(0x1p16);
  const Real scale = select(small, Real(0x1p32), select(large, Real(0x1p-32), Real(1)));
  const Real shift = select(small, Real(-1), select(large, Real(1), Real(0)));
  return {a.mantissa * scale, a.exponent + shift};
}

}  // namespace rnnt
