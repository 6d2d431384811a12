// What a kernel is told: one struct per operation. Shapes stand behind the pointers; U1 = U + 1, S = slots of the
// front layout. acc_t is float, or double where `wide` says so.
#pragma once

#include "core/topology.h"
#include "dtype.h"

namespace rnnt {

struct Batch {
  int64_t B, T, U1, V;
  const int64_t* labels;         // [B, U]
  const int64_t* input_lengths;  // [B], within [1, T]
  const int64_t* label_lengths;  // [B], within [0, U]
  int64_t blank;
  Topology topology;

  FrontLayout layout() const { return front_layout(topology, T, U1); }
  int64_t rows() const { return B * T * U1; }
};

// V-wide rows; elements of a row are contiguous, rows lie anywhere.
struct Rows {
  void* data;
  Dtype dtype;
  int64_t stride_b, stride_t, stride_u;

  int64_t row_offset(int64_t b, int64_t t, int64_t u) const { return b * stride_b + t * stride_t + u * stride_u; }
};

// Arc values or posteriors: planes of S = slots of the front layout for each utterance, [4, S] or [2, S].
struct Planes {
  void* data;        // acc_t
  int64_t stride_b;  // from one utterance's planes to the next's; 0 where one after the other uses the same
  bool wide;
};

enum class Normalizer {
  kNone,     // a row holds log-probabilities
  kSoftmax,  // a row holds logits
};

struct ScoreParams {
  Batch batch;
  Rows x;  // [B, T, U1, V]
  Normalizer normalizer;
  void* softmax;  // out: acc_t [2, B, T, U1], maximum and rest; may be null
  Planes arcs;    // out: mantissa and exponent of blank, mantissa and exponent of label
};

struct LatticeParams {
  Batch batch;
  Planes arcs;
  double* loss;  // out: [B]
  void* shares;  // out: acc_t [B, S], as merge.h keeps them; may be null
};

struct AlphaBetaParams {
  Batch batch;
  Planes arcs;    // wide
  double* loss;   // out: [B]
  double* alpha;  // out: [B, T, U1]
  double* beta;   // out: [B, T, U1]
};

struct PosteriorParams {
  Batch batch;
  const double* loss;  // [B]
  const void* shares;  // acc_t [B, S]
  Planes posteriors;   // out: of blank, of label
};

struct PosteriorFromAlphaBetaParams {
  Batch batch;
  Rows x;               // [B, T, U1, V], log-probabilities
  const double* alpha;  // [B, T, U1]
  const double* beta;   // [B, T, U1]
  Planes posteriors;    // out: of blank, of label; wide
};

struct ScoreBackwardParams {
  Batch batch;
  Rows x;  // [B, T, U1, V]; not read without a normalizer
  Normalizer normalizer;
  const void* softmax;  // acc_t [2, B, T, U1]
  Planes posteriors;
  const double* grad_loss;  // [B]
  double clamp;             // bound of d loss / d x before grad_loss; infinity: none
  Rows grad_x;              // out: [B, T, U1, V], of x's dtype; may be x
};

}  // namespace rnnt
