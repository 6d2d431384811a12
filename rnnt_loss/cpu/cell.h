// Walking a batch on the CPU: which cells a range of rows is.
#pragma once

#include <algorithm>

#include "../params.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace rnnt::cpu {

// Calls visit(b, t, u, end_u, row) for each run of rows of one frame within [first, last), in order; row is that of u.
template <typename Visit>
void for_each_run(const Batch& batch, int64_t first, int64_t last, Visit visit) {
  for (int64_t row = first; row < last;) {
    const int64_t u = row % batch.U1, t = row / batch.U1 % batch.T, b = row / batch.U1 / batch.T;
    const int64_t end_u = std::min(batch.U1, u + last - row);
    visit(b, t, u, end_u, row);
    row += end_u - u;
  }
}

// How many of a frame's rows are cells.
inline int64_t cells_in_frame(const Batch& batch, int64_t b, int64_t t) {
  return t < batch.input_lengths[b] ? batch.label_lengths[b] + 1 : 0;
}

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
