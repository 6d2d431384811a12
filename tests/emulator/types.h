// What every part of the emulator knows.
#pragma once

#include <cstddef>
#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;

  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  uint64_t count() const { return uint64_t{x} * y * z; }
};

namespace emulator {

// Whether the kernels are compiled with the sanitizers' calls, and these are answered by the checker.
#if defined(EMULATOR_CHECKS)
constexpr bool kChecks = true;
#else
constexpr bool kChecks = false;
#endif

constexpr int kWarp = 32, kMaxThreads = 1024;
// A small device, as a part of a large one may be: so that whoever waits for blocks that find no place is seen.
constexpr int kMultiprocessors = 16, kPlaces = 2 * kMultiprocessors;

class Memory;

struct Launch {
  dim3 grid, block;
  void (*run_thread)(const void* call);
  const void* call;
  size_t call_bytes;
  Memory* memory;  // what the kernel may touch; looked at in a check build alone
};

// Runs the whole grid. Throws std::runtime_error with what the checkers found.
void run(const Launch&);

}  // namespace emulator
