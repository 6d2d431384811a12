// A row of V elements in lanes (see each_isa.h). It is read in blocks of kRowLanes elements, the last of them ending
// with the row; a sum has one term per lane, folded in a fixed order. So a row's result depends on that row alone, and
// has the same bits at every vector width. Of rows shorter than a block, kRowLanes are taken together, one in each
// lane.

constexpr int kRowLanes = 16;
constexpr int64_t kBlock = 64 * kRowLanes;  // elements summed in acc_t before the sum goes to double

// Rows follow each other in memory: what comes 8 KiB later is fetched while the arithmetic goes on.
RNNT_HD void prefetch_ahead(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + 8192); }

// kRowLanes elements as vectors.
template <typename Real>
struct Block {
  static constexpr int kVectors = kRowLanes / Lanes<Real>::kWidth;
  Real vector[kVectors];

  template <typename scalar_t>
  RNNT_HD static Block load(const scalar_t* p) {
    Block block;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; i++) block.vector[i] = load_lanes<Real>(p + i * Lanes<Real>::kWidth);
    return block;
  }
};

// Lane i with lane i + 8, and so on down to one.
template <typename Real, typename Combine>
RNNT_HD typename Lanes<Real>::Scalar fold(Block<Real> block, Combine combine) {
#pragma GCC unroll 16
  for (int half = Block<Real>::kVectors / 2; half; half /= 2)
    for (int i = 0; i < half; i++) block.vector[i] = combine(block.vector[i], block.vector[i + half]);
  return Lanes<Real>::fold(block.vector[0], combine);
}

template <typename Real, typename scalar_t, typename acc_t = typename Lanes<Real>::Scalar>
acc_t row_maximum(const scalar_t* row, int64_t V) {
  Block<Real> lanes = Block<Real>::load(row);
  const auto take = [&](int64_t k) {
    const Block<Real> x = Block<Real>::load(row + k);
#pragma GCC unroll 16
    for (int i = 0; i < Block<Real>::kVectors; i++) lanes.vector[i] = maximum(x.vector[i], lanes.vector[i]);
  };
  for (int64_t k = kRowLanes; k + kRowLanes <= V; k += kRowLanes) take(k);
  take(V - kRowLanes);
  return fold(lanes, [](Real a, Real b) RNNT_INLINE { return maximum(a, b); });
}

// The sum of exp(x - largest) less the 1 of the largest: terms of 1 are counted, the others added by themselves.
template <typename Real>
struct Rest {
  Real sum, ones;

  RNNT_HD void add(Real x, Real largest) {
    const auto is_largest = x == largest;
    const Real none = splat<Real>(0);
    sum += select(is_largest, none, exponential(x, largest));
    ones += select(is_largest, splat<Real>(1), none);
  }
};

template <typename Real, typename scalar_t, typename acc_t = typename Lanes<Real>::Scalar>
acc_t row_rest(const scalar_t* row, int64_t V, acc_t largest) {
  using L = Lanes<Real>;
  constexpr int kVectors = Block<Real>::kVectors;
  const Real top = splat<Real>(largest), none = splat<Real>(-INFINITY);
  const auto plus = [](Real a, Real b) RNNT_INLINE { return a + b; };
  double sum = 0, ones = 0;
  for (int64_t start = 0; start < V; start += kBlock) {
    Block<Real> sums = {}, counts = {};
    const auto add = [&](int i, Real x) RNNT_INLINE {
      Rest<Real> rest = {sums.vector[i], counts.vector[i]};
      rest.add(x, top);
      sums.vector[i] = rest.sum, counts.vector[i] = rest.ones;
    };
    const int64_t end = std::min(V, start + kBlock);
    int64_t k = start;
    for (; k + kRowLanes <= end; k += kRowLanes) {
      prefetch_ahead(row + k);
      const Block<Real> x = Block<Real>::load(row + k);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; i++) add(i, x.vector[i]);
    }
    if (k < end) {  // the row's last block, less what is counted already
      const Block<Real> x = Block<Real>::load(row + end - kRowLanes);
      for (int i = 0; i < kVectors; i++) {
        const auto counted = L::iota() + i * L::kWidth < static_cast<int>(kRowLanes - (end - k));
        add(i, select(counted, none, x.vector[i]));
      }
    }
    sum += fold(sums, plus);
    ones += fold(counts, plus);
  }
  return static_cast<acc_t>(sum + (ones - 1) + (largest - largest));  // NaN where the largest is infinite or NaN
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
  using L = Lanes<Real>;
  ShortRows<acc_t> rows;
  for (int j = 0; j < kRowLanes; j++) j < n ? rows.load_row(j, row_at(j), V) : rows.clear_row(j, V);
  for (int j = 0; j < kRowLanes; j += L::kWidth) {
    Real top = L::load(rows.element[0] + j);
    Rest<Real> others = {splat<Real>(0), splat<Real>(0)};
    for (int64_t k = 1; k < V; k++) top = maximum(L::load(rows.element[k] + j), top);
    for (int64_t k = 0; k < V; k++) others.add(L::load(rows.element[k] + j), top);
    L::store(largest + j, top);
    L::store(rest + j, others.sum + (others.ones - splat<Real>(1)) + (top - top));
  }
}
