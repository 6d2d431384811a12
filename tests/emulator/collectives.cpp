#include "collectives.h"

#include "checker.h"
#include "report.h"
#include "scheduler.h"

namespace emulator {
namespace {

// The requests lie on everyone's stacks, where only their owners have business: the host may look at them.
void resolve(const Collective& collective, void** requests, int n) {
  Thread* const last = self;
  self = nullptr;
  if (collective.resolve) collective.resolve(requests, n);
  self = last;
}

// Releases the lanes that `one` waits with, if all of them have come. Lanes that wait for something else may still
// come.
void complete_warp(const Thread& one, bool orders_memory) {
  Block& block = *one.block;
  const int first = one.number - one.lane;
  Warp& warp = block.warps[first / kWarp];
  const Collective collective = one.waits_for;
  const unsigned wanted = collective.mask & warp.existing, coming = wanted & ~warp.exited;
  if (coming & ~warp.waiting) return;
  void* requests[kWarp] = {};
  for (int lane = 0; lane < kWarp; lane++) {
    if (!(coming >> lane & 1)) continue;
    const Thread& other = *block.threads[first + lane];
    if (!other.waits_for.matches(collective)) return;
    requests[lane] = other.waits_for.request;
  }
  if (wanted != coming) report("exited lanes", place_of(collective) + " names lanes that have exited");
  resolve(collective, requests, kWarp);
  if (kChecks && orders_memory) checker::sync_warp(first, coming);
  warp.waiting &= ~coming;
  for (int i = 0; i < kWarp; i++) {
    const int lane = block.backwards ? kWarp - 1 - i : i;
    if (coming >> lane & 1) go_on(*block.threads[first + lane]);
  }
}

void complete_block(Block& block) {
  if (!block.at_barrier || block.at_barrier < block.alive) return;
  void* requests[kMaxThreads];
  const Collective* common = nullptr;
  for (int i = 0; i < block.size; i++) {
    const Thread& thread = *block.threads[i];
    const bool waits = thread.state == State::kAtBlock;
    requests[i] = waits ? thread.waits_for.request : nullptr;
    if (!waits) continue;
    if (common && !common->matches(thread.waits_for))
      report("different barriers", place_of(*common) + ", " + place_of(thread.waits_for));
    common = &thread.waits_for;
  }
  if (block.alive < block.size) report("exited threads", place_of(*common) + " is not for all of the block");
  resolve(*common, requests, block.size);
  if (kChecks) checker::barrier();
  block.at_barrier = 0;
  for (int i = 0; i < block.size; i++) {
    Thread& thread = *block.threads[block.backwards ? block.size - 1 - i : i];
    if (thread.state == State::kAtBlock) go_on(thread);
  }
}

void meet_in_warp(const Collective& collective, bool orders_memory) {
  if (!(collective.mask >> self->lane & 1)) {
    report("mask without its caller", place_of(collective));
    abandon_launch();
  }
  self->state = State::kAtWarp, self->waits_for = collective;
  self->block->warps[self->number / kWarp].waiting |= 1u << self->lane;
  complete_warp(*self, orders_memory);
  run_next();
}

}  // namespace

void meet_warp(const Collective& collective) { meet_in_warp(collective, false); }
void sync_warp(const Collective& collective) { meet_in_warp(collective, true); }

void meet_block(const Collective& collective) {
  self->state = State::kAtBlock, self->waits_for = collective;
  self->block->at_barrier++;
  complete_block(*self->block);
  run_next();
}

// Whoever waits for this thread waits no longer, though that is a fault.
void exit_thread() {
  self->state = State::kExited;
  note_progress();
  Block& block = *self->block;
  block.alive--;
  Warp& warp = block.warps[self->number / kWarp];
  warp.exited |= 1u << self->lane;
  for (int lane = 0; lane < kWarp; lane++) {
    if (!(warp.waiting >> lane & 1)) continue;
    const Thread& other = *block.threads[self->number - self->lane + lane];
    if (other.waits_for.mask >> self->lane & 1) complete_warp(other, false);
  }
  complete_block(block);
}

int current_lane() { return self->lane; }

void report_lane_without_part(int lane, int from) {
  report("shuffle from a lane that takes no part", "lane " + std::to_string(lane) + " from " + std::to_string(from));
}

}  // namespace emulator
