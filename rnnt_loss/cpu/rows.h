// A row of V elements in lanes (see each_isa.h). It is read in blocks of kRowLanes elements, the last of them ending
// with the row; a sum has one term per lane, folded in a fixed order. So a row's result depends on that row alone, and
// has the same bits at every vector width. Of rows shorter than a block, kRowLanes are taken together, one in each
// lane.

constexpr int kRowLanes = 16;
constexpr int64_t kFloatSum = 64 * kRowLanes;  // elements summed in acc_t before the sum goes to double

template <typename Real>
using Block = Several<Real, kRowLanes / Lanes<Real>::kWidth>;
template <typename Real>
using Chunk = Several<Real, std::max(4, kRowLanes / Lanes<Real>::kWidth)>;  // whole blocks

// The first n of a block's lanes, of which the others are 0.
template <typename X, typename acc_t>
RNNT_HD X load_first(const acc_t* p, int n) {
  if (n == kRowLanes) return Lanes<X>::load(p);
  alignas(64) acc_t lanes[kRowLanes] = {};
  std::copy_n(p, n, lanes);
  return Lanes<X>::load(lanes);
}
template <typename X, typename acc_t>
RNNT_HD void store_first(acc_t* p, int n, const X& x) {
  if (n == kRowLanes) return Lanes<X>::store(p, x);
  alignas(64) acc_t lanes[kRowLanes];
  Lanes<X>::store(lanes, x);
  std::copy_n(lanes, n, p);
}

// Calls visit(lanes, k) for the elements from k on, in chunks as long as they fit, then in blocks. Only the type of
// lanes matters. Returns where the last block ends; fewer than kRowLanes elements are left.
template <typename Real, typename Visit>
RNNT_HD int64_t for_each_block(int64_t k, int64_t end, Visit visit) {
  constexpr int kWidth = Lanes<Chunk<Real>>::kWidth;
  if constexpr (kWidth > kRowLanes)
    for (; k + kWidth <= end; k += kWidth) visit(Chunk<Real>(), k);
  for (; k + kRowLanes <= end; k += kRowLanes) visit(Block<Real>(), k);
  return k;
}

// What is left of a row from k on, less than a block: the last block, with -inf where it overlaps the one before.
template <typename Real, typename scalar_t>
RNNT_HD Block<Real> rest_of_row(const scalar_t* row, int64_t k, int64_t end) {
  using L = Lanes<Block<Real>>;
  const auto overlaps = L::iota() < static_cast<int>(kRowLanes - (end - k));
  return select(overlaps, L::splat(-INFINITY), L::load(row + end - kRowLanes));
}

// Rows follow each other in memory: what comes 8 KiB later is fetched while the arithmetic goes on.
template <typename X, typename scalar_t>
RNNT_HD void prefetch_ahead(const scalar_t* p) {
#pragma GCC unroll 16
  for (int i = 0; i < Lanes<X>::kWidth; i += 64 / sizeof(scalar_t))
    __builtin_prefetch(reinterpret_cast<const char*>(p + i) + 8192);
}

// The largest element of a row, and whether it stands alone: whether, of the largest of each lane, no other comes
// within 2 of it. If one does, the sum of exp(x - largest) has a second term above 0.13, and float can tell it from 1.
template <typename acc_t>
struct Largest {
  acc_t value;
  bool alone;
};

template <typename Real, typename scalar_t, typename acc_t = typename Lanes<Real>::Scalar>
Largest<acc_t> row_largest(const scalar_t* row, int64_t V) {
  using OfBlock = Lanes<Block<Real>>;
  Chunk<Real> largest = Lanes<Chunk<Real>>::splat(-INFINITY);
  const auto take = [&](const auto& x) RNNT_INLINE {
#pragma GCC unroll 16
    for (int i = 0; i < x.kParts; i++) largest.part[i] = maximum(x.part[i], largest.part[i]);
  };
  const int64_t k = for_each_block<Real>(
      0, V, [&](auto lanes, int64_t k) RNNT_INLINE { take(Lanes<decltype(lanes)>::load(row + k)); });
  if (k < V) take(rest_of_row<Real>(row, k, V));
  Block<Real> of_lane;
#pragma GCC unroll 16
  for (int i = 0; i < of_lane.kParts; i++) {
    of_lane.part[i] = largest.part[i];
    for (int j = i + of_lane.kParts; j < largest.kParts; j += of_lane.kParts)
      of_lane.part[i] = maximum(largest.part[j], of_lane.part[i]);
  }
  const acc_t value = OfBlock::fold(of_lane, [](Real a, Real b) RNNT_INLINE { return maximum(a, b); });
  typename OfBlock::Int near = {};
#pragma GCC unroll 16
  for (int i = 0; i < near.kParts; i++) near.part[i] = counted(near.part[i], splat<Real>(value - 2) < of_lane.part[i]);
  return {value, OfBlock::fold(OfBlock::from_int(near), [](Real a, Real b) RNNT_INLINE { return a + b; }) < 2};
}

