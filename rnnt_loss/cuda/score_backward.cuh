// score_backward: the posteriors of a cell's arcs become the gradient of its row (README, eq. 10, 12, 13). Every row of
// the gradient is written, padding with zeros.
#pragma once

#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"
#include "rows.cuh"

namespace rnnt::cuda {

// A row of the gradient, and what its cell says of it.
template <typename scalar_t, typename acc_t>
struct GradientRow {
  RowThread at;
  scalar_t* out;
  int misaligned;     // elements from the last multiple of 16 bytes to the row
  bool is_untouched;  // padding, or a cell that no path enters: 0 whatever the upstream gradient is
  bool is_nan;        // of an utterance whose lengths say nothing
  Cell<acc_t> cell;

  __device__ GradientRow(const ScoreBackwardParams& p, const RowThread& at, const Utterance& utterance)
      : at(at), is_nan(utterance.T == 0), cell{} {
    const Batch& batch = p.batch;
    out = at.template row_of<scalar_t>(batch, p.grad_x);
    misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(out) % 16 / sizeof(scalar_t));
    if (utterance.has(at.t, at.u)) {
      Posteriors<acc_t> posteriors = {};
      if (const acc_t* const of_scores = static_cast<const acc_t*>(p.of_scores)) {
        posteriors.blank = of_scores[at.row];
        if (at.u < utterance.U) posteriors.label = of_scores[batch.rows() + at.row];
      } else {
        posteriors = slots_of<Posteriors, acc_t>(p.posteriors, at.b)[at.slot(batch)];
      }
      cell.blank = static_cast<int>(batch.blank), cell.label = label_of(batch, at.b, at.u, utterance.U);
      cell.blank_posterior = posteriors.blank;
      cell.label_posterior = static_cast<acc_t>(p.label_weight) * posteriors.label;
      cell.occupancy = cell.blank_posterior + cell.label_posterior;
      cell.bound = static_cast<acc_t>(p.clamp), cell.upstream = static_cast<acc_t>(p.grad_loss.at(at.b));
    }
    is_untouched = cell.blank_posterior == 0 && cell.label_posterior == 0 && !is_nan;
  }

  // Whether this thread is the one that writes class k.
  __device__ bool owns(int k) const {
    const unsigned piece = static_cast<unsigned>(k + misaligned) / Piece<scalar_t>::kSize;
    return k >= 0 && static_cast<int>(piece % static_cast<unsigned>(at.lanes)) == at.lane;
  }

  // In pieces that are aligned where they are written.
  template <typename Visit>
  __device__ void each_chunk(int64_t V, Visit visit) const {
    at.template each_chunk<scalar_t>(-misaligned, static_cast<int>(V), visit);
  }

  __device__ void fill(int64_t V) const {
    typename Piece<scalar_t>::acc_t x[Piece<scalar_t>::kSize];
#pragma unroll
    for (auto& value : x) value = is_nan || cell.occupancy != cell.occupancy ? NAN : 0;
    Pieces<scalar_t> pieces;
#pragma unroll
    for (auto& piece : pieces) piece.set(x);
    each_chunk(V, [&](int k, int step) { store_pieces(out, k, step, static_cast<int>(V), pieces); });
  }
};

// A row from logits. x may be the gradient: a thread reads what it will write, and nothing else.
template <typename scalar_t>
__device__ void logits_gradient(const ScoreBackwardParams& p, const RowThread& at, const Utterance& utterance) {
  using acc_t = acc_of<scalar_t>;
  const Batch& batch = p.batch;
  GradientRow<scalar_t, acc_t> gradient(p, at, utterance);
  const Cell<acc_t>& cell = gradient.cell;
  const bool is_read = !gradient.is_untouched && !gradient.is_nan, is_hat = p.normalizer == Normalizer::kHat;
  // HAT's blank has no part in the softmax: only the label's posterior comes to the other classes.
  const bool has_others = is_read && !(is_hat && cell.label_posterior == 0);
  Softmax<acc_t> softmax = {};
  if (has_others) {
    const acc_t* kept = static_cast<const acc_t*>(p.softmax);
    softmax = {kept[at.row], kept[batch.rows() + at.row]};
  }

  // The arcs' classes, before their thread overwrites them.
  const scalar_t* row = at.template row_of<scalar_t>(batch, p.x);
  const bool owns_blank = is_read && gradient.owns(cell.blank), owns_label = has_others && gradient.owns(cell.label);
  const auto of_arc = [&](acc_t x, Softmax<acc_t> among, acc_t own, acc_t other) {
    const acc_t g = arc_gradient(exponential(x, among.maximum), x == among.maximum, among.rest, own, other);
    return store<scalar_t>(finished(g, cell.bound, cell.upstream));
  };
  const acc_t other = is_hat ? acc_t(0) : cell.blank_posterior;
  scalar_t blank = {}, label = {};
  if (owns_blank) {
    const acc_t x = load(row[cell.blank]);
    blank = of_arc(x, is_hat ? blank_or_label(x) : softmax, cell.blank_posterior, cell.label_posterior);
  }
  if (owns_label) label = of_arc(load(row[cell.label]), softmax, cell.label_posterior, other);
  if (!has_others) {
    gradient.fill(batch.V);
    if (owns_blank) gradient.out[cell.blank] = blank;
    return;
  }

  const acc_t weight = (cell.label_posterior + other) / (1 + softmax.rest);
  const int V = static_cast<int>(batch.V);
  const auto write = [&](auto gradient_of) {
    gradient.each_chunk(V, [&](int k, int step) {
      Pieces<scalar_t> pieces;
      load_pieces(pieces, row, k, step, V, scalar_t{}, -1);
#pragma unroll
      for (auto& piece : pieces) {
        acc_t g[Piece<scalar_t>::kSize];
#pragma unroll
        for (int j = 0; j < Piece<scalar_t>::kSize; j++) g[j] = gradient_of(exponential(piece.at(j), softmax.maximum));
        piece.set(g);
      }
      store_pieces(gradient.out, k, step, V, pieces);
    });
  };
  if (cell.bound == acc_t(INFINITY)) {
    const acc_t factor = weight * cell.upstream;
    write([&](acc_t term) { return term * factor; });
  } else {
    write([&](acc_t term) { return finished(term * weight, cell.bound, cell.upstream); });
  }
  if (owns_blank) gradient.out[cell.blank] = blank;
  if (owns_label) gradient.out[cell.label] = label;
}

// A row from log-probabilities, which are not read: zeros, and two values a cell.
template <typename scalar_t, typename acc_t>
__device__ void log_probs_gradient(const ScoreBackwardParams& p, const RowThread& at, const Utterance& utterance) {
  const GradientRow<scalar_t, acc_t> gradient(p, at, utterance);
  gradient.fill(p.batch.V);
  if (gradient.is_untouched || gradient.is_nan) return;
  const Cell<acc_t>& cell = gradient.cell;
  const auto set = [&](int k, acc_t posterior) {
    if (gradient.owns(k)) gradient.out[k] = store<scalar_t>(finished(-posterior, cell.bound, cell.upstream));
  };
  set(cell.blank, cell.blank_posterior);
  set(cell.label, cell.label_posterior);
}

}  // namespace rnnt::cuda
