#include "scheduler.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "checker.h"
#include "report.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Thread* self;

namespace {

Thread host;  // the launching thread, for the way back
// Of the running block, since it was switched to.
bool is_abandoned, gives_way, has_moved;

uint64_t told;

void switch_to(Thread& to) {
  Thread& from = self ? *self : host;
  if (&to == &from) return;
  self = &to == &host ? nullptr : &to;
  threadIdx = to.position;
  emulator_switch(&from.stack_pointer, to.stack_pointer);
}

void thread_main() noexcept {  // nothing may be unwound beyond the bottom of a fiber's stack
  const Launch& launch = *self->block->launch;
  launch.run_thread(launch.call);
  exit_thread();
  run_next();
}

}  // namespace

void run_next() {
  Queue& queue = self->block->queue;
  switch_to(gives_way || !queue.count() ? host : *queue.take());
}

Thread* Queue::take() {
  if (!is_random_) {
    Thread* const next = at(0);
    first_ = (first_ + 1) % kMaxThreads, count_--;
    return next;
  }
  const unsigned choice = is_deep_ && count_ > kWarp ? kWarp : count_;
  std::swap(at(count_ - 1), at(count_ - 1 - static_cast<unsigned>(random_below(choice))));
  return at(--count_);
}

void start_block(Block& block, Order order) {
  const Launch& launch = *block.launch;
  block.is_started = true;
  block.backwards = order == Order::kReverse;
  block.size = block.alive = static_cast<int>(launch.block.count()), block.at_barrier = 0;
  block.parked.clear();
  block.queue.start(order == Order::kRandom, random_below(2));
  for (int i = 0; i < block.size; i++) {
    char* const stack = stack_of(block.stacks + i);
    Thread* const thread = reinterpret_cast<Thread*>(stack + kStackBytes) - 1;
    const unsigned x = launch.block.x, y = launch.block.y, n = static_cast<unsigned>(i);
    *thread = {{n % x, n / x % y, n / x / y}, i, i % kWarp, &block, State::kReady, {}, nullptr, stack, nullptr, 0};
    // Tops at different distances from the stacks' ends: else all of them would compete for the same lines of the
    // cache.
    thread->stack_pointer = ready_to_enter(stack, sizeof(Thread) + n * 320 % 8192, thread_main);
    block.threads[i] = thread;
  }
  for (int first = 0; first < block.size; first += kWarp) {
    const int lanes = block.size - first;
    block.warps[first / kWarp] = {lanes >= kWarp ? ~0u : (1u << lanes) - 1, 0, 0};
  }
  for (int i = 0; i < block.size; i++) block.queue.push(block.threads[block.backwards ? block.size - 1 - i : i]);
}

Outcome run_block(Block& block) {
  const dim3 grid = gridDim = block.launch->grid;
  blockDim = block.launch->block;
  blockIdx = {block.number % grid.x, block.number / grid.x % grid.y, block.number / grid.x / grid.y};
  is_abandoned = gives_way = has_moved = false;
  for (Thread* thread : block.parked) block.queue.push(thread);  // to look again
  block.parked.clear();
  switch_to(*block.queue.take());
  if (is_abandoned) return Outcome::kAbandoned;
  if (!block.alive) return Outcome::kFinished;
  if (gives_way) return Outcome::kMoved;
  if (block.parked.empty()) return Outcome::kStuck;
  block.idle_since = told;
  return has_moved ? Outcome::kMoved : Outcome::kIdle;
}

std::string place_of(const Collective& collective) {
  const std::string file = collective.place.file_name();
  return std::string(collective.name) + " at " + file.substr(file.rfind('/') + 1) + ":" +
         std::to_string(collective.place.line());
}

std::string waits_of(const Block& block) {
  std::map<std::string, int> waits;
  for (int i = 0; block.is_started && i < block.size; i++) {
    const Thread& thread = *block.threads[i];
    switch (thread.state) {
      case State::kReady: waits[thread.polled ? "poll a flag" : "can go on"]++; break;
      case State::kExited: waits["have exited"]++; break;
      default: waits["wait in " + place_of(thread.waits_for)]++;
    }
  }
  std::string text = "block " + std::to_string(block.number);
  const char* separator = ": ";
  for (const auto& [what, count] : waits) {
    text += separator + std::to_string(count) + " threads " + what;
    separator = ", ";
  }
  return text;
}

std::string name_of(const Thread& thread) {
  return "thread " + std::to_string(thread.number) + " of block " + std::to_string(thread.block->number);
}

void let_others_run() {
  self->block->queue.push(self);
  run_next();
}

void give_way() {
  gives_way = true;
  let_others_run();
}

void abandon_launch() {
  is_abandoned = gives_way = true;
  run_next();
  abort();
}

void go_on(Thread& thread) {
  thread.state = State::kReady;
  thread.block->queue.push(&thread);
}

void note_progress() { has_moved = true; }
void note_told() { note_progress(), told++; }
uint64_t times_told() { return told; }

void poll(const int* flag) {
  if (self->polled != flag || self->seen != *flag) return;
  self->block->parked.push_back(self);
  run_next();
}

void wake(const int* flag) {
  Block& block = *self->block;
  std::erase_if(block.parked, [&](Thread* thread) {
    if (thread->polled != flag) return false;
    block.queue.push(thread);
    return true;
  });
}

}  // namespace emulator