// The sum of exp(x - largest) less the 1 of the largest. kAlone: terms of 1 are counted, the others added by
// themselves.
template <typename Real, bool kAlone>
struct Rest {
  Block<Real> sum = {};
  typename Lanes<Block<Real>>::Int ones = {};

  template <typename X>
  RNNT_HD void add(const X& x, const X& largest) {
    using Int = typename Lanes<X>::Int;
    X terms = exponential(x, largest);
    if constexpr (kAlone) {
      const auto is_largest = from_bits<Int>(x) == from_bits<Int>(largest);
#pragma GCC unroll 16
      for (int i = 0; i < X::kParts; i++)
        ones.part[i % ones.kParts] = counted(ones.part[i % ones.kParts], is_largest.part[i]);
      terms = unless(is_largest, terms);
    }
#pragma GCC unroll 16
    for (int i = 0; i < X::kParts; i++) sum.part[i % sum.kParts] += terms.part[i];
  }
};

template <bool kAlone, typename Real, typename scalar_t, typename acc_t>
acc_t row_rest(const scalar_t* row, int64_t V, acc_t largest) {
  using OfBlock = Lanes<Block<Real>>;
  const auto plus = [](Real a, Real b) RNNT_INLINE { return a + b; };
  double sum = 0, ones = 0;
  for (int64_t start = 0; start < V; start += kFloatSum) {
    Rest<Real, kAlone> rest;
    const int64_t end = std::min(V, start + kFloatSum);
    const int64_t k = for_each_block<Real>(start, end, [&](auto lanes, int64_t k) RNNT_INLINE {
      using X = decltype(lanes);
      prefetch_ahead<X>(row + k);
      rest.add(Lanes<X>::load(row + k), splat<X>(largest));
    });
    if (k < end) rest.add(rest_of_row<Real>(row, k, end), splat<Block<Real>>(largest));
    sum += OfBlock::fold(rest.sum, plus);
    if (kAlone) ones += OfBlock::fold(OfBlock::from_int(rest.ones), plus);
  }
  sum += kAlone ? ones - 1 : -1;
  return static_cast<acc_t>(sum + (largest - largest));  // NaN where the largest is infinite or NaN
}

template <typename Real, typename scalar_t, typename acc_t>
acc_t row_rest(const scalar_t* row, int64_t V, Largest<acc_t> largest) {
  return largest.alone ? row_rest<true, Real>(row, V, largest.value) : row_rest<false, Real>(row, V, largest.value);
}

// Up to kRowLanes rows of V < kRowLanes elements, turned: element k of row j is at [k][j].
template <typename acc_t>
struct ShortRows {
  alignas(64) acc_t element[kRowLanes][kRowLanes];

  template <typename scalar_t>
  void load_row(int j, const scalar_t* row, int64_t V) {
    for (int64_t k = 0; k < V; k++) element[k][j] = load(row[k]);
  }
  void clear_row(int j, int64_t V) {
    for (int64_t k = 0; k < V; k++) element[k][j] = 0;
  }
};

// The softmax of n short rows; row_at(j) is row j.
template <typename Real, typename RowAt, typename acc_t = typename Lanes<Real>::Scalar>
void short_rows_softmax(RowAt row_at, int n, int64_t V, acc_t* largest, acc_t* rest) {
  using OfRows = Lanes<Block<Real>>;
  ShortRows<acc_t> rows;
  for (int j = 0; j < kRowLanes; j++) j < n ? rows.load_row(j, row_at(j), V) : rows.clear_row(j, V);
  Block<Real> top = OfRows::load(rows.element[0]);
  for (int64_t k = 1; k < V; k++) top = maximum(OfRows::load(rows.element[k]), top);
  Rest<Real, true> others;
  for (int64_t k = 0; k < V; k++) others.add(OfRows::load(rows.element[k]), top);
  OfRows::store(largest, top);
  OfRows::store(rest, others.sum + (OfRows::from_int(others.ones) - splat<Block<Real>>(1)) + (top - top));
}
