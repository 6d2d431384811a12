// Every size that was chosen, and why. Chosen from the sources' machine code and from what is known of the hardware;
// not yet measured.
#pragma once

namespace rnnt::cuda {

// A block has kThreads threads; two are on a multiprocessor at a time, so that a thread may have 128 registers. To
// reach the bandwidth of an H200's memory a multiprocessor has to keep about 22 KiB of loads in flight, more when it is
// loaded; a thread fetches kVectors * 16 bytes before it uses any, so these keep 64 KiB.
constexpr int kThreads = 256;
constexpr int kBlocks = 2;
template <typename scalar_t>
constexpr int kVectors = sizeof(scalar_t) == sizeof(double) ? 4 : 8;

// From this many bytes a row is a block's, below a warp's or a part of one: a warp then fetches twice.
constexpr int kBlockRow = 8192;

// Rows are handed to blocks frame by frame, and a sweep is told of every kFrames of them that are done.
constexpr int kFrames = 16;

// Forward, sweeps wait for rows in the same launch while they take at most this part of the device's places for blocks:
// the rows need the others.
constexpr int kSweepsOfPlaces = 8;  // an eighth

// Sweeps. A warp sweeps a strip of 32 labels. Arcs and shares are fetched kAhead steps ahead, in two halves: a load
// then has at least kAhead / 2 steps, several hundred cycles. Messages are handed over every 2 kAhead steps: seldom,
// for it costs as much as several steps, and often, for each strip is as far behind the one before it.
constexpr int kStrips = kThreads / 32;  // of a block
constexpr int kAhead = 8;
constexpr int kAheadWide = 2;   // in double, where an arc takes twice the registers and a step several times as long
constexpr int kStages = 4;      // hand-overs that a strip may be ahead of the next
constexpr int kToldEvery = 32;  // steps from one word to the rows to the next: it waits for all stores before it

}  // namespace rnnt::cuda
