// score: a V-wide row becomes the values of the two arcs that leave its cell, or their scores (README, eq. 8, 11).
#pragma once

#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"
#include "rows.cuh"

namespace rnnt::cuda {

// The last front has no cells; its arcs are made zero, for the lattice to read where there are none.
__device__ inline int64_t last_slot(const Batch& batch, int64_t u) {
  return batch.layout().slot(batch.layout().fronts - 1, u);
}

// The value of the arc of class `label`, of its logit by value_of; NaN without one to be trusted.
template <typename acc_t, typename scalar_t, typename ValueOf>
__device__ Value<acc_t> arc_value(const scalar_t* row, int label, ValueOf value_of) {
  if (label == kNoLabel) return zero<acc_t>();
  if (label == kBadLabel) return {NAN, 0};
  return value_of(load(row[label]));
}

// A block's rows of logits.
template <typename scalar_t>
__device__ void score_rows(const ScoreParams& p, const RowThread& at) {
  using acc_t = acc_of<scalar_t>;
  constexpr int kSize = Piece<scalar_t>::kSize;
  const Batch& batch = p.batch;
  const int V = static_cast<int>(batch.V), excluded = static_cast<int>(p.excluded());
  const Utterance utterance = utterance_of(batch, at.b);
  const bool is_cell = at.exists && utterance.has(at.t, at.u);
  const scalar_t* row = at.template row_of<scalar_t>(batch, p.x);

  RunningSum<acc_t> sum = RunningSum<acc_t>::nothing();
  if (is_cell) {
    at.template each_chunk<scalar_t>(0, V, [&](int k, int step) {
      Pieces<scalar_t> pieces;
      load_pieces(pieces, row, k, step, V, store<scalar_t>(acc_t(-INFINITY)), excluded);
      acc_t largest = sum.largest;
#pragma unroll
      for (const auto& piece : pieces)
#pragma unroll
        for (int j = 0; j < kSize; j++) largest = larger_of(largest, piece.at(j));
      sum.raise(largest);
      const acc_t reference = sum.reference();
#pragma unroll
      for (const auto& piece : pieces)
#pragma unroll
        for (int j = 0; j < kSize; j++) sum.add(piece.at(j), reference);
    });
  }
  const Softmax<acc_t> softmax = whole_row(sum, at.lanes).softmax();

  if (!at.exists || at.lane > 1) return;
  // The first lane takes the blank and the maximum, the second the label and the rest.
  const bool first = at.lane == 0;
  if (p.softmax) {
    acc_t* out = static_cast<acc_t*>(p.softmax) + (first ? 0 : batch.rows());
    out[at.row] = !is_cell ? acc_t(0) : first ? softmax.maximum : softmax.rest;
  }
  if (p.scores) return;
  Arcs<acc_t>* arcs = slots_of<Arcs, acc_t>(p.arcs, at.b);
  const auto set = [&](int64_t slot, Value<acc_t> value) { (first ? arcs[slot].blank : arcs[slot].label) = value; };
  if (at.t == 0) set(last_slot(batch, at.u), zero<acc_t>());
  if (!is_cell) return;
  const int label = first ? static_cast<int>(batch.blank) : label_of(batch, at.b, at.u, utterance.U);
  set(at.slot(batch), arc_value<acc_t>(row, label, [&](acc_t x) {
        if (p.normalizer != Normalizer::kHat) return softmax.value(x);
        const Softmax<acc_t> choice = blank_or_label(load(row[batch.blank]));
        return first ? choice.value(x) : label_value(choice, softmax, x);
      }));
}

// The scores of a cell's arcs, when the softmax of its row is known.
template <typename scalar_t>
__device__ void cell_scores(const ScoreParams& p, const CellThread& at) {
  using acc_t = acc_of<scalar_t>;
  const int64_t plane = p.batch.rows();
  acc_t blank = at.of_nobody ? acc_t(NAN) : acc_t(0), label = blank;  // the lattice sees lengths alone, not packed rows
  if (at.is_cell) {
    const scalar_t* row = static_cast<const scalar_t*>(p.x.data) + p.x.row_offset(p.batch, at.b, at.t, at.u);
    Softmax<acc_t> softmax = {0, 0};
    if (p.softmax) {
      const acc_t* kept = static_cast<const acc_t*>(p.softmax) + at.cell;
      softmax = {kept[0], kept[plane]};
    }
    const acc_t x = load(row[p.batch.blank]);
    const bool is_hat = p.normalizer == Normalizer::kHat;
    const Softmax<acc_t> choice = is_hat ? blank_or_label(x) : softmax;
    blank = choice.score(x);
    if (at.label == kBadLabel) label = NAN;
    if (at.label >= 0) {
      const acc_t y = load(row[at.label]);
      label = is_hat ? label_score(choice, softmax, y) : softmax.score(y);
    }
  }
  acc_t* const out = static_cast<acc_t*>(p.scores) + at.cell;
  out[0] = blank, out[plane] = label;
}

// A row of log-probabilities, by one thread.
template <typename scalar_t, typename acc_t>
__device__ void score_row(const ScoreParams& p, const RowThread& at) {
  const Batch& batch = p.batch;
  const Utterance utterance = utterance_of(batch, at.b);
  Arcs<acc_t>* arcs = slots_of<Arcs, acc_t>(p.arcs, at.b);
  if (!at.exists) return;
  if (at.t == 0) arcs[last_slot(batch, at.u)] = {zero<acc_t>(), zero<acc_t>()};
  if (!utterance.has(at.t, at.u)) return;
  const scalar_t* row = at.template row_of<scalar_t>(batch, p.x);
  const auto value_of = [](acc_t x) { return Softmax<acc_t>{0, 0}.value(x); };
  arcs[at.slot(batch)] = {arc_value<acc_t>(row, static_cast<int>(batch.blank), value_of),
                          arc_value<acc_t>(row, label_of(batch, at.b, at.u, utterance.U), value_of)};
}

}  // namespace rnnt::cuda
