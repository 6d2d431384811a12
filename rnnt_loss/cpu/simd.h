// Lanes of this instruction set's Floats (see each_isa.h): the compiler's vector extensions, which it turns into
// whatever the target region allows.

template <>
struct Lanes<Floats> {
  static constexpr int kWidth = sizeof(Floats) / sizeof(float), W = kWidth;
  typedef int32_t Int __attribute__((vector_size(4 * W)));
  typedef uint32_t Uint __attribute__((vector_size(4 * W)));
  typedef uint16_t Half __attribute__((vector_size(2 * W)));
#if defined(RNNT_FROM_HALVES)
  typedef long long Packed __attribute__((vector_size(2 * W), may_alias));  // as the intrinsics have it
#endif
  typedef float HalfFloats __attribute__((vector_size(2 * W)));
  typedef double Doubles __attribute__((vector_size(4 * W)));
  using Wide = Several<Doubles, 2>;
  using Scalar = float;
  using Real = Floats;
  static constexpr int kBias = 127;
  static constexpr int32_t kMagnitude = 0x7fffffff;

  RNNT_HD static Real splat(float x) { return Real{} + x; }
  RNNT_HD static Wide widen(Real x) {
    HalfFloats half[2];
    memcpy(half, &x, sizeof x);
    return {__builtin_convertvector(half[0], Doubles), __builtin_convertvector(half[1], Doubles)};
  }
  RNNT_HD static Real narrow(const Wide& x) {
    return joined(__builtin_convertvector(x.part[0], HalfFloats), __builtin_convertvector(x.part[1], HalfFloats),
                  std::make_index_sequence<W>());
  }
  template <size_t... kLane>
  RNNT_HD static Real joined(HalfFloats a, HalfFloats b, std::index_sequence<kLane...>) {
    return __builtin_shufflevector(a, b, kLane...);
  }
  RNNT_HD static Real from_int(Int n) { return __builtin_convertvector(n, Real); }
  RNNT_HD static Real from_biased_exponent(Real biased) {
    return from_bits<Real>(__builtin_convertvector(biased, Int) << 23);
  }

  RNNT_HD static Real maximum(Real a, Real b) {
#if defined(__x86_64__)
    return RNNT_MAXIMUM(a, b);
#else
    return a > b ? a : b;
#endif
  }
  RNNT_HD static Real minimum(Real a, Real b) {
#if defined(__x86_64__)
    return RNNT_MINIMUM(a, b);
#else
    return a < b ? a : b;
#endif
  }
  RNNT_HD static Real mul_add(Real a, Real b, Real c) {
#if defined(RNNT_FUSED)
    return RNNT_FUSED(a, b, c);
#else
    return a * b + c;
#endif
  }

  RNNT_HD static Real load(const float* p) {
    Real x;
    memcpy(&x, p, sizeof x);
    return x;
  }
  RNNT_HD static void store(float* p, Real x) { memcpy(p, &x, sizeof x); }
#if defined(RNNT_FROM_HALVES)
  RNNT_HD static Real load(const float16* p) { return RNNT_FROM_HALVES(reinterpret_cast<const Packed*>(p)); }
  RNNT_HD static void store(float16* p, Real x) { RNNT_TO_HALVES(reinterpret_cast<Packed*>(p), x); }
#endif
  template <typename scalar_t>
  RNNT_HD static Real load(const scalar_t* p) {
    Half half;
    memcpy(&half, p, sizeof half);
    return Bits<scalar_t>::template load<Real>(__builtin_convertvector(half, Int));
  }
  template <typename scalar_t>
  RNNT_HD static void store(scalar_t* p, Real x) {
    const Half half = __builtin_convertvector(Bits<scalar_t>::template store<Real>(x), Half);
    memcpy(p, &half, sizeof half);
  }
  RNNT_HD static Real gather(const float* p, int64_t step, LaneRange range, float rest) {
    Real x = splat(rest);
    if (range.first == 0 && range.last == W) {
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) x[i] = p[i * step];
    } else {
      for (int i = range.first; i < range.last; i++) x[i] = p[i * step];
    }
    return x;
  }
  RNNT_HD static void scatter(float* p, int64_t step, LaneRange range, Real x) {
    if (range.first == 0 && range.last == W) {
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) p[i * step] = x[i];
    } else {
      for (int i = range.first; i < range.last; i++) p[i * step] = x[i];
    }
  }

  RNNT_HD static Real only(LaneRange range, Real x) {
    return select((iota() >= range.first) & (iota() < range.last), x, splat(0));
  }

  RNNT_HD static Int iota() {
    Int lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    return lane;
  }
#if defined(__clang__)
  RNNT_HD static Real permuted(Real x, Int from) {
    Real out;
    for (int i = 0; i < W; i++) out[i] = x[from[i]];
    return out;
  }
  // Lanes first .. first + W - 1 of a and b side by side.
  RNNT_HD static Real window(Real a, Real b, int first) {
    Real out;
    for (int i = 0; i < W; i++) out[i] = first + i < W ? a[first + i] : b[first + i - W];
    return out;
  }
#else
  RNNT_HD static Real permuted(Real x, Int from) { return __builtin_shuffle(x, from); }
  RNNT_HD static Real window(Real a, Real b, int first) { return __builtin_shuffle(a, b, iota() + first); }
#endif
  RNNT_HD static Real shift_up(Real previous, Real x) { return window(previous, x, W - 1); }
  RNNT_HD static Real shift_down(Real x, Real next) { return window(x, next, 1); }
  // Lane i with lane i + W / 2, and so on down to one.
  template <typename Combine>
  RNNT_HD static float fold(Real x, Combine combine) {
#pragma GCC unroll 4
    for (int half = W / 2; half; half /= 2) x = combine(x, permuted(x, iota() ^ half));
    return x[0];
  }
};
