// score_backward, for one instruction set (see each_isa.h): the posteriors of a cell's arcs become the gradient of its
// row (README, eq. 10, 12, 13).

#include "rows.h"

// What the gradients of up to kRowLanes cells of a frame need besides their rows, a cell in each lane.
template <typename Real, typename acc_t = typename Lanes<Real>::Scalar>
struct Cells {
  alignas(64) acc_t blank_posterior[kRowLanes] = {}, label_posterior[kRowLanes] = {};
  alignas(64) acc_t largest[kRowLanes] = {}, rest[kRowLanes] = {};  // of the softmax
  alignas(64) acc_t blank[kRowLanes] = {}, label[kRowLanes] = {};   // the logit of the arc's class, then its gradient
  alignas(64) acc_t others[kRowLanes];                              // the posterior that classes without an arc share
  alignas(64) acc_t weight[kRowLanes];  // times exp(x - largest), the gradient of a class without an arc
  int64_t label_class[kRowLanes];       // negative for none
  Normalizer normalizer;
  acc_t bound, upstream;

  // Without a bound, the upstream gradient is one factor with the weight.
  bool is_bounded() const { return bound != acc_t(INFINITY); }

  void find_gradients() {
    using X = Block<Real>;
    using L = Lanes<X>;
    const X P = L::load(blank_posterior), Q = L::load(label_posterior);
    const Softmax<X> row = {L::load(largest), L::load(rest)};
    const bool is_hat = normalizer == Normalizer::kHat;  // whose blank has no part in the softmax
    const X of_others = is_hat ? Q : P + Q, occupancy_over_sum = of_others / (splat<X>(1) + row.rest);
    L::store(others, normalizer == Normalizer::kNone ? splat<X>(0) : of_others);
    L::store(weight, is_bounded() ? occupancy_over_sum : occupancy_over_sum * splat<X>(upstream));
    const auto replace = [&](acc_t* logits, const Softmax<X>& among, const X& own, const X& other) RNNT_INLINE {
      const X x = L::load(logits), m = among.maximum;
      const X g =
          normalizer == Normalizer::kNone ? -own : arc_gradient(exponential(x, m), x == m, among.rest, own, other);
      L::store(logits, finished(g, splat<X>(bound), splat<X>(upstream)));
    };
    replace(blank, is_hat ? blank_or_label(L::load(blank)) : row, P, Q);
    replace(label, row, Q, is_hat ? splat<X>(0) : P);
  }

  // Where both posteriors are 0, so is the gradient, whatever comes from upstream.
  bool is_untouched(int j) const { return blank_posterior[j] == 0 && label_posterior[j] == 0; }
  acc_t occupancy(int j) const { return blank_posterior[j] + label_posterior[j]; }

  // HAT's labels have no part in a cell that none leaves, whatever their row holds.
  bool has_label(int j) const {
    return !is_untouched(j) && (normalizer != Normalizer::kHat || label_posterior[j] != 0);
  }

  // Whether classes without an arc have a gradient.
  bool has_others(int j) const { return others[j] != 0; }
};

// The gradients of logits without an arc, in place of x = exp(logit - largest).
template <typename X, typename OfCells>
RNNT_HD X gradient_of(const X& x, const X& weight, const OfCells& cells) {
  return cells.is_bounded() ? finished(x * weight, splat<X>(cells.bound), splat<X>(cells.upstream)) : x * weight;
}

// Where a row of the gradient is finished, piece by piece: where it belongs, which may be the row itself.
struct InPlace {
  static constexpr int64_t kPiece = INT64_MAX / 2;
  static constexpr bool kIsApart = false;

  template <typename scalar_t>
  scalar_t* at(scalar_t* out) const {
    return out;
  }
  void wrote(int64_t) const {}
  void finish() const {}
};

