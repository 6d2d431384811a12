// What comes before what: barriers, phases, and what blocks tell each other.
#include "selftest.h"

namespace {

template <typename Kernel>
const char* run_collection(Kernel kernel, int blocks) {
  return outcome([&](Data& data) {
    launch(kernel, dim3(blocks), dim3(kThreads), nullptr, data.buffers(), data.done);
    for (const float sum : data.out) expect(sum == blocks * (blocks - 1) / 2, "sum of all blocks");
  });
}

// For kernels that give every thread what its mirror image in the block had.
template <typename Kernel>
const char* run_mirror(Kernel kernel) {
  return outcome([&](Data& data) {
    launch(kernel, dim3(1), dim3(kThreads), nullptr, data.buffers());
    for (int i = 0; i < kThreads; i++) expect(data.out[i] == data.in[kThreads - 1 - i], "mirror");
  });
}

template <bool kBarrier>
__global__ void through_shared_memory(Buffers p) {
  __shared__ float staged[kThreads];
  staged[threadIdx.x] = p.in[threadIdx.x];
  if (kBarrier) __syncthreads();
  p.out[threadIdx.x] = staged[kThreads - 1 - threadIdx.x];
}

// Mirrored within the warp, which needs no more than the warp to be in step; then the rest by a barrier.
template <bool kSync>
__global__ void within_a_warp(Buffers p) {
  __shared__ float staged[kThreads], mirrored[kThreads];
  const int i = threadIdx.x;
  staged[i] = p.in[i];
  if (kSync) __syncwarp();
  mirrored[i] = staged[i / 32 * 32 + 31 - i % 32];
  __syncthreads();
  p.out[i] = mirrored[(kThreads - 32 - i / 32 * 32) + i % 32];
}

__global__ void synchronizes_half_a_warp(Buffers p) {
  __shared__ float staged[32];
  const int lane = threadIdx.x;
  staged[lane] = p.in[lane];
  __syncwarp(lane < 16 ? 0xffffu : 0xffff0000u);
  p.scratch[lane] = staged[lane ^ 16];
}

// Warp after warp adds its own to what the one before it says.
template <bool kCompletes, bool kWaits>
__global__ void hands_over(Buffers p) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float sums[kWarps];
  __shared__ Phases ready[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) ready[warp].start();
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 32; i++) sum += p.in[warp * 32 + i];
  if (lane == 0) {
    if (warp > 0) {
      if (kWaits) ready[warp - 1].wait_for(0);
      sum += sums[warp - 1];
    }
    if (!kCompletes) ready[warp].complete();
    sums[warp] = sum;
    if (kCompletes) ready[warp].complete();
  }
  __syncthreads();
  p.out[threadIdx.x] = sums[kWarps - 1];
}

// One lane fills a ring of two, another empties it.
template <bool kWaitsForRoom>
__global__ void through_a_ring(Buffers p) {
  constexpr int kStages = 2;
  __shared__ float ring[kStages];
  __shared__ Phases full[kStages], empty[kStages];
  if (threadIdx.x < kStages) full[threadIdx.x].start(), empty[threadIdx.x].start();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kThreads; i++) {
      if (kWaitsForRoom) empty[i % kStages].wait_for(i / kStages - 1);
      ring[i % kStages] = p.in[i];
      full[i % kStages].complete();
    }
  }
  if (threadIdx.x == 32) {
    for (int i = 0; i < kThreads; i++) {
      full[i % kStages].wait_for(i / kStages);
      p.out[kThreads - 1 - i] = ring[i % kStages];
      empty[i % kStages].complete();
    }
  }
}

// The first block waits for all others, which leave a number each.
template <bool kCounts, bool kHears>
__global__ void collects_from_blocks(Buffers p, int* done) {
  const int others = gridDim.x - 1;
  if (blockIdx.x > 0) {
    if (threadIdx.x == 0) p.scratch[blockIdx.x] = p.in[blockIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      if (kCounts)
        count(done);
      else
        tell(done + blockIdx.x, 1);
    }
    return;
  }
  if (kCounts && kHears) {
    while (hear(done) < others) {
    }
  }
  if (!kCounts && kHears && threadIdx.x > 0 && static_cast<int>(threadIdx.x) <= others) {
    while (hear(done + threadIdx.x) == 0) {
    }
  }
  __syncthreads();
  float sum = 0;
  for (int i = 1; i <= others; i++) sum += p.scratch[i];
  p.out[threadIdx.x] = sum;
}

// The last block tells before what it tells of is there.
__global__ void tells_too_early(Buffers p, int* done) {
  if (blockIdx.x > 0) {
    if (threadIdx.x == 0) {
      tell(done, 1);
      p.scratch[0] = 1;
    }
    return;
  }
  while (hear(done) == 0) {
  }
  p.out[threadIdx.x] = p.scratch[0];
}

// Every block waits for the one after it.
__global__ void waits_for_the_next_block(Buffers, int* done) {
  if (blockIdx.x + 1 < gridDim.x) {
    while (hear(done + blockIdx.x + 1) == 0) {
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) tell(done + blockIdx.x, 1);
}

__global__ void is_written_by_two_blocks(Buffers p) { p.out[threadIdx.x] = 1; }

}  // namespace

// ---- right

EXPORT const char* barrier() { return run_mirror(through_shared_memory<true>); }
EXPORT const char* warp_barrier() { return run_mirror(within_a_warp<true>); }
EXPORT const char* phases() {
  return outcome([](Data& data) {
    launch(hands_over<true, true>, dim3(1), dim3(kThreads), nullptr, data.buffers());
    for (const float sum : data.out) expect(sum == kThreads * (kThreads - 1) / 2, "sum of all warps");
  });
}
EXPORT const char* ring() {
  return outcome([](Data& data) {
    launch(through_a_ring<true>, dim3(1), dim3(kThreads), nullptr, data.buffers());
    for (int i = 0; i < kThreads; i++) expect(data.out[i] == data.in[kThreads - 1 - i], "mirror");
  });
}
EXPORT const char* blocks_that_count() { return run_collection(collects_from_blocks<true, true>, 40); }
EXPORT const char* blocks_that_tell() { return run_collection(collects_from_blocks<false, true>, 40); }
EXPORT const char* chain_of_blocks() {
  return outcome([](Data& data) {
    launch(waits_for_the_next_block, dim3(33), dim3(32), nullptr, Buffers{data.in, nullptr, nullptr}, data.done);
  });
}

// ---- wrong

EXPORT const char* missing_barrier() { return run_mirror(through_shared_memory<false>); }
EXPORT const char* missing_warp_barrier() { return run_mirror(within_a_warp<false>); }
EXPORT const char* half_a_warp_barrier() { return run(synchronizes_half_a_warp, 1, 32); }
EXPORT const char* completed_too_early() { return run(hands_over<false, true>); }
EXPORT const char* phase_not_waited_for() { return run(hands_over<true, false>); }
EXPORT const char* room_not_waited_for() { return run(through_a_ring<false>); }
EXPORT const char* count_not_waited_for() { return run_collection(collects_from_blocks<true, false>, 40); }
EXPORT const char* told_too_early() {
  return outcome(
      [](Data& data) { launch(tells_too_early, dim3(2), dim3(kThreads), nullptr, data.buffers(), data.done); });
}
EXPORT const char* blocks_without_a_place() {
  return outcome([](Data& data) {
    launch(waits_for_the_next_block, dim3(34), dim3(32), nullptr, Buffers{data.in, nullptr, nullptr}, data.done);
  });
}
EXPORT const char* two_blocks_one_output() { return run(is_written_by_two_blocks, 2); }
