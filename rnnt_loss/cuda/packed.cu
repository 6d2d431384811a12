// Where the rows of a packed batch lie, which only the lengths tell, and they are on the device.
#include "../backend.h"
#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"

namespace rnnt::cuda {
namespace {

// One warp: running sums of 32 utterances at a time.
__global__ void __launch_bounds__(32) packed_rows_kernel(Batch batch, PackedRows* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int64_t first = 0;
  bool good = true;
  for (int64_t start = 0; start < batch.B; start += 32) {
    const int64_t b = start + lane;
    const Utterance utterance = b < batch.B ? lengths_of(batch, b) : Utterance{0, 0};
    good &= b >= batch.B || utterance.T > 0;
    const int64_t in_frame = utterance.U + 1, rows = utterance.T * in_frame;
    int64_t end = rows;
    for (int step = 1; step < 32; step *= 2) {
      const int64_t before = __shfl_up_sync(kWholeWarp, end, step);
      if (lane >= step) end += before;
    }
    if (b < batch.B) out[b] = {first + end - rows, in_frame};
    first += __shfl_sync(kWholeWarp, end, 31);
  }
  good = __all_sync(kWholeWarp, good && first == batch.packed_rows);
  for (int64_t b = lane; !good && b < batch.B; b += 32) out[b] = {b * batch.T * batch.U1, batch.U1};  // as if padded
  if (lane == 0) out[batch.B] = {good ? first : -1, 0};
}

}  // namespace

void find_packed_rows(const Batch& batch, PackedRows* out, void* stream) {
  launch(packed_rows_kernel, 1, 32, stream, batch, out);
}

}  // namespace rnnt::cuda
