#include <xmmintrin.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "checker.h"
#include "module.h"
#include "report.h"
#include "scheduler.h"

namespace emulator {
namespace {

uint32_t seed_of_process() {
  const char* given = getenv("RNNT_EMULATOR_SEED");
  return given ? static_cast<uint32_t>(strtoul(given, nullptr, 10)) : std::random_device()();
}

struct Settings {
  Order order = Order::kRandom;
  uint32_t seed = seed_of_process();
  int preemption = 0;
  int resident = 32;  // blocks at a time: few, so that whoever waits for blocks which find no place is seen

  std::string text() const {
    const char* names[] = {"forward", "reverse", "random"};
    return std::string("emulator: ") + names[static_cast<int>(order)] + " order, seed " + std::to_string(seed) +
           ", preemption " + std::to_string(preemption) + ", " + std::to_string(resident) + " resident blocks";
  }
} settings;

uint64_t random_state;

// Denormals are zero on the device (-ftz=true). The processor knows no difference between float and double here.
class FlushToZero {
 public:
  FlushToZero() { _mm_setcsr(saved_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_ = _mm_getcsr();
};

// The one place that shared memory has goes from block to block; what else of the library is thread-local is put back
// at the end.
class SharedMemoryTurns {
 public:
  SharedMemoryTurns() : saved_(memory_.data, memory_.data + memory_.bytes) {}
  ~SharedMemoryTurns() { std::copy(saved_.begin(), saved_.end(), memory_.data); }

  void give_to(Block& block) {
    if (owner_ == &block) return;
    if (owner_) owner_->shared.assign(memory_.data, memory_.data + memory_.bytes);
    if (block.is_started)
      std::copy(block.shared.begin(), block.shared.end(), memory_.data);
    else
      memset(memory_.data, 0xff, memory_.bytes);  // NaN to whom reads it as a number
    owner_ = &block;
  }
  void forget_owner() { owner_ = nullptr; }

 private:
  const SharedMemory memory_ = shared_memory();
  const std::vector<char> saved_;
  Block* owner_ = nullptr;
};

// The blocks of a launch that are resident: started in the order of their numbers, as places become free.
class Device {
 public:
  explicit Device(const Launch& launch) : launch_(launch), total_(static_cast<unsigned>(launch.grid.count())) {
    constexpr int kMaxStacks = 16384;
    const int threads = static_cast<int>(launch.block.count());
    const int places = std::clamp(settings.resident, 1, kMaxStacks / threads);
    for (int i = places; i-- > 0;) {
      if (static_cast<int>(pool.size()) <= i) pool.resize(i + 1);
      if (!pool[i]) pool[i] = std::make_unique<Block>();
      pool[i]->stacks = i * threads;
      free_.push_back(pool[i].get());
    }
  }

  // Whether all blocks came to their end; if not, it has been reported, why.
  bool run() {
    unsigned idle = 0;
    for (fill_places(); !resident_.empty(); fill_places()) {
      Block& block = *resident_[choose()];
      switch (run_for_a_while(block)) {
        case Outcome::kFinished: finish(block); [[fallthrough]];
        case Outcome::kMoved: idle = 0; break;
        case Outcome::kIdle:
          if (++idle < 1000 + 20 * resident_.size()) break;
          [[fallthrough]];
        case Outcome::kStuck: report_deadlock(); return false;
        case Outcome::kAbandoned: return false;
      }
    }
    return true;
  }

 private:
  void fill_places() {
    while (next_ < total_ && !free_.empty()) {
      Block* const block = free_.back();
      free_.pop_back();
      block->launch = &launch_, block->number = next_++, block->is_started = false;
      block->idle_since = ~uint64_t{0};
      resident_.push_back(block);
    }
  }

  // The next in turn, or any; one that may get on, if there is one.
  size_t choose() {
    const size_t n = resident_.size(), step = settings.order == Order::kReverse ? n - 1 : 1;
    last_ = settings.order == Order::kRandom ? random_below(n) : (last_ + step) % n;
    for (size_t i = 0; i < n && resident_[last_]->idle_since == times_told(); i++) last_ = (last_ + step) % n;
    return last_;
  }

  Outcome run_for_a_while(Block& block) {
    shared_.give_to(block);
    if (!block.is_started) start_block(block, settings.order);
    if (kChecks) checker::enter_block(block.number, block.size);
    return run_block(block);
  }

  void finish(Block& block) {
    if (kChecks) checker::finish_block(block.number);
    shared_.forget_owner();
    resident_.erase(resident_.begin() + static_cast<long>(last_));
    free_.push_back(&block);
  }

  void report_deadlock() {
    constexpr size_t kTold = 4;
    std::string text;
    for (size_t i = 0; i < std::min(resident_.size(), kTold); i++) text += waits_of(*resident_[i]) + "; ";
    report("deadlock", text + std::to_string(resident_.size()) + " blocks are resident, " +
                           std::to_string(total_ - next_) + " more have no place");
  }

  static inline std::vector<std::unique_ptr<Block>> pool;

  const Launch& launch_;
  const unsigned total_;
  unsigned next_ = 0;
  std::vector<Block*> resident_, free_;
  size_t last_ = 0;
  SharedMemoryTurns shared_;
};

void refuse_bad_shape(const Launch& launch) {
  const auto fits = [](dim3 n, uint64_t y, uint64_t z) { return n.count() && n.y <= y && n.z <= z; };
  if (fits(launch.grid, 65535, 65535) && launch.grid.x <= INT32_MAX && fits(launch.block, kMaxThreads, 64) &&
      launch.block.count() <= kMaxThreads)
    return;
  const auto text = [](dim3 n) {
    return std::to_string(n.x) + " x " + std::to_string(n.y) + " x " + std::to_string(n.z);
  };
  throw std::runtime_error("emulator: invalid launch of " + text(launch.grid) + " blocks of " + text(launch.block) +
                           " threads");
}

std::mutex one_launch_at_a_time;

}  // namespace

uint64_t random_below(uint64_t n) {
  random_state ^= random_state >> 12, random_state ^= random_state << 25, random_state ^= random_state >> 27;
  return (random_state * 0x2545f4914f6cdd1d >> 32) * n >> 32;
}

bool is_random_order() { return settings.order == Order::kRandom; }
int preemption() { return settings.preemption; }

void run(const Launch& launch) {
  const std::lock_guard lock(one_launch_at_a_time);
  refuse_bad_shape(launch);
  // The same for every launch, so that one can be repeated alone.
  random_state = (uint64_t{settings.seed} + 1) * 0x9e3779b97f4a7c15;
  const FlushToZero flush;
  Device device(launch);
  if (kChecks) checker::start_launch(launch);
  const bool is_whole = device.run();
  if (kChecks && is_whole) checker::finish_launch();
  throw_reports(settings.text());
}

}  // namespace emulator

// order: 0 forward, 1 reverse, 2 random. preemption: in a check build one of so many accesses lets others run; 0: none.
extern "C" __attribute__((visibility("default"))) void emulator_configure(int order, unsigned seed, int preemption,
                                                                          int resident) {
  emulator::settings = {static_cast<emulator::Order>(order), seed, preemption, resident};
}
