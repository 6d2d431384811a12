// The threads of the blocks that are resident: each a fiber that runs until it has to wait for others. One block runs
// at a time, and gives way to another where all it does is look whether the others have got on.
#pragma once

#include <string>
#include <vector>

#include "collectives.h"
#include "fiber.h"
#include "types.h"

namespace emulator {

enum class State { kReady, kAtWarp, kAtBlock, kExited };

struct Block;

// Lies at the top of its own stack.
struct Thread {
  uint3 position;
  int number, lane;  // in the block, in the warp
  Block* block;
  State state;
  Collective waits_for;
  void* stack_pointer;
  char* stack;
  const int* polled;  // the flag it looked at last, and what it saw
  int seen;

  bool owns(uintptr_t p) const { return p - reinterpret_cast<uintptr_t>(stack) < kStackBytes; }
};

// Threads that can go on. In random order any may be next; in a block that goes deep, mostly those whom the last
// collective released, so that a warp runs as far ahead of the others as it can.
class Queue {
 public:
  void start(bool is_random, bool is_deep) { first_ = count_ = 0, is_random_ = is_random, is_deep_ = is_deep; }
  unsigned count() const { return count_; }
  void push(Thread* thread) { at(count_++) = thread; }
  Thread* take();

 private:
  Thread*& at(unsigned i) { return threads_[(first_ + i) % kMaxThreads]; }

  Thread* threads_[kMaxThreads];
  unsigned first_, count_;
  bool is_random_, is_deep_;
};

// Bits of lanes.
struct Warp {
  unsigned existing, waiting, exited;
};

struct Block {
  const Launch* launch;
  unsigned number;
  int size, alive, at_barrier;
  bool backwards;  // threads are started and released from the last to the first
  Thread* threads[kMaxThreads];
  Warp warps[kMaxThreads / kWarp];
  Queue queue;
  std::vector<Thread*> parked;  // saw nothing new where they look
  std::vector<char> shared;     // what is in its shared memory while another block runs

  bool is_started = false;
  uint64_t idle_since;  // times_told() when all its threads were parked
  int stacks;           // where its stacks begin
};

enum class Order { kForward, kReverse, kRandom };
enum class Outcome {
  kFinished,
  kMoved,      // and not through yet
  kIdle,       // found nothing new where its threads look
  kStuck,      // waits for its own threads, none of which can go on
  kAbandoned,  // and the launch with it
};

void start_block(Block&, Order);
Outcome run_block(Block&);  // until it is through, or only other blocks can help it, or for a while
std::string waits_of(const Block&);

extern Thread* self;  // who runs; null: the host
std::string name_of(const Thread&);
std::string place_of(const Collective&);

// Of the running thread.
void run_next();        // after it has entered where it waits; returns when it may go on
void let_others_run();  // of the block
void give_way();        // to other blocks too
void exit_thread();
[[noreturn]] void abandon_launch();  // after an access that must not be carried out

void go_on(Thread&);         // it has waited enough
void note_progress();        // something happened that others of the block may wait for
void note_told();            // and other blocks
uint64_t times_told();       // in this process
void poll(const int* flag);  // before a look at a flag: whoever would see the same again is parked first
void wake(const int* flag);  // whoever is parked for it

uint64_t random_below(uint64_t n);
bool is_random_order();
int preemption();  // a thread is interrupted at one of so many accesses; 0: never

}  // namespace emulator
