// Shuffles, votes and barriers, and who takes part in them.
#include "selftest.h"

namespace {

struct Words {
  unsigned* out;  // [10, 64]
};

inline void declare(Memory& memory, const Words& p) {
  memory.add("out", p.out, 640 * sizeof(unsigned), sizeof(unsigned), Use::kOutput);
}

__global__ void shuffles(Words p) {
  const int i = threadIdx.x, lane = i % 32;
  p.out[0 * 64 + i] = __shfl_sync(kWholeWarp, i, 3);
  p.out[1 * 64 + i] = __shfl_sync(kWholeWarp, i, 9, 8);
  p.out[2 * 64 + i] = __shfl_up_sync(kWholeWarp, i, 2, 16);
  p.out[3 * 64 + i] = __shfl_down_sync(kWholeWarp, i, 2, 16);
  p.out[4 * 64 + i] = __shfl_xor_sync(kWholeWarp, i, 5);
  p.out[5 * 64 + i] = __ballot_sync(kWholeWarp, lane % 3 == 0);
  p.out[6 * 64 + i] = __any_sync(kWholeWarp, i == 40);
  p.out[7 * 64 + i] = __all_sync(kWholeWarp, i != 40);
  p.out[8 * 64 + i] = lane < 8 ? __shfl_xor_sync(0xffu, i, 1) : __shfl_xor_sync(0xffffff00u, i, 2);
  p.out[9 * 64 + i] = __syncthreads_or(i == 50);
}

__global__ void shuffles_from_outside_the_mask(Buffers p) {
  const int lane = threadIdx.x;
  p.scratch[lane] = lane < 16 ? __shfl_down_sync(0xffffu, p.in[lane], 1) : 0;
}

__global__ void is_not_in_its_mask(Buffers p) { p.out[threadIdx.x] = __shfl_xor_sync(0xffffu, p.in[threadIdx.x], 1); }

__global__ void has_lanes_that_exited(Buffers p) {
  if (threadIdx.x % 32 == 31) return;
  p.scratch[threadIdx.x] = __shfl_up_sync(kWholeWarp, p.in[threadIdx.x], 1);
}

__global__ void has_threads_that_exited(Buffers p) {
  if (threadIdx.x >= 64) return;
  __syncthreads();
  p.scratch[threadIdx.x] = 0;
}

__global__ void waits_for_itself(Buffers) {
  __shared__ Phases never;
  if (threadIdx.x == 0) never.start();
  __syncthreads();
  if (threadIdx.x == 5) never.wait_for(0);
  __syncthreads();
}

__global__ void half_waits_at_a_barrier(Buffers) {
  if (threadIdx.x % 32 < 16)
    __syncwarp();
  else
    __syncthreads();
}

}  // namespace

// ---- right

EXPORT const char* shuffles_and_votes() {
  return outcome([](Data& data) {
    launch(shuffles, dim3(1), dim3(64), nullptr, Words{data.words});
    unsigned third = 0;
    for (int lane = 0; lane < 32; lane += 3) third |= 1u << lane;
    for (unsigned i = 0; i < 64; i++) {
      const unsigned lane = i % 32, first = i - lane;
      const unsigned wanted[] = {first + 3,
                                 first + lane / 8 * 8 + 1,
                                 lane % 16 < 2 ? i : i - 2,
                                 lane % 16 > 13 ? i : i + 2,
                                 i ^ 5,
                                 third,
                                 first == 32,
                                 first == 0,
                                 i ^ (lane < 8 ? 1 : 2),
                                 1};
      for (int k = 0; k < 10; k++) expect(data.words[k * 64 + i] == wanted[k], ("of " + std::to_string(k)).c_str());
    }
  });
}

// ---- wrong

EXPORT const char* shuffle_from_outside_the_mask() { return run(shuffles_from_outside_the_mask, 1, 32); }
EXPORT const char* mask_without_its_caller() { return run(is_not_in_its_mask, 1, 32); }
EXPORT const char* exited_lanes() { return run(has_lanes_that_exited); }
EXPORT const char* exited_threads() { return run(has_threads_that_exited); }
EXPORT const char* deadlock_of_a_phase() { return run(waits_for_itself); }
EXPORT const char* deadlock_of_barriers() { return run(half_waits_at_a_barrier); }
