// The ops' work on the CPU: an utterance is finished, rows and lattice, while it is in the cache, on torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <memory>

#include "../rnnt_loss/backend.h"
#include "call.h"

namespace rnnt {

// One utterance, its rows spread over threads or, where its caller is one of many threads, on this one.
class UtteranceOnCpu {
 public:
  UtteranceOnCpu(const Batch& batch, int64_t b, bool spread_rows) : batch_(batch), b_(b), spread_rows_(spread_rows) {}

  void loss(const ScoreParams& score, const LatticeParams& lattice) const {
    rows(cpu::score, score);
    cpu::lattice(lattice, b_, b_ + 1);
  }
  void gradient(const PosteriorParams& posteriors, const ScoreBackwardParams& rows_of_gradient) const {
    cpu::posteriors(posteriors, b_, b_ + 1);
    rows(cpu::score_backward, rows_of_gradient);
  }
  void alpha_beta(const ScoreParams& score, const AlphaBetaParams& lattice) const {
    rows(cpu::score, score);
    cpu::alpha_beta(lattice, b_, b_ + 1);
  }
  void gradient_from_alpha_beta(const PosteriorFromAlphaBetaParams& posteriors,
                                const ScoreBackwardParams& rows_of_gradient) const {
    cpu::posteriors_from_alpha_beta(posteriors, b_, b_ + 1);
    rows(cpu::score_backward, rows_of_gradient);
  }

  void scores(const ScoreParams& score) const { rows(cpu::score, score); }
  void gradient_from_scores(const ScoreBackwardParams& rows_of_gradient) const {
    rows(cpu::score_backward, rows_of_gradient);
  }

  static constexpr int64_t kGrain = 65536;  // elements: what a thread is worth waking for

 private:
  template <typename Params>
  void rows(void (*function)(const Params&, int64_t, int64_t), const Params& p) const {
    const int64_t rows = batch_.T * batch_.U1, first = b_ * rows, grain = std::max<int64_t>(1, kGrain / batch_.V);
    if (!spread_rows_) return function(p, first, first + rows);
    torch::stable::parallel_for(first, first + rows, grain, [&](int64_t r, int64_t end) { function(p, r, end); });
  }

  const Batch& batch_;
  int64_t b_;
  bool spread_rows_;
};

struct OnCpu {
  static constexpr Side kSide = Side::kHost;

  // Calls work(part, planes) for parts that make up the batch. planes: memory for `count` numbers a slot, the work's
  // own. Many utterances go to threads whole; few, one after the other with their rows on all threads.
  template <typename Work>
  static void each_part(const Call& call, bool wide, int count, Work work) {
    const Batch& batch = call.batch;
    const int64_t threads = torch::stable::get_num_threads(), elements = count * call.slots();
    const bool spread = batch.B >= 2 * threads;
    const auto run = [&](int64_t first, int64_t last) {
      const std::unique_ptr<double[]> memory(new double[wide ? elements : (elements + 1) / 2]);  // not initialized
      for (int64_t b = first; b < last; b++) work(UtteranceOnCpu(batch, b, !spread), Planes{memory.get(), 0, wide});
    };
    if (!spread) return run(0, batch.B);
    const int64_t grain =
        std::max<int64_t>(1, UtteranceOnCpu::kGrain / std::max<int64_t>(1, batch.T * batch.U1 * batch.V));
    torch::stable::parallel_for(0, batch.B, grain, run);
  }

  static void tdt_scores(const Tensor&, const TdtParams& p) { each_row(cpu::tdt_scores, p); }
  static void tdt_scores_backward(const Tensor&, const TdtParams& p) { each_row(cpu::tdt_scores_backward, p); }
  static void arc_lattice(const Tensor&, const ArcLatticeParams& p) {
    torch::stable::parallel_for(0, p.B, 1, [&](int64_t b, int64_t end) { cpu::arc_lattice(p, b, end); });
  }
  static void paths(const Tensor&, const PathParams& p) {
    torch::stable::parallel_for(0, p.lattice.B, 1, [&](int64_t b, int64_t end) { cpu::paths(p, b, end); });
  }

 private:
  static void each_row(void (*function)(const TdtParams&, int64_t, int64_t), const TdtParams& p) {
    constexpr int64_t kGrain = 2048;  // rows: what a thread is worth waking for
    torch::stable::parallel_for(0, p.batch.rows(), kGrain, [&](int64_t row, int64_t end) { function(p, row, end); });
  }
};

}  // namespace rnnt
