// The part of CUDA's language that the kernels use, for a host compiler: launch.cuh includes this in place of the CUDA
// headers when RNNT_EMULATE is defined. A kernel is then an ordinary function, and launch() runs it once per thread of
// the grid (scheduler.h). In a check build it also learns what memory the kernel may touch (memory.h).
#pragma once

#include <math.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "collectives.h"
#include "flags.h"
#include "memory.h"
#include "params_memory.h"
#include "types.h"

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// One block runs at a time, so its shared memory may be static. That it is thread-local gathers it in one piece, the
// library's thread-local block, which is thereby known to the scheduler and the checker (module.h).
#define __shared__ static thread_local

// What differs from thread to thread and from block to block; the scheduler keeps them right for whoever runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define RNNT_DEVICE  // the core's arithmetic is that of a GPU (core/platform.h)

// Exact where the real one is only close.
inline float __fdividef(float a, float b) { return a / b; }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline void back_off() {}

inline int multiprocessors() { return emulator::kMultiprocessors; }

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, void* /*stream*/, Args&&... args) {
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
  } call{kernel, {std::forward<Args>(args)...}};
  const auto run_thread = [](const void* of) {
    std::apply(static_cast<const Call*>(of)->kernel, static_cast<const Call*>(of)->params);
  };
  emulator::Memory memory;
  if constexpr (emulator::kChecks) std::apply([&](const auto&... params) { declare(memory, params...); }, call.params);
  emulator::run({grid, block, run_thread, &call, sizeof call, &memory});
}
