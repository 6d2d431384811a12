#include "flags.h"

#include <string>

#include "checker.h"
#include "module.h"
#include "report.h"
#include "scheduler.h"

namespace emulator {
namespace {

// In random order other blocks sometimes hear of it at once.
void told(const int* flag) {
  wake(flag);
  if (is_shared(flag)) return note_progress();
  note_told();
  if (is_random_order() && random_below(4) == 0) give_way();
}

}  // namespace

void store_release(int* flag, int value) {
  if (kChecks) checker::store_release(flag, __builtin_return_address(0));
  *flag = value;
  told(flag);
}

void add_release(int* flag, int value) {
  if (kChecks) checker::add_release(flag, __builtin_return_address(0));
  *flag += value;
  told(flag);
}

int load_acquire(const int* flag) {
  poll(flag);
  if (kChecks) checker::load_acquire(flag, __builtin_return_address(0));
  const int value = *flag;
  if (self->polled == flag && self->seen != value) note_progress();
  self->polled = flag, self->seen = value;
  return value;
}

void report_skipped_phase(int number, int completed) {
  report("skipped phase",
         "waits for number " + std::to_string(number) + " when " + std::to_string(completed) + " are complete");
  abandon_launch();
}

}  // namespace emulator
