// What may be touched, and what has been written.
#include "selftest.h"

namespace {

struct Reader {
  const float* scratch;  // [kThreads]
  float* out;            // [kThreads]
};

inline void declare(Memory& memory, const Reader& p) {
  memory.add("scratch", p.scratch, kThreads * sizeof(float), sizeof(float), Use::kInput);
  memory.add("out", p.out, kThreads * sizeof(float), sizeof(float), Use::kOutput);
}

struct alignas(16) Piece {
  float element[4];
};

__global__ void copies(Buffers p) { p.out[threadIdx.x] = p.in[threadIdx.x]; }

__global__ void reads_unwritten_shared(Buffers p) {
  __shared__ float staged[kThreads + 1];
  staged[threadIdx.x] = p.in[threadIdx.x];
  __syncthreads();
  p.out[threadIdx.x] = staged[threadIdx.x + 1];
}

// Of the block before, whose shared memory this one has.
__global__ void reads_another_blocks_shared(Buffers p) {
  __shared__ float kept;
  if (blockIdx.x == 0 && threadIdx.x == 0) kept = 1;
  __syncthreads();
  if (blockIdx.x != 0) p.scratch[threadIdx.x] = kept;
}

template <int kFirst>
__global__ void reads_from(Buffers p) {
  p.out[threadIdx.x] = p.in[static_cast<int>(threadIdx.x) + kFirst];
}

template <int kFirst>
__global__ void writes_from(Buffers p) {
  p.out[static_cast<int>(threadIdx.x) + kFirst] = 0;
}

__global__ void writes_an_input(Buffers p) { const_cast<float*>(p.in)[threadIdx.x] = 0; }

__global__ void leaves_an_element(Buffers p) {
  if (threadIdx.x != 77) p.out[threadIdx.x] = 0;
}

template <int kFirst>
__global__ void loads_pieces(Buffers p) {
  const Piece piece = *reinterpret_cast<const Piece*>(p.in + kFirst + 4 * threadIdx.x);
  for (int i = 0; i < 4; i++) p.out[4 * threadIdx.x + i] = piece.element[i];
}

__global__ void writes_half(Buffers p) {
  p.out[threadIdx.x] = 0;
  if (threadIdx.x % 2 == 0) p.scratch[threadIdx.x] = p.in[threadIdx.x];
}

template <int kStep>
__global__ void reads_every(Reader p) {
  p.out[threadIdx.x] = p.scratch[threadIdx.x / kStep * kStep];
}

__global__ void overflows(Buffers p) {
  p.out[threadIdx.x] = static_cast<float>(0x7fffffff + static_cast<int>(p.in[1]));
}

}  // namespace

// ---- right

EXPORT const char* aligned_pieces() { return run(loads_pieces<0>, 1, kThreads / 4); }
EXPORT const char* scratch_that_was_written() {
  return outcome([](Data& data) {
    launch(writes_half, dim3(1), dim3(kThreads), nullptr, data.buffers());
    launch(reads_every<2>, dim3(1), dim3(kThreads), nullptr, Reader{data.scratch, data.out});
  });
}
EXPORT const char* scratch_that_the_host_completed() {
  return outcome([](Data& data) {
    launch(writes_half, dim3(1), dim3(kThreads), nullptr, data.buffers());
    for (float& x : data.scratch) x = 1;
    launch(reads_every<1>, dim3(1), dim3(kThreads), nullptr, Reader{data.scratch, data.out});
  });
}

// ---- wrong

EXPORT const char* unwritten_shared() { return run(reads_unwritten_shared); }
EXPORT const char* another_blocks_shared() { return run(reads_another_blocks_shared, 2); }
EXPORT const char* scratch_that_was_not_written() {
  return outcome([](Data& data) {
    launch(writes_half, dim3(1), dim3(kThreads), nullptr, data.buffers());
    launch(reads_every<1>, dim3(1), dim3(kThreads), nullptr, Reader{data.scratch, data.out});
  });
}
EXPORT const char* read_before_the_start() { return run(reads_from<-1>); }
EXPORT const char* read_behind_the_end() { return run(reads_from<1>); }
EXPORT const char* write_before_the_start() { return run(writes_from<-1>); }
EXPORT const char* write_behind_the_end() { return run(writes_from<1>); }
EXPORT const char* write_to_an_input() { return run(writes_an_input); }
EXPORT const char* element_left_out() { return run(leaves_an_element); }
EXPORT const char* misaligned_pieces() { return run(loads_pieces<1>, 1, kThreads / 4 - 1); }
EXPORT const char* signed_overflow() { return run(overflows); }
EXPORT const char* too_large_a_block() { return run(copies, 1, 1056); }
EXPORT const char* no_blocks() { return run(copies, 0); }
