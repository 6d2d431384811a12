// This shared library as the loader sees it: where the kernels' shared memory and the program's own data are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// All __shared__ variables of all kernels, as the calling thread has them: the library's thread-local block.
struct SharedMemory {
  char* data;
  size_t bytes;
};
SharedMemory shared_memory();

// Of the thread that the running launch is on.
bool is_shared(const void*);

// Whether p is in the library's code or data: constants, and the emulator's own variables.
bool is_in_module(uintptr_t p);

}  // namespace emulator
