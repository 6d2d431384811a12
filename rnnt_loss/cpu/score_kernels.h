// score, for one instruction set (see each_isa.h): a V-wide row becomes the values of the two arcs that leave its cell,
// or their scores (README, eq. 8, 11).

#include "rows.h"

// kHat: a branch within costs the softmax of short rows up to a tenth.
template <bool kHat, typename Real, typename scalar_t>
void score_rows(const ScoreParams& p, int64_t first, int64_t last) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FrontLayout layout = batch.layout();
  acc_t *softmax = static_cast<acc_t*>(p.softmax), *scores = static_cast<acc_t*>(p.scores);
  // A row, and the next one, with -inf for HAT's blank: a sum of the others need not ask where that is.
  std::vector<scalar_t> copies(kHat ? 2 * batch.V : 0);
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row_of_start) {
    const int64_t cells = cells_in_frame(batch, b, t), U = batch.label_lengths[b];
    const ArcPlanes<acc_t> arcs = arcs_of<acc_t>(p.arcs, layout, b);
    const int64_t in_next_frame = p.x.row_offset(batch, b, t + 1, 0) - p.x.row_offset(batch, b, t, 0);
    // Arcs of up to kRowLanes cells become values together.
    for (int64_t u = start; u < std::min(end, cells); u += kRowLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kRowLanes, std::min(end, cells) - u));
      acc_t largest[kRowLanes] = {}, rest[kRowLanes] = {}, blank[kRowLanes] = {}, label[kRowLanes] = {};
      const auto row_at = [&](int j) {
        return static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(batch, b, t, u + j);
      };
      const auto copy_at = [&](int j) {
        scalar_t* copy = copies.data() + j % 2 * batch.V;
        const scalar_t* row = row_at(j);
        const int64_t k = for_each_block<Real>(0, batch.V, [&](auto lanes, int64_t k) RNNT_INLINE {
          prefetch_ahead<decltype(lanes)>(row + k);  // those who read the copy fetch what is behind that
          std::copy_n(row + k, Lanes<decltype(lanes)>::kWidth, copy + k);
        });
        std::copy_n(row + k, batch.V - k, copy + k);
        copy[batch.blank] = store<scalar_t>(acc_t(-INFINITY));
        return copy;
      };
      const auto logits_at = std::get<kHat>(std::tuple(row_at, copy_at));
      if (p.normalizer != Normalizer::kNone) {
        if (batch.V < kRowLanes) {
          short_rows_softmax<Real>(logits_at, n, batch.V, largest, rest);
        } else {
          const scalar_t* next_row = logits_at(0);
          auto next = row_largest<Real>(next_row, batch.V);
          for (int j = 0; j < n; j++) {  // a row's sum needs its maximum: meanwhile, the next one's is found
            const auto own = next;
            const scalar_t* row = next_row;
            if (j + 1 < n) next_row = logits_at(j + 1), next = row_largest<Real>(next_row, batch.V);
            largest[j] = own.value;
            rest[j] = row_rest<Real>(row, batch.V, own);
          }
        }
      }
      if (softmax) {
        std::copy_n(largest, n, softmax + row_of_start + u - start);
        std::copy_n(rest, n, softmax + batch.rows() + row_of_start + u - start);
      }
      for (int j = 0; j < n; j++) {
        const int64_t label_class = u + j < U ? batch.labels[b * (batch.U1 - 1) + u + j] : batch.blank;
        blank[j] = load(row_at(j)[batch.blank]);
        if (u + j < U) label[j] = load(row_at(j)[label_class]);
        if (p.normalizer != Normalizer::kNone) continue;
        const scalar_t* next = row_at(j) + in_next_frame;  // nothing else fetches it
        __builtin_prefetch(next + batch.blank), __builtin_prefetch(next + label_class);
      }
      acc_t* tail = static_cast<acc_t*>(p.tail.data) + (row_of_start + u - start) * p.tail.columns;
      for (int j = 0; j < n; j++)
        for (int64_t k = 0; k < p.tail.columns; k++) *tail++ = load(row_at(j)[batch.V + k]);
      if (scores) {
        using X = Block<Real>;
        using L = Lanes<X>;
        const Softmax<X> row = {L::load(largest), L::load(rest)};
        const X x = L::load(blank), y = L::load(label);
        const Softmax<X> choice = kHat ? blank_or_label(x) : row;
        acc_t* const of_blank = scores + row_of_start + u - start;
        acc_t* const of_label = of_blank + batch.rows();
        store_first(of_blank, n, choice.score(x));
        store_first(of_label, n, kHat ? label_score(choice, row, y) : row.score(y));
        if (u + n > U) of_label[U - u] = 0;
        continue;
      }
      acc_t values[4][kRowLanes];
      for (int j = 0; j < kRowLanes; j += Lanes<Real>::kWidth) {
        using L = Lanes<Real>;
        const Softmax<Real> row = {L::load(largest + j), L::load(rest + j)};
        const Real x = L::load(blank + j), y = L::load(label + j);
        const Softmax<Real> choice = kHat ? blank_or_label(x) : row;
        const Value<Real> by_blank = choice.value(x), by_label = kHat ? label_value(choice, row, y) : row.value(y);
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
    for (int64_t u = std::max(start, cells); u < end; u++) {  // padding
      const int64_t row = row_of_start + u - start;
      if (softmax) softmax[row] = softmax[batch.rows() + row] = 0;
      if (scores) scores[row] = scores[batch.rows() + row] = 0;
      std::fill_n(static_cast<acc_t*>(p.tail.data) + row * p.tail.columns, p.tail.columns, acc_t(0));
    }
  });
}

template <typename Real>
void score_of(const ScoreParams& p, int64_t first, int64_t last) {
  const FlushDenormals flush;
  dispatch(p.x.dtype, [&](auto scalar) {
    using scalar_t = decltype(scalar);
    if constexpr (std::is_same_v<Real, double> || !std::is_same_v<scalar_t, double>)
      p.normalizer == Normalizer::kHat ? score_rows<true, Real, scalar_t>(p, first, last)
                                       : score_rows<false, Real, scalar_t>(p, first, last);
  });
}

void float_score(const ScoreParams& p, int64_t first, int64_t last) { score_of<Floats>(p, first, last); }
