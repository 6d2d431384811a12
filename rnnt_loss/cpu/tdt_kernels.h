// Scores of arcs with durations and their gradients, for one instruction set (see each_isa.h): kRowLanes cells at a
// time, one in each lane.

#include "rows.h"

// work(logits of the durations, first row, how many) for kRowLanes rows at a time, whatever frame they are of; then
// clear(row) for those of them that are padding. What is in the lanes of padding, and of rows that are too few, does
// not matter.
template <typename Real, typename Work, typename Clear>
RNNT_HD void each_block_of_rows(const TdtParams& p, int64_t first, int64_t last, Work work, Clear clear) {
  using acc_t = typename Lanes<Real>::Scalar;
  const Batch& batch = p.batch;
  const FlushDenormals flush;
  ShortRows<acc_t> logits = {};
  int filled = 0;
  bool is_cell[kRowLanes];
  for_each_run(batch, first, last, [&](int64_t b, int64_t t, int64_t start, int64_t end, int64_t row) {
    const int64_t cells = cells_in_frame(batch, b, t);
    const int64_t in_next_frame = p.logits.row_offset(batch, b, t + 1, 0) - p.logits.row_offset(batch, b, t, 0);
    for (int64_t u = start; u < end; u++, row++) {
      is_cell[filled] = u < cells;
      if (u < cells) {
        const acc_t* of_cell = static_cast<const acc_t*>(p.logits.data) + p.logits.row_offset(batch, b, t, u);
        logits.load_row(filled, of_cell, batch.V);
        __builtin_prefetch(of_cell + in_next_frame);  // they may lie behind long rows of tokens
      }
      if (++filled < kRowLanes && row + 1 < last) continue;
      work(logits, row + 1 - filled, filled);
      for (int j = 0; j < filled; j++)
        if (!is_cell[j]) clear(row + 1 - filled + j);
      filled = 0;
    }
  });
}

template <typename Real>
void tdt_scores_rows(const TdtParams& p, int64_t first, int64_t last) {
  using X = Block<Real>;
  using L = Lanes<X>;
  using acc_t = typename L::Scalar;
  const acc_t* const tokens = static_cast<const acc_t*>(p.tokens);
  acc_t* const arcs = static_cast<acc_t*>(p.arcs);
  const int64_t plane = p.batch.rows();
  each_block_of_rows<Real>(
      p, first, last,
      [&](const ShortRows<acc_t>& rows, int64_t row, int n) RNNT_INLINE {
        const X blank = load_first<X>(tokens + row, n), label = load_first<X>(tokens + plane + row, n);
        const auto logit = [&](int d) RNNT_INLINE { return L::load(rows.element[d]); };
        tdt_scores_of<X>(p, blank, label, logit,
                         [&](int k, const X& score) RNNT_INLINE { store_first(arcs + k * plane + row, n, score); });
      },
      [&](int64_t row) {
        for (int k = 0; k < p.durations.arcs(); k++) arcs[k * plane + row] = 0;
      });
}

template <typename Real>
void tdt_scores_backward_rows(const TdtParams& p, int64_t first, int64_t last) {
  using X = Block<Real>;
  using L = Lanes<X>;
  using acc_t = typename L::Scalar;
  const acc_t* const arcs = static_cast<const acc_t*>(p.arcs);
  acc_t *const grad_tokens = static_cast<acc_t*>(p.grad_tokens), *const grad_logits =
                                                                     static_cast<acc_t*>(p.grad_logits);
  const int64_t plane = p.batch.rows(), D = p.durations.count;
  each_block_of_rows<Real>(
      p, first, last,
      [&](const ShortRows<acc_t>& rows, int64_t row, int n) RNNT_INLINE {
        const auto logit = [&](int d) RNNT_INLINE { return L::load(rows.element[d]); };
        const auto grad = [&](int k) RNNT_INLINE { return load_first<X>(arcs + k * plane + row, n); };
        const auto keep_tokens = [&](const X& blank, const X& label) RNNT_INLINE {
          store_first(grad_tokens + row, n, blank);
          store_first(grad_tokens + plane + row, n, label);
        };
        alignas(64) acc_t out[kMostDurations][kRowLanes];
        tdt_gradients_of<X>(p, logit, grad, keep_tokens, [&](int d, const X& g) RNNT_INLINE { L::store(out[d], g); });
        for (int j = 0; j < n; j++)
          for (int64_t d = 0; d < D; d++) grad_logits[(row + j) * D + d] = out[d][j];
      },
      [&](int64_t row) {
        grad_tokens[row] = grad_tokens[plane + row] = 0;
        for (int64_t d = 0; d < D; d++) grad_logits[row * D + d] = 0;
      });
}

void float_tdt_scores(const TdtParams& p, int64_t first, int64_t last) { tdt_scores_rows<Floats>(p, first, last); }
void float_tdt_scores_backward(const TdtParams& p, int64_t first, int64_t last) {
  tdt_scores_backward_rows<Floats>(p, first, last);
}
