// What a kernel is told: one struct per operation. Shapes stand behind the pointers; U1 = U + 1, S = slots of the
// front layout. acc_t is float, or double where `wide` says so.
#pragma once

#include <cmath>

#include "core/topology.h"
#include "dtype.h"

namespace rnnt {

// Labels or lengths: int32, or int64 where `wide`.
struct Integers {
  const void* data;
  bool wide;

  RNNT_HD int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// Of an utterance of a packed batch, whose rows follow each other: utterance by utterance, frame by frame, label by
// label. Padding has no rows there.
struct PackedRows {
  int64_t first, in_frame;
};

struct Batch {
  int64_t B, T, U1, V;
  Integers labels;         // [B, U]
  Integers input_lengths;  // [B], within [1, T]; on a GPU anything, as labels may be
  Integers label_lengths;  // [B], within [0, U]; likewise
  int64_t blank;
  Topology topology;
  int64_t packed_rows = 0;  // that a packed x has; at most rows()
  // [B + 1] where x is packed, else null. Behind the last utterance `first` is packed_rows, or -1 if the lengths are
  // out of range or ask for more or fewer rows: then none is looked at.
  const PackedRows* packed = nullptr;

  RNNT_HD FrontLayout layout() const { return front_layout(topology, T, U1); }
  RNNT_HD int64_t rows() const { return B * T * U1; }  // padding included
};

// V-wide rows; elements of a row are contiguous, rows lie anywhere, or stride_u apart if the batch is packed.
struct Rows {
  void* data;
  Dtype dtype;
  int64_t stride_b, stride_t, stride_u;

  RNNT_HD int64_t row_offset(const Batch& batch, int64_t b, int64_t t, int64_t u) const {
    if (batch.packed) return (batch.packed[b].first + t * batch.packed[b].in_frame + u) * stride_u;
    return b * stride_b + t * stride_t + u * stride_u;
  }
};

// Arc values or posteriors: 4 or 2 numbers for each of the S = slots of the front layout of an utterance. A backend
// arranges them as it reads them: the CPU in planes [4, S] or [2, S], CUDA slot by slot.
struct Planes {
  void* data;        // acc_t
  int64_t stride_b;  // from one utterance's to the next's; 0 where one after the other uses the same
  bool wide;
};

// One number per utterance, float or double.
struct PerUtterance {
  void* data;  // [B]
  bool wide;

  RNNT_HD double at(int64_t b) const {
    return wide ? static_cast<const double*>(data)[b] : static_cast<const float*>(data)[b];
  }
  RNNT_HD void set(int64_t b, double value) const {
    if (wide)
      static_cast<double*>(data)[b] = value;
    else
      static_cast<float*>(data)[b] = static_cast<float>(value);
  }
};

enum class Normalizer {
  kNone,     // a row holds log-probabilities
  kSoftmax,  // a row holds logits
  kHat,      // likewise; the blank's is a choice of its own, the softmax is of the other classes
};

// Columns behind the V of a row that are no classes but an input of the variant, taken along while the row is at hand.
// In packed rows there are none.
constexpr int64_t kMostDurations = 16;
struct Tail {
  int64_t columns = 0;      // at most kMostDurations
  void* data = nullptr;     // acc_t [B, T, U1, columns], out: what they hold. Backward in: gradients of log Z
  double clamp = INFINITY;  // backward: as that of the row
};

struct ScoreParams {
  Batch batch;
  Rows x;  // [B, T, U1, V], or packed
  Normalizer normalizer;
  void* softmax;  // out: acc_t [2, B, T, U1], maximum and rest; may be null
  Planes arcs;    // out: mantissa and exponent of blank, mantissa and exponent of label
  Tail tail = {};
  void* scores = nullptr;  // out, in place of arcs: acc_t [2, B, T, U1], of blank and label in nats; 0 without one

