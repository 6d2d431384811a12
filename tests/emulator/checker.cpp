#include "checker.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "clocks.h"
#include "module.h"
#include "report.h"
#include "scheduler.h"

namespace emulator::checker {
namespace {

using Flags = std::unordered_map<const int*, News>;  // what is to be learnt from each

// Of a cell of shared memory. Threads that write smaller elements side by side would be said to race.
constexpr unsigned kSharedGranule = 4;

// What is known of one block while it is resident. The region is the block's shared memory; it and what belongs to it
// go from block to block, and cells of blocks before are recognised by their number.
struct BlockState {
  unsigned number;
  int threads;
  Clocks clocks;
  Region shared;
  Flags flags;                    // in shared memory
  std::vector<uint32_t> readers;  // of shared memory

  explicit BlockState(const SharedMemory& memory)
      : shared("shared memory", memory.data, memory.bytes, kSharedGranule, Use::kScratch, Content::kUnwritten) {}
};

Memory* memory;
uintptr_t call, call_end;  // a kernel's arguments, before they are copied to its stack
SharedMemory shared_place;
std::unordered_map<unsigned, std::unique_ptr<BlockState>> resident;
std::vector<std::unique_ptr<BlockState>> unused;
BlockState* block;  // the running one
Flags flags;        // in global memory
// Of global memory. For cells that several threads of a block have read since the last write: the times of their reads,
// by thread. For those that several blocks have read: the reads of all blocks but the last.
std::vector<uint32_t> readers;
std::vector<std::vector<Access>> other_readers;

uint32_t block_of(const Access& access) { return access.thread / kMaxThreads; }
int thread_of(const Access& access) { return static_cast<int>(access.thread % kMaxThreads); }
uint32_t id_of(unsigned block, int thread) { return block * kMaxThreads + static_cast<uint32_t>(thread); }

void access_base() {}  // any address within the library
const void* code_of(const Access& access) {
  return access.code ? reinterpret_cast<const char*>(&access_base) + static_cast<int32_t>(access.code) : nullptr;
}
Access access_now(const void* code) {
  const auto distance = static_cast<const char*>(code) - reinterpret_cast<const char*>(&access_base);
  return {id_of(block->number, self->number), block->clocks.now(self->number), static_cast<uint32_t>(distance)};
}

bool comes_before(const Access& access) {
  return !access.time || block->clocks.has_heard(self->number, block_of(access), thread_of(access), access.time);
}

void report_race(const char* kind, const Region& region, uintptr_t p, const Access& other, const void* code) {
  if (!is_news(kind, code)) return;
  report(kind,
         region.name + ", byte " + std::to_string(p - region.start) + ", with thread " +
             std::to_string(thread_of(other)) + " of block " + std::to_string(block_of(other)),
         code, code_of(other));
}

std::vector<uint32_t>& readers_of(const Region& region) { return &region == &block->shared ? block->readers : readers; }

// All reads since the last write.
template <typename Visit>
void each_read(const Region& region, const Cell& cell, Visit visit) {
  if (!cell.read.time) return;
  visit(cell.read);
  for (int thread = 0; cell.block_reads && thread < block->threads; thread++) {
    const uint32_t time = readers_of(region)[cell.block_reads - 1 + thread];
    if (time) visit({id_of(block_of(cell.read), thread), time, 0});
  }
  if (!cell.other_reads) return;
  for (const Access& read : other_readers[cell.other_reads - 1]) visit(read);
}

void remember_read(const Region& region, Cell& cell, const Access& now) {
  if (cell.read.time && block_of(cell.read) != block->number) {
    std::vector<Access> reads;
    each_read(region, cell, [&](const Access& read) { reads.push_back(read); });
    other_readers.push_back(std::move(reads));
    cell.other_reads = static_cast<uint32_t>(other_readers.size()), cell.block_reads = 0;
  } else if (cell.read.time && cell.read.thread != now.thread) {
    std::vector<uint32_t>& times = readers_of(region);
    if (!cell.block_reads) {
      cell.block_reads = static_cast<uint32_t>(times.size()) + 1;
      times.resize(times.size() + block->threads);
    }
    times[cell.block_reads - 1 + thread_of(cell.read)] = cell.read.time;
  }
  cell.read = now;
}

enum class Kind { kRead, kWrite, kAcquire, kRelease };

void check_cell(Region& region, Cell& cell, uintptr_t p, Kind kind, const void* code) {
  const bool is_write = kind == Kind::kWrite || kind == Kind::kRelease, is_flag = kind >= Kind::kAcquire;
  const char* unwritten = "read of unwritten memory";
  if (!is_write && region.content_at(p) != Content::kWritten && is_news(unwritten, code))
    report(unwritten, region.name + ", byte " + std::to_string(p - region.start), code);
  if (!region.is_writable()) return;
  if (!(is_flag && cell.is_flag) && !comes_before(cell.write))
    report_race(is_write ? "race (write after write)" : "race (read after write)", region, p, cell.write, code);
  if (kind == Kind::kRead) remember_read(region, cell, access_now(code));
  if (!is_write) return;
  each_read(region, cell, [&](const Access& read) {
    if (!comes_before(read)) report_race("race (write after read)", region, p, read, code);
  });
  region.touch(p);
  cell = {};
  cell.write = access_now(code), cell.is_flag = is_flag;
  cell.has_content = true, cell.content = Content::kWritten;
}

void forget_block_before(Cell& cell) {
  const Access& any = cell.read.time ? cell.read : cell.write;
  if (any.time && block_of(any) != block->number) cell = {};
}

[[noreturn]] void refuse(const char* kind, const std::string& detail, const void* code) {
  report(kind, detail, code);
  abandon_launch();
}

void check(const void* address, size_t bytes, Kind kind, const void* code) {
  const uintptr_t p = reinterpret_cast<uintptr_t>(address);
  const bool is_write = kind == Kind::kWrite || kind == Kind::kRelease, in_block = block->shared.contains(p);
  const char* out_of_bounds = is_write ? "out-of-bounds write" : "out-of-bounds read";
  Region* const region = in_block ? &block->shared : memory->find(p);
  if (!region) {
    if (is_in_module(p) || (!is_write && p - call < call_end - call)) return;
    refuse(out_of_bounds, memory->neighbour_of(p), code);
  }
  if (p + bytes > region->end) refuse(out_of_bounds, "over the end of " + region->name, code);
  if (is_write && !region->is_writable()) refuse("write to an input", region->name, code);
  for (uintptr_t at = p; at < p + bytes; at += region->granule) {
    Cell& cell = region->cell_at(at);
    if (in_block) forget_block_before(cell);
    if (region->content_at(at) == Content::kOutside)
      refuse(out_of_bounds, "between the parts of " + region->name, code);
    check_cell(*region, cell, at, kind, code);
  }
}

Flags& flags_of(const int* flag) { return is_shared(flag) ? block->flags : flags; }

}  // namespace

void start_launch(const Launch& launch) {
  memory = launch.memory;
  memory->start();
  call = reinterpret_cast<uintptr_t>(launch.call), call_end = call + launch.call_bytes;
  shared_place = shared_memory();
  resident.clear(), unused.clear(), flags.clear(), readers.clear(), other_readers.clear();
}

void enter_block(unsigned number, int threads) {
  std::unique_ptr<BlockState>& state = resident[number];
  if (!state) {
    if (unused.empty()) unused.push_back(std::make_unique<BlockState>(shared_place));
    state = std::move(unused.back());
    unused.pop_back();
    state->number = number, state->threads = threads;
    state->clocks.start(number, threads);
    state->flags.clear(), state->readers.clear();
  }
  block = state.get();
}

void finish_block(unsigned number) {
  const auto found = resident.find(number);
  unused.push_back(std::move(found->second));
  resident.erase(found);
}

void finish_launch() { memory->finish(); }

void barrier() { block->clocks.barrier(); }
void sync_warp(int first_thread, unsigned lanes) { block->clocks.sync_warp(first_thread, lanes); }

void access(const void* address, size_t bytes, bool is_write, const void* code) {
  if (!self || self->owns(reinterpret_cast<uintptr_t>(address))) return;
  if (preemption() && random_below(preemption()) == 0) let_others_run();
  check(address, bytes, is_write ? Kind::kWrite : Kind::kRead, code);
}

void store_release(const int* flag, const void* code) {
  check(flag, sizeof *flag, Kind::kRelease, code);
  flags_of(flag)[flag] = block->clocks.release(self->number);
}

// Whoever reads the sum learns from all that added to it.
void add_release(const int* flag, const void* code) {
  check(flag, sizeof *flag, Kind::kAcquire, code);
  check(flag, sizeof *flag, Kind::kRelease, code);
  News& news = flags_of(flag)[flag];
  news = joined(news, block->clocks.release(self->number));
}

void load_acquire(const int* flag, const void* code) {
  check(flag, sizeof *flag, Kind::kAcquire, code);
  const auto found = flags_of(flag).find(flag);
  if (found != flags_of(flag).end()) block->clocks.acquire(self->number, found->second);
}

}  // namespace emulator::checker