// Or in the cache, from where it is written past it, by whole cache lines: of one that is not full yet, which a write
// would have to fetch first, the rest waits for the next row, that follows in memory.
template <typename Real>
class PastTheCache {
  static constexpr int64_t kLine = kRowLanes;

 public:
  static constexpr int64_t kPiece = 1024;
  static constexpr bool kIsApart = true;

  float* at(float* out) {
    if (out != line_ + end_) {
      finish();
      begin_ = end_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % (kLine * sizeof(float)) / sizeof(float));
      line_ = out - begin_;
    }
    return kept_ + end_;
  }
  void wrote(int64_t n) {
    end_ += n;
    const int64_t whole = end_ / kLine * kLine;
    if (whole == 0) return;
    if (begin_) std::copy_n(kept_ + begin_, kLine - begin_, line_ + begin_);
    for_each_block<Real>(begin_ ? kLine : 0, whole, [from = kept_, to = line_](auto lanes, int64_t k) RNNT_INLINE {
      stream(to + k, Lanes<decltype(lanes)>::load(from + k));
    });
    Lanes<Block<Real>>::store(kept_, Lanes<Block<Real>>::load(kept_ + whole));
    line_ += whole, end_ -= whole, begin_ = 0;
  }
  void finish() const { std::copy_n(kept_ + begin_, end_ - begin_, line_ + begin_); }

 private:
  template <typename X>
  RNNT_HD static void stream(float* to, const X& x) {
#if defined(__x86_64__)
    constexpr int kWidth = Lanes<Real>::kWidth;
#pragma GCC unroll 16
    for (int i = 0; i < X::kParts; i++) {
      if constexpr (kWidth == 16)
        _mm512_stream_ps(to + i * kWidth, x.part[i]);
      else if constexpr (kWidth == 8)
        _mm256_stream_ps(to + i * kWidth, x.part[i]);
      else
        _mm_stream_ps(to + i * kWidth, x.part[i]);
    }
#else
    Lanes<X>::store(to, x);
#endif
  }

  alignas(64) float kept_[kLine + kPiece + kRowLanes + kMostDurations + kLine];
  float* line_ = nullptr;        // where kept_ belongs
  int64_t begin_ = 0, end_ = 0;  // of what is in it
};

// Elements first .. end - 1 of a row's gradient, as if none were an arc's, to `to`, which may be the row's own or, if
// it is apart, is written line by line.
template <bool kIsApart, typename Real, typename scalar_t>
void gradient_of_others(const scalar_t* row, scalar_t* to, int64_t first, int64_t end, int j,
                        const Cells<Real>& cells) {
  const auto gradient_at = [&](auto lanes, int64_t k) RNNT_INLINE {
    using X = decltype(lanes);
    const X x = exponential(Lanes<X>::load(row + k), splat<X>(cells.largest[j]));
    return gradient_of(x, splat<X>(cells.weight[j]), cells);
  };
  // The first and the last block overlap their neighbours: the last is read before anything is written.
  int64_t start = first;
  if (kIsApart) start += -reinterpret_cast<uintptr_t>(to) % 64 / sizeof(scalar_t);
  const bool partial = (end - start) % kRowLanes;
  Block<Real> last;
  if (partial) last = gradient_at(Block<Real>(), end - kRowLanes);
  if (start > first) Lanes<Block<Real>>::store(to, gradient_at(Block<Real>(), first));
  for_each_block<Real>(start, end, [&](auto lanes, int64_t k) RNNT_INLINE {
    prefetch_ahead<decltype(lanes)>(row + k);
    Lanes<decltype(lanes)>::store(to + k - first, gradient_at(lanes, k));
  });
  if (partial) Lanes<Block<Real>>::store(to + end - first - kRowLanes, last);
}

