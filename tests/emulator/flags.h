// What threads tell each other outside of collectives: numbers in memory, of which the reader of a value may rely on
// all that the writer did before it.
#pragma once

#include "types.h"

namespace emulator {

void store_release(int* flag, int value);
void add_release(int* flag, int value);
int load_acquire(const int* flag);
void report_skipped_phase(int number, int completed);

}  // namespace emulator

// launch.cuh says what these do.
class Phases {
 public:
  void start() { completed_ = 0; }
  void complete() { emulator::add_release(&completed_, 1); }
  void wait_for(int number) const {
    // The hardware knows no more of a phase than whether its number is even.
    for (int ahead = 0; ahead % 2 == 0;) {
      ahead = emulator::load_acquire(&completed_) - number;
      if (ahead != 0 && ahead != 1) emulator::report_skipped_phase(number, number + ahead);
    }
  }

 private:
  alignas(8) int completed_;
};

inline void tell(int* number, int value) { emulator::store_release(number, value); }
inline void count(int* number) { emulator::add_release(number, 1); }
inline int hear(const int* number) { return emulator::load_acquire(number); }
