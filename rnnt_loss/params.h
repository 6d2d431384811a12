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

// Arc values of all utterances, each in its own front layout.
struct Arcs {
  void* planes;  // acc_t [4, B, S]: mantissa and exponent of blank, mantissa and exponent of label
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
  void* softmax;  // out: acc_t [2, B, T, U1], maximum and sum; null without a normalizer
  Arcs arcs;      // out
};

struct LatticeParams {
  Batch batch;
  Arcs arcs;
  double* loss;  // out: [B]
  void* shares;  // out: acc_t [B, S], share of the blank arrival; may be null
};

struct AlphaBetaParams {
  Batch batch;
  Arcs arcs;      // wide
  double* loss;   // out: [B]
  double* alpha;  // out: [B, T, U1]
  double* beta;   // out: [B, T, U1]
};

struct PosteriorParams {
  Batch batch;
  const double* loss;  // [B]
  const void* shares;  // acc_t [B, S]
  void* posteriors;    // out: acc_t [2, B, S], blank and label
  bool wide;
};

struct PosteriorFromAlphaBetaParams {
  Batch batch;
  Rows x;               // [B, T, U1, V], log-probabilities
  const double* alpha;  // [B, T, U1]
  const double* beta;   // [B, T, U1]
  double* posteriors;   // out: [2, B, S]
};

struct ScoreBackwardParams {
  Batch batch;
  Rows x;  // [B, T, U1, V]; not read without a normalizer
  Normalizer normalizer;
  const void* softmax;     // acc_t [2, B, T, U1]
  const void* posteriors;  // acc_t [2, B, S]
  bool wide;
  const double* grad_loss;  // [B]
  double clamp;             // bound of d loss / d x before grad_loss; infinity: none
  void* grad_x;             // out: [B, T, U1, V], contiguous, of x's dtype
};

}  // namespace rnnt