// The row is read only where classes without an arc have a gradient. add_tail(to) puts the tail there, and says how
// much that is.
template <typename Real, typename scalar_t, typename Writer, typename AddTail>
void gradient_row(const scalar_t* row, scalar_t* out, int64_t V, int64_t blank_class, int j, const Cells<Real>& cells,
                  Writer& writer, AddTail add_tail) {
  using acc_t = typename Lanes<Real>::Scalar;
  for (int64_t first = 0, end; first < V; first = end) {
    end = V - first < Writer::kPiece + kRowLanes ? V : first + Writer::kPiece;
    scalar_t* const to = writer.at(out + first);
    const int64_t of_tail = end == V ? add_tail(to + (end - first)) : 0;
    if (cells.has_others(j))
      gradient_of_others<Writer::kIsApart, Real>(row, to, first, end, j, cells);
    else
      std::fill_n(to, end - first, store<scalar_t>(acc_t(0) * cells.occupancy(j)));  // 0, or NaN
    const auto set = [&](int64_t k, auto g) {
      if (first <= k && k < end) to[k - first] = store<scalar_t>(g);
    };
    if (!cells.is_untouched(j)) set(blank_class, cells.blank[j]);
    if (cells.has_label(j)) set(cells.label_class[j], cells.label[j]);
    writer.wrote(end - first + of_tail);
  }
}

// Of n rows of fewer than kRowLanes elements, those whose classes without an arc have a gradient; row_at(j) and
// out_at(j) are row j.
template <typename Real, typename RowAt, typename OutAt>
void gradient_short_rows(RowAt row_at, OutAt out_at, int n, int64_t V, int64_t blank_class, const Cells<Real>& cells) {
  using X = Block<Real>;
  using L = Lanes<X>;
  using scalar_t = std::remove_pointer_t<decltype(out_at(0))>;
  ShortRows<typename L::Scalar> rows;
  for (int j = 0; j < kRowLanes; j++)
    j < n&& cells.has_others(j) ? rows.load_row(j, row_at(j), V) : rows.clear_row(j, V);
  const X largest = L::load(cells.largest), weight = L::load(cells.weight);
  for (int64_t k = 0; k < V; k++)
    L::store(rows.element[k], gradient_of(exponential(L::load(rows.element[k]), largest), weight, cells));
  for (int j = 0; j < n; j++) {
    if (!cells.has_others(j)) continue;
    rows.element[blank_class][j] = cells.blank[j];
    if (cells.label_class[j] >= 0) rows.element[cells.label_class[j]][j] = cells.label[j];
    for (int64_t k = 0; k < V; k++) out_at(j)[k] = store<scalar_t>(rows.element[k][j]);
  }
}

