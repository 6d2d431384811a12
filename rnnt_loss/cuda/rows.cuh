// Rows of V elements and the threads that share one: how many, which elements each takes, and how they add up. Which
// thread takes an element depends on its place in the row alone, so a row's sum has the same bits wherever it lies.
#pragma once

#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"
#include "tuning.h"

namespace rnnt::cuda {

// Two values as they are stored, side by side.
template <typename scalar_t>
__device__ uint32_t packed(float low, float high) {
#if defined(__CUDA_ARCH__)  // one instruction
  if constexpr (std::is_same_v<scalar_t, float16>) return from_bits<uint32_t>(__floats2half2_rn(low, high));
  if constexpr (std::is_same_v<scalar_t, bfloat16>) return from_bits<uint32_t>(__floats2bfloat162_rn(low, high));
#endif
  return store<scalar_t>(low).bits | static_cast<uint32_t>(store<scalar_t>(high).bits) << 16;
}

// 16 bytes of a row, as words: elements smaller than that would be taken apart as soon as they are loaded.
template <typename scalar_t>
struct alignas(16) Piece {
  static constexpr int kSize = 16 / sizeof(scalar_t);
  using acc_t = acc_of<scalar_t>;
  uint32_t word[4];

  __device__ acc_t at(int i) const {
    if constexpr (sizeof(scalar_t) == 8)
      return from_bits<double>(word[2 * i] | static_cast<uint64_t>(word[2 * i + 1]) << 32);
    else if constexpr (sizeof(scalar_t) == 4)
      return from_bits<float>(word[i]);
    else
      return load(scalar_t{static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16))});
  }
  __device__ void set(const acc_t (&x)[kSize]) {
    if constexpr (sizeof(scalar_t) == 2) {
#pragma unroll
      for (int i = 0; i < 4; i++) word[i] = packed<scalar_t>(x[2 * i], x[2 * i + 1]);
    } else {
      memcpy(word, x, sizeof word);
    }
  }
};

template <typename T>
__device__ bool is_aligned(const T* p, int bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(bytes) == 0;
}

// Whether x is one of the n numbers from k on.
__device__ inline bool is_among(int x, int k, int n) { return static_cast<unsigned>(x - k) < static_cast<unsigned>(n); }

// The piece at element k; where the row does not reach, and for the class `excluded`, `outside`.
template <typename scalar_t>
__device__ Piece<scalar_t> load_piece(const scalar_t* row, int k, int V, scalar_t outside, int excluded) {
  constexpr int kSize = Piece<scalar_t>::kSize;
  Piece<scalar_t> piece;
  const bool is_inside = k >= 0 && k + kSize <= V && !is_among(excluded, k, kSize);
  if (is_inside && is_aligned(row + k, 16)) {
    piece = *reinterpret_cast<const Piece<scalar_t>*>(row + k);
  } else if (is_inside && is_aligned(row + k, 4)) {
#pragma unroll
    for (int i = 0; i < 4; i++) piece.word[i] = reinterpret_cast<const uint32_t*>(row + k)[i];
  } else {
    scalar_t element[kSize];
#pragma unroll
    for (int i = 0; i < kSize; i++) element[i] = 0 <= k + i && k + i < V && k + i != excluded ? row[k + i] : outside;
    memcpy(piece.word, element, sizeof element);
  }
  return piece;
}

template <typename scalar_t>
__device__ void store_piece(scalar_t* row, int k, int V, const Piece<scalar_t>& piece) {
  constexpr int kSize = Piece<scalar_t>::kSize;
  if (k >= 0 && k + kSize <= V && is_aligned(row + k, 16)) {
    store16(reinterpret_cast<Piece<scalar_t>*>(row + k), piece);
    return;
  }
  scalar_t element[kSize];
  memcpy(element, piece.word, sizeof element);
#pragma unroll
  for (int i = 0; i < kSize; i++)
    if (0 <= k + i && k + i < V) row[k + i] = element[i];
}

// Pieces `step` elements apart, from k on: all at once where nothing stands against it.
template <typename scalar_t>
using Pieces = Piece<scalar_t>[kVectors<scalar_t>];

