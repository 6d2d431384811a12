// Sweeps over the fronts of a lattice without a block barrier. A warp owns a strip of 32 labels, one a lane, and keeps
// what it carries from front to front in registers; a lane hears of its neighbour through a shuffle, a strip of the
// strip before it through a ring of messages in shared memory, which is handed over several steps at a time. So the
// strips of a block follow each other at a distance of a few steps.
//
// A lattice wider than a block's strips is swept in panels, one after the other; between two of them the messages of
// all steps lie in global memory.
#pragma once

#include "../core/core.h"
#include "launch.cuh"
#include "tuning.h"

namespace rnnt::cuda {

// To which neighbour a lane talks: that of the label above (kUp) or below.
enum class Direction { kUp, kDown };

template <Direction kDirection, typename Real>
__device__ Real from_neighbour(Real x) {
  return kDirection == Direction::kUp ? __shfl_up_sync(kWholeWarp, x, 1) : __shfl_down_sync(kWholeWarp, x, 1);
}
template <Direction kDirection, typename Real>
__device__ Value<Real> from_neighbour(Value<Real> x) {
  return {from_neighbour<kDirection>(x.mantissa), from_neighbour<kDirection>(x.exponent)};
}

// From one strip to the next, in stages of kMessages each. One lane writes, one reads.
template <typename Message, int kMessages>
struct alignas(16) Channel {
  Message ring[kStages][kMessages];
  Phases full[kStages], empty[kStages];
};

// A strip's end of a channel.
template <typename Message, int kMessages>
class Edge {
 public:
  __device__ explicit Edge(Channel<Message, kMessages>& channel)
      : full(channel.full), empty(channel.empty), ring_(channel.ring[0]) {}

  __device__ int stage() const { return static_cast<int>(hand_overs_ % kStages); }
  __device__ int round() const { return static_cast<int>(hand_overs_ / kStages); }
  __device__ void hand_over() { hand_overs_++; }
  __device__ Message read(int i) const { return ring_.read(stage() * kMessages + i); }
  __device__ void write(int i, Message message) const { ring_.write(stage() * kMessages + i, message); }

  PhasesArray full, empty;

 private:
  SharedArray<Message> ring_;
  unsigned hand_overs_ = 0;
};

// The strips of a block over one utterance: U + 1 labels in panels of as many strips as a block has warps.
//
// A sweep has a Message and an Item, kAhead and kDirection, and for a lane of label u
//   nothing()                      what the first lane of all hears
//   load(step) -> Item             what a step needs from memory, fetched up to kAhead steps before
//   send(item) -> Message          what the lane says to its neighbour in a step
//   receive(step, item, heard)     the step
//   before_loads(end), after(end)  of the whole warp: steps below end are about to be fetched; are done
template <typename Sweep>
class Wavefront {
 public:
  using Message = typename Sweep::Message;
  static constexpr int kAhead = Sweep::kAhead, kHandOver = 2 * kAhead;
  using Channels = Channel<Message, kHandOver>[kStrips + 1];  // in shared memory: on either side of each strip

  // columns: [2, steps] of this block, in global memory; not looked at where one panel is enough
  __device__ Wavefront(Channels& channels, Message* columns, int steps)
      : in_(channels[warp_ + !kUp]), out_(channels[warp_ + kUp]), columns_(columns), steps_(steps) {
    if (threadIdx.x <= kStrips) {
      const PhasesArray full(channels[threadIdx.x].full), empty(channels[threadIdx.x].empty);
      for (int stage = 0; stage < kStages; stage++) full.start(stage), empty.start(stage);
    }
    __syncthreads();
  }

  // Calls visit(u, is_active, run) for the strips of this warp, u the lane's label; every warp of the block takes part
  // in every panel, is_active where its strip has one of the labels 0 .. U. run(sweep) then sweeps. U < 0: nothing is
  // active.
  template <typename Visit>
  __device__ void each_panel(int U, int U1, Visit visit) {
    const int panels = (U1 + kThreads - 1) / kThreads, strips = (U + 32) / 32;
    for (int i = 0; i < panels; i++) {
      const int strip = (kUp ? i : panels - 1 - i) * kStrips + warp_;
      const int before = kUp ? strip - 1 : strip + 1, after = kUp ? strip + 1 : strip - 1;
      const auto link_with = [&](int other) {
        if (other < 0 || other >= strips) return kNone;
        return other / kStrips == strip / kStrips ? kStrip : kColumn;
      };
      links_ = {kept(link_with(before)), kept(link_with(after)), columns_ + (before + kStrips) / kStrips % 2 * steps_,
                columns_ + (strip + kStrips) / kStrips % 2 * steps_};  // a panel reads one while it writes the other
      visit(strip * 32 + lane_, strip < strips, [&](Sweep& sweep) { run(sweep); });
      if (panels > 1) __syncthreads();  // a column is written before it is read
    }
  }

