// The row functions over a range of rows: score turns a V-wide row into the values of the two arcs that leave its
// cell, score_backward turns their posteriors into the gradient of the row (README, eq. 8 and 10). A row's result
// depends on that row alone: its sum is taken in 16 lanes with a fixed order, whatever the vector width.
#include "../core/value.h"

#include <algorithm>

#include "../backend.h"
#include "cell.h"

namespace rnnt::cpu {
namespace {

constexpr int kRowLanes = 16;
constexpr int64_t kBlock = 64 * kRowLanes;  // elements summed in acc_t before the sum goes to double

template <typename acc_t, typename Combine>
acc_t fold(acc_t (&lanes)[kRowLanes], Combine combine) {
  for (int half = kRowLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] = combine(lanes[i], lanes[i + half]);
  return lanes[0];
}

// Calls step(lane, element) for every element of row[begin .. end).
template <typename scalar_t, typename Step>
inline __attribute__((always_inline)) void over_lanes(const scalar_t* row, int64_t begin, int64_t end, Step step) {
  int64_t k = begin;
  for (; k + kRowLanes <= end; k += kRowLanes)
    for (int i = 0; i < kRowLanes; i++) step(i, load(row[k + i]));
  for (int i = 0; k + i < end; i++) step(i, load(row[k + i]));
}

template <typename acc_t, typename scalar_t>
Softmax<acc_t> softmax_of(const scalar_t* row, int64_t V) {
  acc_t lanes[kRowLanes];
  std::fill_n(lanes, kRowLanes, acc_t(-INFINITY));
  over_lanes(row, 0, V, [&](int i, acc_t x) { lanes[i] = maximum(x, lanes[i]); });
  const acc_t max = fold(lanes, [](acc_t a, acc_t b) { return maximum(a, b); });
  double sum = 0;
  for (int64_t k = 0; k < V; k += kBlock) {
    std::fill_n(lanes, kRowLanes, acc_t(0));
    over_lanes(row, k, std::min(V, k + kBlock),
               [&](int i, acc_t x) { lanes[i] += Softmax<acc_t>::exponential(x, max); });
    sum += fold(lanes, [](acc_t a, acc_t b) { return a + b; });
  }
  return {max, static_cast<acc_t>(sum)};
}

template <typename scalar_t, typename acc_t>
void score_rows(const ScoreParams& p, int64_t first, int64_t last) {
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  acc_t* maxima = static_cast<acc_t*>(p.softmax);
  acc_t* sums = p.softmax ? maxima + batch.rows() : nullptr;
  for_each_row(batch, first, last, [&](int64_t b, int64_t t, int64_t u, int64_t r) {
    if (is_padding(batch, b, t, u)) {
      if (p.softmax) maxima[r] = sums[r] = 0;
      return;
    }
    const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u);
    Softmax<acc_t> softmax{0, 1};
    if (p.normalizer == Normalizer::kSoftmax) {
      softmax = softmax_of<acc_t>(row, batch.V);
      maxima[r] = softmax.maximum;
      sums[r] = softmax.sum;
    }
    const auto value_of = [&](int64_t k) { return value_from_nats<acc_t>(softmax.log_probability(load(row[k]))); };
    const ArcPlanes<acc_t> arcs(p.arcs, batch, b);
    const int64_t slot = layout.slot(batch.topology.front(t, u), u);
    const Value<acc_t> blank = value_of(batch.blank);
    arcs.blank_mantissa[slot] = blank.mantissa;
    arcs.blank_exponent[slot] = blank.exponent;
    if (u == batch.label_lengths[b]) return;
    const Value<acc_t> label = value_of(batch.labels[b * (batch.U1 - 1) + u]);
    arcs.label_mantissa[slot] = label.mantissa;
    arcs.label_exponent[slot] = label.exponent;
  });
}

template <typename scalar_t, typename acc_t>
void score_backward_rows(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  const acc_t* maxima = static_cast<const acc_t*>(p.softmax);
  const acc_t* sums = p.softmax ? maxima + batch.rows() : nullptr;
  const acc_t bound = static_cast<acc_t>(p.clamp);
  for_each_row(batch, first, last, [&](int64_t b, int64_t t, int64_t u, int64_t r) {
    scalar_t* out = static_cast<scalar_t*>(p.grad_x) + r * batch.V;
    const PosteriorPlanes<acc_t> posteriors(p.posteriors, batch, b);
    const int64_t slot = layout.slot(batch.topology.front(t, u), u);
    const bool padding = is_padding(batch, b, t, u);
    const acc_t blank = padding ? acc_t(0) : posteriors.blank[slot];
    const acc_t label = padding || u == batch.label_lengths[b] ? acc_t(0) : posteriors.label[slot];
    const acc_t occupancy = blank + label;
    if (p.normalizer == Normalizer::kNone || occupancy == 0)
      std::fill_n(out, batch.V, store<scalar_t>(acc_t(0) * occupancy));  // 0, or NaN all over a NaN utterance
    if (occupancy == 0) return;

    const acc_t upstream = static_cast<acc_t>(p.grad_loss[b]);
    const auto clamped = [&](acc_t g) {
      g = select(g > bound, bound, g);
      return store<scalar_t>(select(g < -bound, -bound, g) * upstream);
    };
    const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(b, t, u);
    const acc_t max = p.softmax ? maxima[r] : acc_t(0), weight = p.softmax ? occupancy / sums[r] : acc_t(0);
    const auto softmax = [&](int64_t k) { return weight * Softmax<acc_t>::exponential(load(row[k]), max); };
    if (p.softmax)
      for (int64_t k = 0; k < batch.V; k++) out[k] = clamped(softmax(k));
    const auto subtract = [&](int64_t k, acc_t posterior) {
      out[k] = clamped((p.softmax ? softmax(k) : acc_t(0)) - posterior);
    };
    subtract(batch.blank, blank);
    if (u < batch.label_lengths[b]) subtract(batch.labels[b * (batch.U1 - 1) + u], label);
  });
}

}  // namespace

void score(const ScoreParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    p.arcs.wide ? score_rows<scalar_t, double>(p, first, last) : score_rows<scalar_t, float>(p, first, last);
  });
}

void score_backward(const ScoreBackwardParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    p.wide ? score_backward_rows<scalar_t, double>(p, first, last)
           : score_backward_rows<scalar_t, float>(p, first, last);
  });
}

}  // namespace rnnt::cpu
