// score_backward, for one instruction set (see each_isa.h): the posteriors of a cell's arcs become the gradient of its
// row (README, eq. 10).

#include "rows.h"

// The gradient of the block x at k of a row of logits.
template <typename Real, typename acc_t>
RNNT_HD Block<Real> gradient_block(const Block<Real>& x, int64_t k, const Cell<acc_t>& cell) {
  constexpr int kVectors = Block<Real>::kVectors, kWidth = Lanes<Real>::kWidth;
  Block<Real> exponentials, g;
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; i++) {
    exponentials.vector[i] = exponential(x.vector[i], splat<Real>(cell.largest));
    g.vector[i] = exponentials.vector[i] * splat<Real>(cell.weight);
  }
  const auto in_block = [&](int64_t label) { return static_cast<uint64_t>(label - k) < kRowLanes; };  // -1 is in none
  if (__builtin_expect(in_block(cell.blank) || in_block(cell.label), 0)) {
    acc_t logits[kRowLanes], terms[kRowLanes], lanes[kRowLanes];
    for (int i = 0; i < kVectors; i++) {
      Lanes<Real>::store(logits + i * kWidth, x.vector[i]);
      Lanes<Real>::store(terms + i * kWidth, exponentials.vector[i]);
      Lanes<Real>::store(lanes + i * kWidth, g.vector[i]);
    }
    const auto set_arc = [&](int64_t label, acc_t own, acc_t other) {
      if (!in_block(label)) return;
      lanes[label - k] = cell.arc_gradient(terms[label - k], logits[label - k] == cell.largest, own, other);
    };
    set_arc(cell.blank, cell.blank_posterior, cell.label_posterior);
    set_arc(cell.label, cell.label_posterior, cell.blank_posterior);
    for (int i = 0; i < kVectors; i++) g.vector[i] = Lanes<Real>::load(lanes + i * kWidth);
  }
#pragma GCC unroll 16
  for (Real& vector : g.vector) vector = finished(vector, splat<Real>(cell.bound), splat<Real>(cell.upstream));
  return g;
}

template <bool kStream, typename Real, typename scalar_t>
RNNT_HD void write_block(scalar_t* out, const Block<Real>& g) {
  using L = Lanes<Real>;
  for (int i = 0; i < Block<Real>::kVectors; i++) {
#if defined(__x86_64__)
    if constexpr (kStream && L::kWidth == 16) {
      _mm512_stream_ps(out + i * 16, g.vector[i]);
      continue;
    } else if constexpr (kStream && L::kWidth == 8) {
      _mm256_stream_ps(out + i * 8, g.vector[i]);
      continue;
    } else if constexpr (kStream && L::kWidth == 4) {
      _mm_stream_ps(out + i * 4, g.vector[i]);
      continue;
    }
#endif
    store_lanes(out + i * L::kWidth, g.vector[i]);
  }
}

// kStream: whole cache lines go past the cache. out may be the row itself: the blocks at its ends, which overlap the
// others, are read before anything is written.
template <bool kStream, typename Real, typename scalar_t, typename acc_t>
void gradient_row(const scalar_t* row, scalar_t* out, int64_t V, const Cell<acc_t>& cell) {
  const int64_t start = kStream ? -reinterpret_cast<uintptr_t>(out) % 64 / sizeof(scalar_t) : 0;
  const int64_t last = V - kRowLanes;
  const bool partial_end = (V - start) % kRowLanes;
  Block<Real> head, tail;
  if (start) head = gradient_block(Block<Real>::load(row), 0, cell);
  if (partial_end) tail = gradient_block(Block<Real>::load(row + last), last, cell);
  for (int64_t k = start; k <= last; k += kRowLanes) {
    prefetch_ahead(row + k);
    write_block<kStream>(out + k, gradient_block(Block<Real>::load(row + k), k, cell));
  }
  if (start) write_block<false>(out, head);
  if (partial_end) write_block<false>(out + last, tail);
}

