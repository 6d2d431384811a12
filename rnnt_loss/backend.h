// What the backends offer.
#pragma once

#include "params.h"

// Row functions take a range of the B * T * U1 rows, lattice functions a range of utterances; ranges are independent,
// so that the caller may spread them over threads in any way without changing a bit.
namespace rnnt::cpu {

void score(const ScoreParams&, int64_t first_row, int64_t last_row);
void lattice(const LatticeParams&, int64_t first_utterance, int64_t last_utterance);
void alpha_beta(const AlphaBetaParams&, int64_t first_utterance, int64_t last_utterance);
void posteriors(const PosteriorParams&, int64_t first_utterance, int64_t last_utterance);
void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams&, int64_t first_utterance, int64_t last_utterance);
void score_backward(const ScoreBackwardParams&, int64_t first_row, int64_t last_row);
void tdt_scores(const TdtParams&, int64_t first_row, int64_t last_row);
void tdt_scores_backward(const TdtParams&, int64_t first_row, int64_t last_row);

void arc_lattice(const ArcLatticeParams&, int64_t first_utterance, int64_t last_utterance);
void paths(const PathParams&, int64_t first_utterance, int64_t last_utterance);

}  // namespace rnnt::cpu

// Each works on the whole batch, in order on a stream, and returns before it is done. Lengths and labels may be
// anything: a bad one makes the loss of its utterance NaN. Throws std::runtime_error where CUDA refuses.
namespace rnnt::cuda {

int64_t workspace_bytes(const Batch&);

void find_packed_rows(const Batch&, PackedRows* out, void* stream);  // what batch.packed points to

void loss(const ScoreParams&, const LatticeParams&, void* stream);
// Without shares the posteriors are there already.
void gradient(const PosteriorParams&, const ScoreBackwardParams&, void* stream);

void score(const ScoreParams&, void* stream);  // log-probabilities to values of arcs; any row to scores and tail
void alpha_beta(const AlphaBetaParams&, void* stream);
void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams&, void* stream);
// What score does, and gradient leaves to do, where rows have a tail.
void tail(const ScoreParams&, void* stream);
void tail_gradient(const ScoreBackwardParams&, void* stream);

void tdt_scores(const TdtParams&, void* stream);
void tdt_scores_backward(const TdtParams&, void* stream);

int64_t arc_workspace_bytes(const ArcLatticeParams&);
void arc_lattice(const ArcLatticeParams&, void* stream);
int64_t path_workspace_bytes(const PathParams&);
void paths(const PathParams&, void* stream);

}  // namespace rnnt::cuda
