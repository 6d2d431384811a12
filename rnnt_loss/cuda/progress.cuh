// How the rows of a batch and the sweeps over its lattices run at the same time, in one launch: each tells the other
// how far it is, in the launch's workspace, which starts as zeros.
//
// Blocks get their places in the order of their numbers, and keep them to their end. Backward, rows wait for sweeps,
// and come after them. Forward, sweeps wait for rows, and come before them, to be there from the first frame on; they
// take so few places (kSweepsOfPlaces) that rows always find some.
#pragma once

#include "launch.cuh"
#include "rows.cuh"
#include "tuning.h"

namespace rnnt::cuda {

// Frames of which the rows of the whole batch are done. Groups of frames count their blocks.
class FramesDone {
 public:
  __device__ FramesDone(const int* blocks_done, const RowBlocks& blocks)
      : blocks_done_(blocks_done), groups_(blocks.groups), in_group_(blocks.in_group), frames_(blocks.frames) {}
  __device__ static FramesDone all() { return FramesDone(nullptr, {}); }

  // By a whole warp.
  __device__ void wait_for(int frames) {
    if (!blocks_done_ || done_ * frames_ >= frames) return;
    while (true) {
      const int group = done_ + static_cast<int>(threadIdx.x % 32);
      const bool is_done = group < groups_ && hear(blocks_done_ + group) == in_group_;
      const unsigned missing = ~__ballot_sync(kWholeWarp, is_done);
      done_ += missing ? __ffs(static_cast<int>(missing)) - 1 : 32;
      if (done_ * frames_ >= frames) break;
      back_off();
    }
    __syncwarp();  // what one lane has heard, all have
  }

 private:
  const int* blocks_done_;
  int groups_, in_group_, frames_, done_ = 0;  // done_: groups, as far as is known
};

// Steps that a sweep has done, for the rows that wait for it: by a whole warp, of which one lane a row looks.
__device__ inline void wait_for_steps(const int* done, int64_t steps, bool looks) {
  while (looks && hear(done) < steps) back_off();
  __syncwarp();
}

// The workspace: forward the blocks done of each group of frames, or backward the steps done of each strip of each
// utterance, which many look at, in a cache line of its own; then the columns of wide lattices. Alpha and beta take the
// most: two blocks an utterance, two columns each.
constexpr int kLine = 128 / sizeof(int);
RNNT_HD int64_t strips_of(const Batch& batch) { return (batch.U1 + 31) / 32; }
RNNT_HD int64_t first_column_of(const Batch& batch) {
  const int64_t groups = (batch.T + kFrames - 1) / kFrames, strips = batch.B * strips_of(batch) * kLine;
  return ((groups > strips ? groups : strips) * sizeof(int) + 15) / 16 * 16;
}
inline int64_t bytes_of_workspace(const Batch& batch) {
  return first_column_of(batch) +
         (batch.U1 > kThreads ? batch.B * 2 * 2 * batch.layout().fronts * sizeof(Value<double>) : 0);
}

// Of a block; null where a lattice is one panel.
template <typename Message>
__device__ Message* columns_of(void* workspace, const Batch& batch, int64_t block) {
  if (batch.U1 <= kThreads) return nullptr;
  char* const first = static_cast<char*>(workspace) + first_column_of(batch);
  return reinterpret_cast<Message*>(first) + 2 * batch.layout().fronts * block;
}

}  // namespace rnnt::cuda
