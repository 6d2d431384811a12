// Stored elements to and from lanes of float or double.

// The stored 16 bits, in the low half of an integer lane, as a float, and back. Back rounds to nearest, ties to even;
// NaN stays NaN. Integers are signed: what a shift to the right copies of the sign is masked.
template <typename scalar_t>
struct Bits;

template <>
struct Bits<bfloat16> {
  template <typename Real, typename Int = typename Lanes<Real>::Int>
  RNNT_HD static Real load(Int bits) {
    return from_bits<Real>(bits << 16);
  }
  template <typename Real, typename Int = typename Lanes<Real>::Int>
  RNNT_HD static Int store(Real x) {
    const Int bits = from_bits<Int>(x), magnitude = bits & 0x7fffffff;
    const Int rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16, nan = magnitude >> 16 | 0x40;
    return select(magnitude > 0x7f800000, nan, rounded) | (bits >> 16 & 0x8000);
  }
};

template <>
struct Bits<float16> {
  template <typename Real, typename Int = typename Lanes<Real>::Int>
  RNNT_HD static Real load(Int bits) {
    const Int magnitude = bits & 0x7fff, shifted = magnitude << 13;
    const Int infinite_or_nan = shifted | 0x7f800000, normal = shifted + (112 << 23);
    const Int subnormal = from_bits<Int>(Lanes<Real>::from_int(magnitude) * 0x1p-24f);
    const Int finite = select(magnitude >= 0x400, normal, subnormal);
    return from_bits<Real>(select(magnitude >= 0x7c00, infinite_or_nan, finite) | (bits & 0x8000) << 16);
  }
  template <typename Real, typename Int = typename Lanes<Real>::Int>
  RNNT_HD static Int store(Real x) {
    const Int bits = from_bits<Int>(x), magnitude = bits & 0x7fffffff;
    const Int normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // Below 2^-14 the step is 2^-24, as it is for a float in [1/2, 1).
    const Int subnormal = from_bits<Int>(from_bits<Real>(magnitude) + 0.5f) - 0x3f000000;
    const Int infinite_or_nan = select(magnitude > 0x7f800000, Int{} + 0x7e00, Int{} + 0x7c00);
    const Int finite = select(magnitude < 0x38800000, subnormal, normal);
    return select(magnitude >= 0x477ff000, infinite_or_nan, finite) | (bits >> 16 & 0x8000);  // from 65520 on
  }
};

// One element as it is computed with (acc_t), and back.
RNNT_HD float load(float x) { return x; }
RNNT_HD double load(double x) { return x; }
template <typename scalar_t>
RNNT_HD float load(scalar_t x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<scalar_t, float16>) return __half2float(__ushort_as_half(x.bits));
#endif
  return Bits<scalar_t>::template load<float>(static_cast<int32_t>(x.bits));
}

template <typename scalar_t>
struct Store {
  RNNT_HD static scalar_t from(float x) {
#if defined(__CUDA_ARCH__)  // one instruction
    if constexpr (std::is_same_v<scalar_t, float16>) return {__half_as_ushort(__float2half_rn(x))};
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    return {static_cast<uint16_t>(Bits<scalar_t>::template store<float>(x))};
#endif
  }
  RNNT_HD static scalar_t from(double x) { return from(static_cast<float>(x)); }
};
template <>
struct Store<float> {
  RNNT_HD static float from(double x) { return static_cast<float>(x); }
};
template <>
struct Store<double> {
  RNNT_HD static double from(double x) { return x; }
};
template <typename scalar_t, typename acc_t>
RNNT_HD scalar_t store(acc_t x) {
  return Store<scalar_t>::from(x);
}

// As many elements as Real has lanes.
template <typename Real, typename scalar_t>
RNNT_HD Real load_lanes(const scalar_t* p) {
  if constexpr (Lanes<Real>::kWidth == 1) {
    return load(*p);
  } else {
    return Lanes<Real>::load(p);
  }
}
template <typename Real, typename scalar_t>
RNNT_HD void store_lanes(scalar_t* p, Real x) {
  if constexpr (Lanes<Real>::kWidth == 1) {
    *p = store<scalar_t>(x);
  } else {
    Lanes<Real>::store(p, x);
  }
}
