// The row functions of one instruction set (see each_isa.h). score turns a V-wide row into the values of the two arcs
// that leave its cell, score_backward turns their posteriors into the gradient of the row (README, eq. 8 and 10).
//
// A row's result depends on that row alone and has the same bits at every vector width: it is read in blocks of
// kRowLanes elements, the last of them ending with the row, and its sum has one term per lane, folded in a fixed order.

constexpr int kRowLanes = 16;
constexpr int64_t kBlock = 64 * kRowLanes;  // elements summed in acc_t before the sum goes to double

// kRowLanes elements as vectors.
template <typename Real>
struct Block {
  static constexpr int kVectors = kRowLanes / Lanes<Real>::kWidth;
  Real vector[kVectors];

  template <typename scalar_t>
  static Block load(const scalar_t* p) {
    Block block;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; i++) block.vector[i] = load_lanes<Real>(p + i * Lanes<Real>::kWidth);
    return block;
  }
};

template <typename Real, typename Combine>
typename Lanes<Real>::Scalar fold(Block<Real> block, Combine combine) {
  typename Lanes<Real>::Scalar lanes[kRowLanes];
  for (int i = 0; i < Block<Real>::kVectors; i++) Lanes<Real>::store(lanes + i * Lanes<Real>::kWidth, block.vector[i]);
  for (int half = kRowLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] = combine(lanes[i], lanes[i + half]);
  return lanes[0];
}

template <typename Real, typename scalar_t, typename acc_t = typename Lanes<Real>::Scalar>
acc_t row_maximum(const scalar_t* row, int64_t V) {
  acc_t largest = load(row[0]);
  if (V < kRowLanes) {
    for (int64_t k = 1; k < V; k++) largest = maximum<acc_t>(load(row[k]), largest);
    return largest;
  }
  Block<Real> lanes = Block<Real>::load(row);
  const auto take = [&](int64_t k) {
    const Block<Real> x = Block<Real>::load(row + k);
#pragma GCC unroll 16
    for (int i = 0; i < Block<Real>::kVectors; i++) lanes.vector[i] = maximum(x.vector[i], lanes.vector[i]);
  };
  for (int64_t k = kRowLanes; k + kRowLanes <= V; k += kRowLanes) take(k);
  take(V - kRowLanes);
  return fold(lanes, [](acc_t a, acc_t b) { return maximum(a, b); });
}

// The sum of exp(x - largest).
template <typename Real, typename scalar_t, typename acc_t = typename Lanes<Real>::Scalar>
acc_t row_sum(const scalar_t* row, int64_t V, acc_t largest) {
  if (V < kRowLanes) {
    acc_t sum = 0;
    for (int64_t k = 0; k < V; k++) sum += exponential<acc_t>(load(row[k]), largest);
    return sum;
  }
  using L = Lanes<Real>;
  const Real top = splat<Real>(largest), none = splat<Real>(-INFINITY);
  const auto plus = [](acc_t a, acc_t b) { return a + b; };
  double sum = 0;
  for (int64_t start = 0; start < V; start += kBlock) {
    Block<Real> lanes = {};
    const int64_t end = std::min(V, start + kBlock);
    int64_t k = start;
    for (; k + kRowLanes <= end; k += kRowLanes) {
      __builtin_prefetch(row + k + V);  // the next row, while this one is in the cache and its arithmetic goes on
      const Block<Real> x = Block<Real>::load(row + k);
#pragma GCC unroll 16
      for (int i = 0; i < Block<Real>::kVectors; i++) lanes.vector[i] += exponential(x.vector[i], top);
    }
    if (k < end) {  // the row's last block, less what is counted already
      const Block<Real> x = Block<Real>::load(row + end - kRowLanes);
      for (int i = 0; i < Block<Real>::kVectors; i++) {
        const auto counted = L::iota() + i * L::kWidth < static_cast<int>(kRowLanes - (end - k));
        lanes.vector[i] += exponential(select(counted, none, x.vector[i]), top);
      }
    }
    sum += fold(lanes, plus);
  }
  return static_cast<acc_t>(sum);
}

