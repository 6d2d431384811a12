// What the threads of a warp or of a block do together. Each hands in a request and is suspended until all have come;
// the last to come works out everybody's result.
#pragma once

#include <cstring>
#include <source_location>

#include "types.h"

namespace emulator {

using Place = std::source_location;

// Answers the n requests; null are those of threads that take no part.
using Resolve = void (*)(void** requests, int n);

struct Collective {
  const char* name;
  Place place;
  unsigned mask;  // of lanes; of a block: not used
  void* request;
  Resolve resolve;  // may be null

  bool matches(const Collective& other) const {
    return name == other.name && mask == other.mask && place.line() == other.place.line();
  }
};

void meet_warp(const Collective&);
void sync_warp(const Collective&);  // and orders what was done in memory before and after
void meet_block(const Collective&);
int current_lane();
void report_lane_without_part(int lane, int from);

template <typename T>
struct Shuffle {
  T in, out;
  int from;
};

template <typename T>
T shuffle(const char* name, Place place, unsigned mask, T value, int from) {
  Shuffle<T> mine = {value, value, from};
  meet_warp({name, place, mask, &mine, [](void** requests, int n) {
               for (int lane = 0; lane < n; lane++) {
                 auto* const to = static_cast<Shuffle<T>*>(requests[lane]);
                 if (!to) continue;
                 auto* const from = to->from < n ? static_cast<Shuffle<T>*>(requests[to->from]) : nullptr;
                 if (from) {
                   to->out = from->in;
                 } else {
                   report_lane_without_part(lane, to->from);
                   memset(static_cast<void*>(&to->out), 0xff, sizeof(T));
                 }
               }
             }});
  return mine.out;
}

inline void or_all(void** requests, int n) {
  unsigned all = 0;
  for (int i = 0; i < n; i++) all |= requests[i] ? *static_cast<unsigned*>(requests[i]) : 0;
  for (int i = 0; i < n; i++)
    if (requests[i]) *static_cast<unsigned*>(requests[i]) = all;
}

inline unsigned ballot(const char* name, Place place, unsigned mask, bool predicate) {
  unsigned votes = predicate ? 1u << current_lane() : 0;
  meet_warp({name, place, mask, &votes, or_all});
  return votes;
}

}  // namespace emulator

#define EMULATOR_PLACE emulator::Place place = emulator::Place::current()

inline void __syncthreads(EMULATOR_PLACE) { emulator::meet_block({"__syncthreads", place, 0, nullptr, nullptr}); }
inline int __syncthreads_or(int predicate, EMULATOR_PLACE) {
  unsigned any = predicate != 0;
  emulator::meet_block({"__syncthreads_or", place, 0, &any, emulator::or_all});
  return static_cast<int>(any);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_PLACE) {
  emulator::sync_warp({"__syncwarp", place, mask, nullptr, nullptr});
}

// Lanes exchange within groups of `width`; who would reach beyond its group keeps its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, EMULATOR_PLACE) {
  const int first = emulator::current_lane() & ~(width - 1);
  return emulator::shuffle("__shfl_sync", place, mask, value, first | (from & (width - 1)));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, EMULATOR_PLACE) {
  const int lane = emulator::current_lane(), from = lane - static_cast<int>(distance);
  return emulator::shuffle("__shfl_up_sync", place, mask, value, from < (lane & ~(width - 1)) ? lane : from);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, EMULATOR_PLACE) {
  const int lane = emulator::current_lane(), from = lane + static_cast<int>(distance);
  return emulator::shuffle("__shfl_down_sync", place, mask, value, from > (lane | (width - 1)) ? lane : from);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int pattern, int width = 32, EMULATOR_PLACE) {
  const int lane = emulator::current_lane(), from = lane ^ pattern;
  return emulator::shuffle("__shfl_xor_sync", place, mask, value, from > (lane | (width - 1)) ? lane : from);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_PLACE) {
  return emulator::ballot("__ballot_sync", place, mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_PLACE) {
  return emulator::ballot("__any_sync", place, mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMULATOR_PLACE) {
  return emulator::ballot("__all_sync", place, mask, !predicate) == 0;
}