template <typename scalar_t>
__device__ bool are_whole(const scalar_t* row, int k, int step, int V) {
  return k >= 0 && k + (kVectors<scalar_t> - 1) * step + Piece<scalar_t>::kSize <= V && is_aligned(row + k, 16);
}
template <typename scalar_t>
__device__ void load_pieces(Pieces<scalar_t>& pieces, const scalar_t* row, int k, int step, int V, scalar_t outside,
                            int excluded) {
  if (are_whole(row, k, step, V) && !is_among(excluded, k, kVectors<scalar_t> * step)) {
#pragma unroll
    for (int i = 0; i < kVectors<scalar_t>; i++)
      pieces[i] = *reinterpret_cast<const Piece<scalar_t>*>(row + k + i * step);
  } else {
#pragma unroll
    for (int i = 0; i < kVectors<scalar_t>; i++) pieces[i] = load_piece(row, k + i * step, V, outside, excluded);
  }
}
template <typename scalar_t>
__device__ void store_pieces(scalar_t* row, int k, int step, int V, const Pieces<scalar_t>& pieces) {
  if (are_whole(row, k, step, V)) {
#pragma unroll
    for (int i = 0; i < kVectors<scalar_t>; i++)
      store16(reinterpret_cast<Piece<scalar_t>*>(row + k + i * step), pieces[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVectors<scalar_t>; i++) store_piece(row, k + i * step, V, pieces[i]);
  }
}

// How many threads share a row: a power of two, at least the two that an arc each, at most a warp, or for long rows a
// whole block. Four as soon as there is a piece for each, so that what they read together is a few sectors of memory;
// more than that only where each has two chunks: what a warp does besides reading it does for more rows then.
template <typename scalar_t>
int lanes_for(int64_t V) {
  const int64_t bytes = V * sizeof(scalar_t);
  if (bytes >= kBlockRow) return kThreads;
  int lanes = bytes < 64 ? 2 : 4;
  while (lanes < 32 && lanes * 2 * kVectors<scalar_t> * 16 < bytes) lanes *= 2;
  return lanes;
}

// The rows of a batch as blocks of a launch: frame by frame, in each frame utterance by utterance. Up to kFrames
// frames, a group, take a whole number of blocks; groups are as even as can be, since what a block has beyond them is
// idle.
struct RowBlocks {
  int64_t in_frame;                           // rows of one frame of all utterances
  int lanes, rows, in_group, groups, frames;  // rows of a block, blocks and frames of a group

  static RowBlocks of(const Batch& batch, int lanes) {
    const int64_t in_frame = batch.B * batch.U1, rows = kThreads / lanes, groups = (batch.T + kFrames - 1) / kFrames;
    const int64_t frames = groups ? (batch.T + groups - 1) / groups : 0;
    return {in_frame,
            lanes,
            static_cast<int>(rows),
            static_cast<int>((frames * in_frame + rows - 1) / rows),
            static_cast<int>(groups),
            static_cast<int>(frames)};
  }
  int64_t count() const { return static_cast<int64_t>(in_group) * groups; }
};

// Division of 64 bits takes about a hundred instructions, of 32 a fifth of that.
__device__ inline int64_t quotient_of(int64_t a, int64_t b) {
  return (a | b) >> 32 ? a / b : static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
}

// The thread's place: lane `lane` of the `lanes` that share the row of cell (b, t, u); padding is a cell here too.
struct RowThread {
  int lanes, lane, group;
  int b, t, u;
  int64_t row;
  bool exists;

  __device__ RowThread(const Batch& batch, const RowBlocks& blocks, unsigned block)
      : lanes(blocks.lanes),
        lane(static_cast<int>(threadIdx.x) & (blocks.lanes - 1)),
        group(static_cast<int>(block / static_cast<unsigned>(blocks.in_group))) {
    const int64_t in_group =
        static_cast<int64_t>(block - static_cast<unsigned>(group * blocks.in_group)) * blocks.rows +
        threadIdx.x / static_cast<unsigned>(lanes);
    const int64_t frame = quotient_of(in_group, blocks.in_frame), in_frame = in_group - frame * blocks.in_frame;
    t = static_cast<int>(group * blocks.frames + frame);
    exists = frame < blocks.frames && t < batch.T;
    if (!exists) t = 0;
    b = exists ? static_cast<int>(quotient_of(in_frame, batch.U1)) : 0;
    u = exists ? static_cast<int>(in_frame - b * batch.U1) : 0;
    row = (b * batch.T + t) * batch.U1 + u;
  }

  __device__ int64_t slot(const Batch& batch) const { return batch.layout().slot(batch.topology.front(t, u), u); }
  template <typename scalar_t>
  __device__ scalar_t* row_of(const Batch& batch, const Rows& rows) const {
    return static_cast<scalar_t*>(rows.data) + rows.row_offset(batch, b, t, u);
  }
  // Whether there is a row to write. Packed rows that nobody knows the utterance of are numbered as those of a padded
  // batch, so that each is written all the same.
  __device__ bool has_row(const Batch& batch, const Utterance& utterance) const {
    if (!exists || !batch.packed) return exists;
    return utterance.T ? utterance.has(t, u) : row < batch.packed_rows;
  }

  // Calls visit(k, step) for chunks of kVectors pieces of the row, k the first element of the first and step the
  // distance to the next; `from` is the row's element where its first piece begins.
  template <typename scalar_t, typename Visit>
  __device__ void each_chunk(int from, int V, Visit visit) const {
    constexpr int kSize = Piece<scalar_t>::kSize;
    const int step = lanes * kSize;
    for (int k = from + lane * kSize; k < V; k += kVectors<scalar_t> * step) visit(k, step);
  }
};

// The sum of exp(x - largest) over what a thread has seen, less the terms of 1, which are counted.
template <typename acc_t>
struct RunningSum {
  acc_t largest, rest, ones;

  __device__ static RunningSum nothing() { return {-INFINITY, 0, 0}; }

  // -inf is never subtracted from itself.
  __device__ acc_t reference() const { return largest == -INFINITY ? acc_t(0) : largest; }

  __device__ void raise(acc_t larger) {
    if (!(larger > largest)) return;
    rest = (rest + ones) * exp_of(largest - larger);
    ones = 0, largest = larger;
  }
  __device__ void add(acc_t x, acc_t reference) {
    if (x == reference)
      ones += 1;
    else
      rest += exp_of(x - reference);
  }
  __device__ void join(acc_t more_rest, acc_t more_ones) { rest += more_rest, ones += more_ones; }

  // rest is NaN where the largest is infinite or NaN.
  __device__ Softmax<acc_t> softmax() const { return {largest, rest + (ones - 1) + (largest - largest)}; }
};

// Of a NaN and a number the number.
__device__ inline float larger_of(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger_of(double a, double b) { return fmax(a, b); }

// The sum of all threads that share the row; all of them get it, and its bits are the same in each.
template <typename acc_t>
__device__ RunningSum<acc_t> whole_row(RunningSum<acc_t> sum, int lanes) {
  const int in_warp = lanes < 32 ? lanes : 32;
  acc_t largest = sum.largest;
  for (int other = in_warp / 2; other; other /= 2)
    largest = larger_of(largest, __shfl_xor_sync(kWholeWarp, largest, other));
  sum.raise(largest);
  for (int other = in_warp / 2; other; other /= 2) {
    const acc_t rest = __shfl_xor_sync(kWholeWarp, sum.rest, other);
    const acc_t ones = __shfl_xor_sync(kWholeWarp, sum.ones, other);
    sum.join(rest, ones);
  }
  if (lanes <= 32) return sum;
  constexpr int kWarps = kThreads / 32;
  __shared__ RunningSum<acc_t> of_warp[kWarps];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();  // a block has one row, so this happens once
  sum = RunningSum<acc_t>::nothing();
#pragma unroll
  for (int i = 0; i < kWarps; i++) {
    RunningSum<acc_t> part = of_warp[i];
    largest = larger_of(sum.largest, part.largest);
    sum.raise(largest), part.raise(largest);
    sum.join(part.rest, part.ones);
  }
  return sum;
}

}  // namespace rnnt::cuda