template <typename Real, typename scalar_t>
void score_rows(const ScoreParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  acc_t* softmax = static_cast<acc_t*>(p.softmax);
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row_of_start) {
    const int64_t cells = cells_in_frame(batch, b, t), U = batch.label_lengths[b];
    const int64_t* labels = batch.labels + b * (batch.U1 - 1);
    const ArcPlanes<acc_t> arcs = arcs_of<acc_t>(p.arcs, batch, b);
    // Arcs of up to kRowLanes cells become values together.
    for (int64_t u = start; u < std::min(end, cells); u += kRowLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kRowLanes, std::min(end, cells) - u));
      acc_t largest[kRowLanes] = {}, sum[kRowLanes], blank[kRowLanes] = {}, label[kRowLanes] = {};
      std::fill_n(sum, kRowLanes, acc_t(1));
      for (int j = 0; j < n; j++) {
        const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u + j);
        if (p.normalizer == Normalizer::kSoftmax) {
          largest[j] = row_maximum<Real>(row, batch.V);
          sum[j] = row_sum<Real>(row, batch.V, largest[j]);
          softmax[row_of_start + u - start + j] = largest[j];
          softmax[batch.rows() + row_of_start + u - start + j] = sum[j];
        }
        blank[j] = load(row[batch.blank]);
        if (u + j < U) label[j] = load(row[labels[u + j]]);
      }
      acc_t values[4][kRowLanes];
      for (int j = 0; j < kRowLanes; j += Lanes<Real>::kWidth) {
        using L = Lanes<Real>;
        const Softmax<Real> row = {L::load(largest + j), L::load(sum + j)};
        const Value<Real> by_blank = row.value(L::load(blank + j)), by_label = row.value(L::load(label + j));
        L::store(values[0] + j, by_blank.mantissa);
        L::store(values[1] + j, by_blank.exponent);
        L::store(values[2] + j, by_label.mantissa);
        L::store(values[3] + j, by_label.exponent);
      }
      for (int j = 0; j < n; j++) {
        const int64_t slot = layout.slot(batch.topology.front(t, u + j), u + j);
        arcs.set_blank(slot, {values[0][j], values[1][j]});
        if (u + j < U) arcs.set_label(slot, {values[2][j], values[3][j]});
      }
    }
    if (p.normalizer == Normalizer::kNone) return;
    for (int64_t u = std::max(start, cells); u < end; u++)  // padding
      softmax[row_of_start + u - start] = softmax[batch.rows() + row_of_start + u - start] = 0;
  });
}

// The gradient of one row of logits.
template <typename Real, typename scalar_t>
struct GradientRow {
  using acc_t = typename Lanes<Real>::Scalar;
  using L = Lanes<Real>;
  const scalar_t* row;
  scalar_t* out;
  int64_t V, blank, label;  // label: -1 for none
  acc_t largest, weight;    // weight: occupancy over the row's sum
  acc_t blank_posterior, label_posterior;
  acc_t bound, upstream;

  template <typename R>
  R finished(R g) const {
    const R high = splat<R>(bound), low = splat<R>(-bound);
    g = select(g > high, high, g);
    return select(g < low, low, g) * upstream;
  }
  acc_t less_posterior(acc_t g, int64_t k) const {
    return g - (k == blank ? blank_posterior : acc_t(0)) - (k == label ? label_posterior : acc_t(0));
  }
  bool has_arc(int64_t k) const {
    return static_cast<uint64_t>(blank - k) < kRowLanes || static_cast<uint64_t>(label - k) < kRowLanes;
  }

  Block<Real> gradient(const Block<Real>& x, int64_t k) const {
    Block<Real> g;
    const Real top = splat<Real>(largest);
#pragma GCC unroll 16
    for (int i = 0; i < Block<Real>::kVectors; i++) g.vector[i] = exponential(x.vector[i], top) * weight;
    if (__builtin_expect(has_arc(k), 0)) {
      acc_t lanes[kRowLanes];
      for (int i = 0; i < Block<Real>::kVectors; i++) L::store(lanes + i * L::kWidth, g.vector[i]);
      for (int i = 0; i < kRowLanes; i++) lanes[i] = less_posterior(lanes[i], k + i);
      for (int i = 0; i < Block<Real>::kVectors; i++) g.vector[i] = L::load(lanes + i * L::kWidth);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Block<Real>::kVectors; i++) g.vector[i] = finished(g.vector[i]);
    return g;
  }
  void write(int64_t k, const Block<Real>& g) const {
    for (int i = 0; i < Block<Real>::kVectors; i++) store_lanes(out + k + i * L::kWidth, g.vector[i]);
  }

