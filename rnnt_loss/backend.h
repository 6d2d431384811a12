// What a backend offers. Row functions take a range of the B * T * U1 rows, lattice functions a range of utterances;
// ranges are independent, so that the caller may spread them over threads in any way without changing a bit.
#pragma once

#include "params.h"

namespace rnnt::cpu {

void score(const ScoreParams&, int64_t first_row, int64_t last_row);
void lattice(const LatticeParams&, int64_t first_utterance, int64_t last_utterance);
void alpha_beta(const AlphaBetaParams&, int64_t first_utterance, int64_t last_utterance);
void posteriors(const PosteriorParams&, int64_t first_utterance, int64_t last_utterance);
void posteriors_from_alpha_beta(const PosteriorFromAlphaBetaParams&, int64_t first_utterance, int64_t last_utterance);
void score_backward(const ScoreBackwardParams&, int64_t first_row, int64_t last_row);

}  // namespace rnnt::cpu
