// What of other threads' work a thread may rely on: barriers, __syncwarp and what is told by flags order accesses to
// memory, nothing else does.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace emulator {

// Every thread counts its own time, one unit from one synchronisation to the next. An access at time c of thread i
// comes before what thread j does now if j has heard of i's time c.
using Times = std::shared_ptr<const std::vector<uint32_t>>;                   // by thread of a block; null: none
using News = std::shared_ptr<const std::vector<std::pair<unsigned, Times>>>;  // by block, ascending; null: none

News joined(const News&, const News&);

// Of the threads of one block.
class Clocks {
 public:
  void start(unsigned block, int threads);

  uint32_t now(int thread) const { return time_[thread]; }
  bool has_heard(int thread, unsigned of_block, int of, uint32_t time) const;

  void barrier();
  void sync_warp(int first, unsigned lanes);
  News release(int thread);  // all that the thread knows and has done
  void acquire(int thread, const News&);

 private:
  struct Heard {
    Times own;    // since the last barrier
    News others;  // of other blocks
    News last;    // whoever polls a flag acquires the same again and again
  };

  unsigned block_;
  std::vector<uint32_t> time_;
  std::vector<Heard> heard_;
  uint32_t barrier_;  // everyone has heard of everyone's time up to this
};

}  // namespace emulator