  void run(bool stream) const {
    if (V < kRowLanes) {
      acc_t x[kRowLanes];
      for (int64_t k = 0; k < V; k++) x[k] = load(row[k]);
      for (int64_t k = 0; k < V; k++)
        out[k] = store<scalar_t>(finished(less_posterior(exponential(x[k], largest) * weight, k)));
      return;
    }
    // Out may be the row itself: what the first and the last block read is read before anything is written.
    const Block<Real> head = gradient(Block<Real>::load(row), 0);
    const Block<Real> tail = gradient(Block<Real>::load(row + V - kRowLanes), V - kRowLanes);
    int64_t k = kRowLanes;
    if (stream) {  // whole cache lines past the cache
      k = -reinterpret_cast<uintptr_t>(out) % 64 / sizeof(scalar_t);
      for (; k + kRowLanes <= V; k += kRowLanes) {
        __builtin_prefetch(row + k + kPrefetch);
        write_past_cache(out + k, gradient(Block<Real>::load(row + k), k));
      }
    } else {
      for (; k + kRowLanes <= V; k += kRowLanes) {
        __builtin_prefetch(row + k + kPrefetch);
        write(k, gradient(Block<Real>::load(row + k), k));
      }
    }
    write(0, head);
    write(V - kRowLanes, tail);
  }

  static constexpr int kPrefetch = 512;  // elements

  static void write_past_cache(scalar_t* p, const Block<Real>& g) {
    if constexpr (sizeof(scalar_t) == 4) {
      for (int i = 0; i < Block<Real>::kVectors; i++) {
        float* to = p + i * L::kWidth;
#if defined(__x86_64__)
        if constexpr (L::kWidth == 16) _mm512_stream_ps(to, (__m512)g.vector[i]);
        if constexpr (L::kWidth == 8) _mm256_stream_ps(to, (__m256)g.vector[i]);
        if constexpr (L::kWidth == 4) _mm_stream_ps(to, (__m128)g.vector[i]);
#else
        L::store(to, g.vector[i]);
#endif
      }
    }
  }
};

template <typename Real, typename scalar_t>
void score_backward_rows(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const acc_t* softmax = static_cast<const acc_t*>(p.softmax);
  const bool logits = p.normalizer == Normalizer::kSoftmax;
  const bool stream =
      logits && std::is_same_v<scalar_t, float> && std::is_same_v<acc_t, float> && batch.rows() * batch.V > kStreamFrom;
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row_of_start) {
    const int64_t cells = cells_in_frame(batch, b, t), U = batch.label_lengths[b];
    const PosteriorPlanes<acc_t> posteriors(p.posteriors, batch, b);
    for (int64_t u = start; u < end; u++) {
      const int64_t r = row_of_start + u - start, slot = layout.slot(batch.topology.front(t, u), u);
      scalar_t* out = static_cast<scalar_t*>(p.grad_x) + r * batch.V;
      const acc_t blank = u < cells ? posteriors.blank[slot] : acc_t(0);
      const acc_t label = u < cells && u < U ? posteriors.label[slot] : acc_t(0);
      const acc_t occupancy = blank + label;
      if (!logits || occupancy == 0) std::fill_n(out, batch.V, store<scalar_t>(acc_t(0) * occupancy));  // 0, or NaN
      if (occupancy == 0) continue;
      GradientRow<Real, scalar_t> row = {static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u),
                                         out,
                                         batch.V,
                                         batch.blank,
                                         u < U ? batch.labels[b * (batch.U1 - 1) + u] : -1,
                                         0,
                                         0,
                                         blank,
                                         label,
                                         static_cast<acc_t>(p.clamp),
                                         static_cast<acc_t>(p.grad_loss[b])};
      if (logits) {
        row.largest = softmax[r];
        row.weight = occupancy / softmax[batch.rows() + r];
        row.run(stream);
      } else {
        out[row.blank] = store<scalar_t>(row.finished(-blank));
        if (u < U) out[row.label] = store<scalar_t>(row.finished(-label));
      }
    }
  });
#if defined(__x86_64__)
  if (stream) _mm_sfence();
#endif
}

template <typename Real>
void score_of(const ScoreParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if constexpr (std::is_same_v<Real, double> || !std::is_same_v<scalar_t, double>)
      score_rows<Real, scalar_t>(p, first, last);
  });
}

template <typename Real>
void score_backward_of(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if constexpr (std::is_same_v<Real, double> || !std::is_same_v<scalar_t, double>)
      score_backward_rows<Real, scalar_t>(p, first, last);
  });
}

void float_score(const ScoreParams& p, int64_t first, int64_t last) { score_of<Floats>(p, first, last); }
void float_score_backward(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  score_backward_of<Floats>(p, first, last);
}
