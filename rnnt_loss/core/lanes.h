// The arithmetic the core is written in, for lanes of one: a float or double on the host and on a CUDA thread.
// Wider lanes overload the same names, so that scalar, vector and CUDA kernels share one text.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define RNNT_HD __host__ __device__ __forceinline__
#else
#define RNNT_HD inline __attribute__((always_inline))
#endif

namespace rnnt {

template <typename To, typename From>
RNNT_HD To from_bits(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename Real>
RNNT_HD Real select(bool condition, Real yes, Real no) {
  return condition ? yes : no;
}

template <typename Real>
RNNT_HD Real maximum(Real a, Real b) {
  return a > b ? a : b;
}

// 2^n for an integer n at most 127 (1023); exactly 0 where that is no normal number, and for NaN: the difference of
// two zeros' exponents is one, and what it scales is 0 anyway.
RNNT_HD float power_of_two(float n) {
  const float biased = n + 127;
  return from_bits<float>(static_cast<int32_t>(select(biased > 0, biased, 0.0f)) << 23);
}
RNNT_HD double power_of_two(double n) {
  const double biased = n + 1023;
  return from_bits<double>(static_cast<int64_t>(select(biased > 0, biased, 0.0)) << 52);
}

// 2^f for |f| <= 1/2. Minimax polynomial with p(0) = 1, relative error 2e-9 before rounding.
RNNT_HD float exp2_fraction(float f) {
  float p = 1.535336188e-04f;
  p = p * f + 1.339887442e-03f;
  p = p * f + 9.618437358e-03f;
  p = p * f + 5.550332471e-02f;
  p = p * f + 2.402264791e-01f;
  p = p * f + 6.931472029e-01f;
  return p * f + 1.0f;
}
RNNT_HD double exp2_fraction(double f) { return ::exp2(f); }

// 2^x for x <= 127; exactly 0 for x <= -127; NaN stays NaN.
RNNT_HD float exp2_of(float x) {
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
  x = select(x < -127.0f, -127.0f, x);
  const float n = (x + round) - round;
  return exp2_fraction(x - n) * power_of_two(n);
}
RNNT_HD double exp2_of(double x) { return ::exp2(x); }

constexpr double kLog2e = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

}  // namespace rnnt