// n rows of fewer than kRowLanes elements; row_at(j) and out_at(j) are row j.
template <typename Real, typename RowAt, typename OutAt, typename acc_t>
void gradient_short_rows(RowAt row_at, OutAt out_at, int n, int64_t V, const Cell<acc_t> (&cells)[kRowLanes]) {
  using L = Lanes<Real>;
  using scalar_t = std::remove_pointer_t<decltype(out_at(0))>;
  ShortRows<acc_t> rows;
  acc_t largest[kRowLanes] = {}, weight[kRowLanes] = {}, bound[kRowLanes] = {}, upstream[kRowLanes] = {};
  for (int j = 0; j < kRowLanes; j++) {
    if (j >= n || cells[j].weight == 0) {
      rows.clear_row(j, V);
      continue;
    }
    rows.load_row(j, row_at(j), V);
    largest[j] = cells[j].largest, weight[j] = cells[j].weight;
    bound[j] = cells[j].bound, upstream[j] = cells[j].upstream;
  }
  bool blank_is_largest[kRowLanes], label_is_largest[kRowLanes];
  acc_t blank[kRowLanes], label[kRowLanes];
  for (int j = 0; j < n; j++) {
    blank_is_largest[j] = rows.element[cells[j].blank][j] == largest[j];
    label_is_largest[j] = cells[j].label >= 0 && rows.element[cells[j].label][j] == largest[j];
  }
  const auto each_vector = [&](auto change) {
    for (int64_t k = 0; k < V; k++)
      for (int j = 0; j < kRowLanes; j += L::kWidth) change(rows.element[k] + j, j);
  };
  each_vector([&](acc_t* x, int j) { L::store(x, exponential(L::load(x), L::load(largest + j))); });
  for (int j = 0; j < n; j++) {
    const Cell<acc_t>& c = cells[j];
    blank[j] = c.arc_gradient(rows.element[c.blank][j], blank_is_largest[j], c.blank_posterior, c.label_posterior);
    if (c.label >= 0)
      label[j] = c.arc_gradient(rows.element[c.label][j], label_is_largest[j], c.label_posterior, c.blank_posterior);
  }
  each_vector([&](acc_t* x, int j) { L::store(x, L::load(x) * L::load(weight + j)); });
  for (int j = 0; j < n; j++) {
    if (weight[j] == 0) continue;
    rows.element[cells[j].blank][j] = blank[j];
    if (cells[j].label >= 0) rows.element[cells[j].label][j] = label[j];
  }
  each_vector([&](acc_t* x, int j) { L::store(x, finished(L::load(x), L::load(bound + j), L::load(upstream + j))); });
  for (int j = 0; j < n; j++)
    for (int64_t k = 0; k < V; k++) out_at(j)[k] = store<scalar_t>(rows.element[k][j]);
}

// kStream is for logits in float, on lanes of float.
template <bool kStream, typename Real, typename scalar_t>
void score_backward_rows(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const acc_t* softmax = static_cast<const acc_t*>(p.softmax);
  const bool logits = p.normalizer == Normalizer::kSoftmax;
  const bool short_rows = logits && batch.V < kRowLanes;
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row_of_start) {
    const int64_t U = batch.label_lengths[b], end_of_cells = std::min(end, cells_in_frame(batch, b, t));
    const PosteriorPlanes<acc_t> posteriors = posteriors_of<acc_t>(p.posteriors, layout, b);
    const auto row_at = [&](int64_t u) { return static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u); };
    const auto out_at = [&](int64_t u) { return static_cast<scalar_t*>(p.grad_x.data) + p.grad_x.row_offset(b, t, u); };
    const auto cell_at = [&](int64_t u) {
      const int64_t slot = layout.slot(batch.topology.front(t, u), u), r = row_of_start + u - start;
      Cell<acc_t> cell = {};
      cell.blank = static_cast<int32_t>(batch.blank), cell.blank_posterior = posteriors.blank[slot];
      cell.label = -1;
      if (u < U) {
        cell.label = static_cast<int32_t>(batch.labels[b * (batch.U1 - 1) + u]);
        cell.label_posterior = posteriors.label[slot];
      }
      if (logits) cell.largest = softmax[r], cell.rest = softmax[batch.rows() + r];
      cell.weight = (cell.blank_posterior + cell.label_posterior) / (1 + cell.rest);
      cell.bound = static_cast<acc_t>(p.clamp), cell.upstream = static_cast<acc_t>(p.grad_loss.at(b));
      return cell;
    };
    int64_t u = start;
    for (; short_rows && u < end_of_cells; u += kRowLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kRowLanes, end_of_cells - u));
      Cell<acc_t> cells[kRowLanes];
      for (int j = 0; j < n; j++) cells[j] = cell_at(u + j);
      gradient_short_rows<Real>([&](int j) { return row_at(u + j); }, [&](int j) { return out_at(u + j); }, n, batch.V,
                                cells);
    }
    for (; u < end_of_cells; u++) {
      const Cell<acc_t> cell = cell_at(u);
      scalar_t* out = out_at(u);
      if (logits && cell.weight != 0) {
        gradient_row<kStream, Real>(row_at(u), out, batch.V, cell);
        continue;
      }
      std::fill_n(out, batch.V, store<scalar_t>(acc_t(0) * cell.weight));  // 0, or NaN
      if (cell.weight == 0) continue;
      out[cell.blank] = store<scalar_t>(finished(-cell.blank_posterior, cell.bound, cell.upstream));
      if (u < U) out[cell.label] = store<scalar_t>(finished(-cell.label_posterior, cell.bound, cell.upstream));
    }
    for (u = std::max(start, end_of_cells); u < end; u++)  // padding
      std::fill_n(out_at(u), batch.V, store<scalar_t>(acc_t(0)));
  });
#if defined(__x86_64__)
  if (kStream) _mm_sfence();
#endif
}

template <typename Real>
void score_backward_of(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if constexpr (std::is_same_v<Real, double> || !std::is_same_v<scalar_t, double>) {
      constexpr bool kCanStream = std::is_same_v<scalar_t, float> && !std::is_same_v<Real, double>;
      // In place the line is in the cache already.
      const bool stream =
          p.normalizer == Normalizer::kSoftmax && p.grad_x.data != p.x.data && p.batch.rows() * p.batch.V > kStreamFrom;
      kCanStream&& stream ? score_backward_rows<kCanStream, Real, scalar_t>(p, first, last)
                          : score_backward_rows<false, Real, scalar_t>(p, first, last);
    }
  });
}

void float_score_backward(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  score_backward_of<Floats>(p, first, last);
}