  // The class that has no part in the softmax of a row; negative for none.
  RNNT_HD int64_t excluded() const { return normalizer == Normalizer::kHat ? batch.blank : -1; }
};

struct LatticeParams {
  Batch batch;
  Planes arcs;
  PerUtterance loss;  // out
  void* shares;       // out: acc_t [B, S], as merge.h keeps them; may be null
  void* workspace;    // of CUDA: workspace_bytes(batch) of zeros
};

struct AlphaBetaParams {
  Batch batch;
  Planes arcs;        // wide
  PerUtterance loss;  // out
  double* alpha;      // out: [B, T, U1]
  double* beta;       // out: [B, T, U1]
  void* workspace;    // as above
};

struct PosteriorParams {
  Batch batch;
  PerUtterance loss;
  const void* shares;  // acc_t [B, S]
  Planes posteriors;   // out: of blank, of label
  void* workspace;     // as above
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
  Rows x;  // [B, T, U1, V], or packed; not read without a normalizer
  Normalizer normalizer;
  const void* softmax;  // acc_t [2, B, T, U1]
  Planes posteriors;
  PerUtterance grad_loss;
  double clamp;         // bound of d loss / d x before grad_loss; infinity: none
  double label_weight;  // of label posteriors in the gradient, 1 but for FastEmit
  Rows grad_x;          // out: of x's shape and dtype; may be x
  Tail tail = {};
  const void* of_scores = nullptr;  // in place of posteriors: acc_t [2, B, T, U1], gradients of log Z
};

// The arcs that leave a cell of a token-and-duration transducer: a blank of each duration above 0, in the order of the
// durations, then a label of each.
struct Durations {
  int count, blanks;
  int blank_arc[kMostDurations];  // negative for none

  RNNT_HD bool has_blank(int d) const { return blank_arc[d] >= 0; }
  RNNT_HD int label_arc(int d) const { return blanks + d; }
  RNNT_HD int arcs() const { return blanks + count; }
};

// Their scores, from those of blank and label and a row of durations. Backward, scores of arcs are their gradients.
struct TdtParams {
  Batch batch;            // without labels; V is the number of durations
  Rows logits;            // [B, T, U1, V], of acc_t
  Normalizer normalizer;  // kSoftmax, or kNone: the logits are scores
  Durations durations;
  bool wide;           // acc_t is double
  const void* tokens;  // acc_t [2, B, T, U1]
  void* arcs;          // out, backward in: acc_t [arcs, B, T, U1]
  void* grad_tokens;   // backward out: acc_t [2, B, T, U1]
  void* grad_logits;   // backward out: acc_t [B, T, U1, V]
};

// The lattice of any K arcs (README, eq. 14), from and to the cells of tensors.
struct ArcLatticeParams {
  int64_t B, T, U1;
  Integers input_lengths, label_lengths;  // [B]
  ArcSet arcs;
  const void* scores;     // acc_t [K, B, T, U1], nats
  bool wide;              // acc_t is double
  PerUtterance loss;      // out
  void* posteriors;       // out: acc_t [K, B, T, U1]; may be null
  const double* tangent;  // [K, B, T, U1]; may be null
  double* derivative;     // out, with a tangent: [K, B, T, U1], of the posteriors along it. scores are wide then
  void* workspace;        // of CUDA: arc_workspace_bytes(p)

  RNNT_HD FrontLayout layout() const { return {T + U1, (U1 + 16) / 16 * 16}; }  // a label more than there are
};

// Paths through it: n samples, or without uniforms the best one and n = 1.
struct PathParams {
  ArcLatticeParams lattice;  // its lengths, arcs and scores
  int64_t n;
  const double* uniforms;  // [n, B, T + U1], in [0, 1); may be null
  int64_t* frames;         // out: [n, B, U], at which each label leaves; -1 without a label or a path
  int64_t* path_arcs;      // out: [n, B, U], the arc it leaves by; likewise
  double* score;           // out: [B], of the best path, or log Z
  double* workspace;       // of CUDA: path_workspace_bytes(p)
};

}  // namespace rnnt
