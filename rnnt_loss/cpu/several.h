// x, but 0 where the condition holds; and n, one more where it does.
RNNT_HD double unless(bool condition, double x) { return condition ? 0 : x; }
RNNT_HD int64_t counted(int64_t n, bool condition) { return n + condition; }
typedef int32_t Ints __attribute__((vector_size(sizeof(Floats))));
RNNT_HD Floats unless(Ints condition, Floats x) {
  if constexpr (sizeof(Floats) == 64) return condition ? Floats{} : x;
  return from_bits<Floats>(~condition & from_bits<Ints>(x));
}
RNNT_HD Ints counted(Ints n, Ints condition) { return n - condition; }

// N vectors side by side, as lanes of their own (see each_isa.h): what is done to them is done to each in turn. The
// exponential is a chain of twenty instructions that wait for each other; with several chains next to each other the
// processor has something to do meanwhile. On its own it sees too little of what follows to find them.

template <typename Vector, int N>
struct Several {
  using Part = Vector;
  static constexpr int kParts = N;
  Vector part[N];
};

template <int N, typename Make>
RNNT_HD auto several(Make make) {
  Several<decltype(make(0)), N> out;
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) out.part[i] = make(i);
  return out;
}

#define RNNT_OPERATOR(op)                                                         \
  template <typename A, typename B, int N>                                        \
  RNNT_HD auto operator op(const Several<A, N>& a, const Several<B, N>& b) {      \
    return several<N>([&](int i) RNNT_INLINE { return a.part[i] op b.part[i]; }); \
  }                                                                               \
  template <typename A, typename B, int N>                                        \
  RNNT_HD auto operator op(const Several<A, N>& a, B b) {                         \
    return several<N>([&](int i) RNNT_INLINE { return a.part[i] op b; });         \
  }
RNNT_OPERATOR(+)
RNNT_OPERATOR(-)
RNNT_OPERATOR(*)
RNNT_OPERATOR(/)
RNNT_OPERATOR(<)
RNNT_OPERATOR(==)
RNNT_OPERATOR(<<)
RNNT_OPERATOR(>>)
RNNT_OPERATOR(&)
#undef RNNT_OPERATOR

template <typename A, int N>
RNNT_HD Several<A, N> operator-(const Several<A, N>& a) {
  return several<N>([&](int i) RNNT_INLINE { return -a.part[i]; });
}

template <typename Mask, typename A, int N>
RNNT_HD Several<A, N> select(const Several<Mask, N>& condition, const Several<A, N>& yes, const Several<A, N>& no) {
  return several<N>([&](int i) RNNT_INLINE { return select(condition.part[i], yes.part[i], no.part[i]); });
}

template <typename Mask, typename A, int N>
RNNT_HD Several<A, N> unless(const Several<Mask, N>& condition, const Several<A, N>& x) {
  return several<N>([&](int i) RNNT_INLINE { return unless(condition.part[i], x.part[i]); });
}

template <typename To, typename From, int N>
RNNT_HD To from_bits(const Several<From, N>& bits) {
  return several<N>([&](int i) RNNT_INLINE { return from_bits<typename To::Part>(bits.part[i]); });
}

template <typename Vector, int N>
struct Lanes<Several<Vector, N>> {
  using Part = Lanes<Vector>;
  using Scalar = typename Part::Scalar;
  using Real = Several<Vector, N>;
  using Int = Several<typename Part::Int, N>;
  using Uint = Several<typename Part::Uint, N>;
  static constexpr int kWidth = N * Part::kWidth;

  RNNT_HD static Real splat(Scalar x) {
    return several<N>([&](int) RNNT_INLINE { return Part::splat(x); });
  }
  RNNT_HD static Real from_int(const Int& n) {
    return several<N>([&](int i) RNNT_INLINE { return Part::from_int(n.part[i]); });
  }
  RNNT_HD static auto iota() {
    return several<N>([&](int i) RNNT_INLINE { return Part::iota() + i * Part::kWidth; });
  }
  RNNT_HD static Real maximum(const Real& a, const Real& b) {
    return several<N>([&](int i) RNNT_INLINE { return Part::maximum(a.part[i], b.part[i]); });
  }
  RNNT_HD static Real minimum(const Real& a, const Real& b) {
    return several<N>([&](int i) RNNT_INLINE { return Part::minimum(a.part[i], b.part[i]); });
  }
  RNNT_HD static Real mul_add(const Real& a, const Real& b, const Real& c) {
    return several<N>([&](int i) RNNT_INLINE { return Part::mul_add(a.part[i], b.part[i], c.part[i]); });
  }
  template <typename scalar_t>
  RNNT_HD static Real load(const scalar_t* p) {
    return several<N>([&](int i) RNNT_INLINE { return load_lanes<Vector>(p + i * Part::kWidth); });
  }
  template <typename scalar_t>
  RNNT_HD static void store(scalar_t* p, const Real& x) {
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) store_lanes(p + i * Part::kWidth, x.part[i]);
  }
  // Part i with part i + N / 2, and so on down to one, then that one's lanes.
  template <typename Combine>
  RNNT_HD static Scalar fold(Real x, Combine combine) {
#pragma GCC unroll 16
    for (int half = N / 2; half; half /= 2)
      for (int i = 0; i < half; i++) x.part[i] = combine(x.part[i], x.part[i + half]);
    return Part::fold(x.part[0], combine);
  }
};

template <int N>
RNNT_HD Several<double, N> exp_of(const Several<double, N>& x) {
  return several<N>([&](int i) RNNT_INLINE { return exp_of(x.part[i]); });
}
template <int N>
RNNT_HD Several<double, N> log_of_sum(const Several<double, N>& x, const Several<double, N>& less) {
  return several<N>([&](int i) RNNT_INLINE { return log_of_sum(x.part[i], less.part[i]); });
}