 private:
  static constexpr bool kUp = Sweep::kDirection == Direction::kUp;
  static constexpr int kFirst = kUp ? 0 : 31;  // the lane that hears other strips; the last one is heard
  static constexpr int kHalf = kAhead / 2;

  // With what a strip shares an edge: nothing, a strip of this panel, or one of another panel, by way of a column.
  enum Link : int { kNone, kStrip, kColumn };
  struct Links {
    int before, after;
    Message *column_before, *column_after;
  };

  __device__ void run(Sweep& sweep) {
    typename Sweep::Item items[kAhead];
    sweep.before_loads(kAhead);
#pragma unroll
    for (int j = 0; j < kAhead; j++) items[j] = sweep.load(j);
    if (links_.before == kNone && lane_ == kFirst)
      for (int j = 0; j < kHandOver; j++) in_.write(j, sweep.nothing());
    int start = 0;
    for (; start + kAhead <= steps_; start += kAhead) few_steps<true>(sweep, items, start);
    if (start < steps_) few_steps<false>(sweep, items, start);
  }

  // kAhead steps, the last time perhaps less. The loop is not longer than that: the compiler brings a use as near to
  // its load as it can, and cannot bring it into the pass before.
  template <bool kIsFull>
  __device__ void few_steps(Sweep& sweep, typename Sweep::Item (&items)[kAhead], int start) {
    const int end = kIsFull ? start + kAhead : steps_, first_message = start % kHandOver;
    const bool hears = lane_ == kFirst, tells = lane_ == 31 - kFirst && links_.after != kNone;
    if (first_message == 0) begin_hand_over(start);
    sweep.before_loads(end + kAhead);
    Message next = sweep.nothing();
    if (hears) next = in_.read(first_message);
#pragma unroll
    for (int j = 0; j < kAhead; j++) {
      if (start + j >= end) break;
      const Message said = sweep.send(items[j]);
      Message heard = from_neighbour<Sweep::kDirection>(said);
      if (hears) {
        heard = next;
        if (j + 1 < kAhead && start + j + 1 < end) next = in_.read(first_message + j + 1);
      }
      if (tells) out_.write(first_message + j, said);
      sweep.receive(start + j, items[j], heard);
      // In halves: loads that are waited for separately need a counter each, and there are few.
      if (kIsFull && j % kHalf == kHalf - 1) {
#pragma unroll
        for (int i = j + 1 - kHalf; i <= j; i++) items[i] = sweep.load(start + i + kAhead);
      }
    }
    if (!kIsFull || end % kHandOver == 0 || end == steps_) end_hand_over(start / kHandOver * kHandOver, end);
    sweep.after(end);
  }

  __device__ void begin_hand_over(int start) {
    if (links_.before == kStrip) in_.full.wait_for(in_.stage(), in_.round());
    if (links_.after == kStrip) out_.empty.wait_for(out_.stage(), out_.round() - 1);
    if (links_.before != kColumn) return;
    if (lane_ < kHandOver && start + lane_ < steps_) in_.write(lane_, links_.column_before[start + lane_]);
    __syncwarp();
  }

  __device__ void end_hand_over(int start, int end) {
    if (links_.after == kColumn) {
      __syncwarp();
      if (lane_ < end - start) links_.column_after[start + lane_] = out_.read(lane_);
    }
    if (links_.before == kColumn || links_.after == kColumn) __syncwarp();  // before the stage is used again
    if (links_.before == kStrip) {
      if (lane_ == kFirst) in_.empty.complete(in_.stage());
      in_.hand_over();
    }
    if (links_.after == kStrip) {
      if (lane_ == 31 - kFirst) out_.full.complete(out_.stage());
      out_.hand_over();
    }
  }

  const int lane_ = threadIdx.x % 32, warp_ = threadIdx.x / 32;
  Edge<Message, kHandOver> in_, out_;
  Message* columns_;
  Links links_;
  int steps_;
};

}  // namespace rnnt::cuda
