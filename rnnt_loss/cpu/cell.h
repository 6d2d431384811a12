// Walking a batch on the CPU: which cell a row is, and where its planes lie.
#pragma once

#include "../params.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rnnt::cpu {

// Calls visit(b, t, u, row) for each row of the range, in order.
template <typename Visit>
void for_each_row(const Batch& batch, int64_t first, int64_t last, Visit visit) {
  int64_t u = first % batch.U1, t = first / batch.U1 % batch.T, b = first / batch.U1 / batch.T;
  for (int64_t row = first; row < last; row++) {
    visit(b, t, u, row);
    if (++u < batch.U1) continue;
    u = 0;
    if (++t < batch.T) continue;
    t = 0, b++;
  }
}

inline bool is_padding(const Batch& batch, int64_t b, int64_t t, int64_t u) {
  return t >= batch.input_lengths[b] || u > batch.label_lengths[b];
}

// The planes of one utterance.
template <typename acc_t>
struct ArcPlanes {
  acc_t *blank_mantissa, *blank_exponent, *label_mantissa, *label_exponent;

  ArcPlanes(const Arcs& arcs, const Batch& batch, int64_t b) {
    const int64_t slots = batch.layout().slots();
    blank_mantissa = static_cast<acc_t*>(arcs.planes) + b * slots;
    blank_exponent = blank_mantissa + batch.B * slots;
    label_mantissa = blank_exponent + batch.B * slots;
    label_exponent = label_mantissa + batch.B * slots;
  }
};

template <typename acc_t>
struct PosteriorPlanes {
  acc_t *blank, *label;

  PosteriorPlanes(const void* posteriors, const Batch& batch, int64_t b) {
    const int64_t slots = batch.layout().slots();
    blank = static_cast<acc_t*>(const_cast<void*>(posteriors)) + b * slots;
    label = blank + batch.B * slots;
  }
};

// A denormal operand costs about 20 ns; nothing here needs one. Restored on leaving.
class FlushDenormals {
#if defined(__x86_64__)
  const unsigned saved_ = _mm_getcsr();

 public:
  FlushDenormals() { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  uint64_t saved_;
  static void set(uint64_t fpcr) { asm volatile("msr fpcr, %0" : : "r"(fpcr)); }

 public:
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(saved_ | 1u << 24);
  }
  ~FlushDenormals() { set(saved_); }
#endif
};

}  // namespace rnnt::cpu