// PastTheCache is for logits in float, on lanes of float.
template <typename Writer, typename Real, typename scalar_t>
void score_backward_rows(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const acc_t *softmax = static_cast<const acc_t*>(p.softmax), *of_scores = static_cast<const acc_t*>(p.of_scores);
  const bool from_logits = p.normalizer != Normalizer::kNone, are_short = from_logits && batch.V < kRowLanes;
  const acc_t label_weight = static_cast<acc_t>(p.label_weight);
  const scalar_t none = store<scalar_t>(acc_t(0));
  Writer writer;
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row_of_start) {
    const int64_t U = batch.label_lengths[b], end_of_cells = std::min(end, cells_in_frame(batch, b, t));
    const PosteriorPlanes<acc_t> posteriors = posteriors_of<acc_t>(p.posteriors, layout, b);
    const int64_t in_next_frame = p.x.row_offset(batch, b, t + 1, 0) - p.x.row_offset(batch, b, t, 0);
    const auto out_of = [&](int64_t u) {
      return static_cast<scalar_t*>(p.grad_x.data) + p.grad_x.row_offset(batch, b, t, u);
    };
    for (int64_t u = start; u < end_of_cells; u += kRowLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kRowLanes, end_of_cells - u));
      const auto row_at = [&](int j) {
        return static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(batch, b, t, u + j);
      };
      const auto out_at = [&](int j) { return out_of(u + j); };
      Cells<Real> cells;
      cells.normalizer = p.normalizer;
      cells.bound = static_cast<acc_t>(p.clamp), cells.upstream = static_cast<acc_t>(p.grad_loss.at(b));
      for (int j = 0; j < n; j++) {
        const int64_t slot = layout.slot(batch.topology.front(t, u + j), u + j), row = row_of_start + u + j - start;
        const bool has_label = u + j < U;
        cells.label_class[j] = has_label ? batch.labels[b * (batch.U1 - 1) + u + j] : -1;
        cells.blank_posterior[j] = of_scores ? of_scores[row] : posteriors.blank[slot];
        if (has_label)
          cells.label_posterior[j] =
              label_weight * (of_scores ? of_scores[batch.rows() + row] : posteriors.label[slot]);
        if (!from_logits) continue;
        cells.largest[j] = softmax[row], cells.rest[j] = softmax[batch.rows() + row];
        const scalar_t* const logits = row_at(j);
        cells.blank[j] = load(logits[batch.blank]);
        if (has_label) cells.label[j] = load(logits[cells.label_class[j]]);
        // These come before the rows that they are of.
        const scalar_t* const next = logits + in_next_frame;
        __builtin_prefetch(next + batch.blank);
        if (has_label) __builtin_prefetch(next + cells.label_class[j]);
      }
      cells.find_gradients();
      scalar_t tails[(kRowLanes + 1) * kMostDurations];
      const acc_t* of_tails = static_cast<const acc_t*>(p.tail.data) + (row_of_start + u - start) * p.tail.columns;
      int64_t i = for_each_block<Real>(0, n * p.tail.columns, [&](auto lanes, int64_t k) RNNT_INLINE {
        using X = decltype(lanes);
        store_lanes(tails + k, finished(p.tail, Lanes<X>::load(of_tails + k), splat<X>(cells.upstream)));
      });
      for (; i < n * p.tail.columns; i++) tails[i] = store<scalar_t>(finished(p.tail, of_tails[i], cells.upstream));
      const auto add_tail = [&](int j, scalar_t* to) {
        const scalar_t* const tail = tails + j * p.tail.columns;
        if constexpr (Writer::kIsApart)
          std::copy_n(tail, kMostDurations, to);  // there is room, and a copy of fixed size is no call
        else
          std::copy_n(tail, p.tail.columns, to);
        return p.tail.columns;
      };
      if (are_short) gradient_short_rows<Real>(row_at, out_at, n, batch.V, batch.blank, cells);
      for (int j = 0; j < n; j++) {
        if (are_short && cells.has_others(j))
          add_tail(j, out_at(j) + batch.V);
        else
          gradient_row<Real>(row_at(j), out_at(j), batch.V, batch.blank, j, cells, writer,
                             [&](scalar_t* to) { return add_tail(j, to); });
      }
    }
    if (batch.packed) return;  // there is no padding
    for (int64_t u = std::max(start, end_of_cells); u < end; u++)
      std::fill_n(out_of(u), batch.V + p.tail.columns, none);  // padding
  });
  writer.finish();
#if defined(__x86_64__)
  if (Writer::kIsApart) _mm_sfence();
#endif
}

template <typename Real>
void score_backward_of(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if constexpr (std::is_same_v<Real, double> || !std::is_same_v<scalar_t, double>) {
      using Streaming = std::conditional_t<std::is_same_v<scalar_t, float> && !std::is_same_v<Real, double>,
                                           PastTheCache<Real>, InPlace>;
      // In place the line is in the cache already.
      const bool stream =
          p.batch.V >= kRowLanes && p.grad_x.data != p.x.data && p.batch.rows() * p.batch.V > kStreamFrom;
      stream ? score_backward_rows<Streaming, Real, scalar_t>(p, first, last)
             : score_backward_rows<InPlace, Real, scalar_t>(p, first, last);
    }
  });
}

void float_score_backward(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  score_backward_of<Floats>(p, first, last);
}
