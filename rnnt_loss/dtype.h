// Element types as they are stored, and the one switch from a run-time dtype to a compile-time type.
#pragma once

#include "core/lanes.h"

namespace rnnt {

enum class Dtype { kFloat32, kFloat64, kFloat16, kBFloat16 };

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

RNNT_HD float load(float x) { return x; }
RNNT_HD double load(double x) { return x; }
RNNT_HD float load(bfloat16 x) { return from_bits<float>(static_cast<uint32_t>(x.bits) << 16); }
RNNT_HD float load(float16 x) {
  const uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  const uint32_t infinite_or_nan = magnitude << 13 | 0x7f800000u, normal = (magnitude << 13) + (112u << 23);
  const uint32_t subnormal = from_bits<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return from_bits<float>(sign | (magnitude >= 0x7c00u ? infinite_or_nan : magnitude >= 0x400u ? normal : subnormal));
}

// Round to nearest, ties to even; NaN stays NaN.
template <typename scalar_t>
RNNT_HD scalar_t store(float x) {
  return static_cast<scalar_t>(x);
}
template <typename scalar_t>
RNNT_HD scalar_t store(double x) {
  return static_cast<scalar_t>(x);
}
template <>
RNNT_HD bfloat16 store<bfloat16>(float x) {
  const uint32_t bits = from_bits<uint32_t>(x);
  const uint32_t rounded = x == x ? bits + 0x7fffu + (bits >> 16 & 1u) : bits | 0x400000u;
  return {static_cast<uint16_t>(rounded >> 16)};
}
template <>
RNNT_HD float16 store<float16>(float x) {
  const uint32_t bits = from_bits<uint32_t>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520: half way to the first value beyond the range
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14 the step is 2^-24, as it is for a float in [1/2, 1)
    half = from_bits<uint32_t>(from_bits<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(half | sign)};
}
template <>
RNNT_HD bfloat16 store<bfloat16>(double x) {
  return store<bfloat16>(static_cast<float>(x));
}
template <>
RNNT_HD float16 store<float16>(double x) {
  return store<float16>(static_cast<float>(x));
}

// Calls f with a value of the stored type, of which only the type matters.
template <typename F>
void dispatch(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::kFloat32: return f(float());
    case Dtype::kFloat64: return f(double());
    case Dtype::kFloat16: return f(float16());
    case Dtype::kBFloat16: return f(bfloat16());
  }
}

// The type that a stored type is computed in (acc_t).
template <typename scalar_t>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};

}  // namespace rnnt
