// What the kernels use beyond plain CUDA C++, and the only <<<>>>. nvcc gets the real thing; the tests compile the same
// kernels for the host against an emulator of the device (RNNT_EMULATE), which offers the same names.
#pragma once

#if defined(RNNT_EMULATE)
#include "cuda_emulator.h"
#else
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

// Phases of work that one thread of a block completes and another waits for: a barrier in shared memory.
struct Phases {
  uint64_t barrier;
};

// A number in global memory by which blocks tell each other how far they are: what a thread did before it set or raised
// the number is seen by whoever reads that from it.
__device__ __forceinline__ void tell(int* number, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(number), "r"(value) : "memory");
}
__device__ __forceinline__ void count(int* number) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(number) : "memory");
}
__device__ __forceinline__ int hear(const int* number) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
  return value;
}

inline void check(cudaError_t error) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("rnnt_loss: CUDA error: ") + cudaGetErrorString(error));
}

// Between two looks at what another block has to do: whoever looks all the time is in its way.
__device__ __forceinline__ void back_off() { __nanosleep(100); }

// A function of the driver, which is not linked against; null where it has none of that name.
template <typename Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Function>(function);
}

// Of the current device; of the current context, where that has only some of them (a green context).
inline int multiprocessors() {
  int device, count;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  static const auto current = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent", 4000);
  static const auto resource =
      driver_function<CUresult (*)(CUcontext, CUdevResource*, CUdevResourceType)>("cuCtxGetDevResource", 12040);
  CUcontext context = nullptr;
  CUdevResource available;
  if (current && resource && current(&context) == CUDA_SUCCESS && context &&
      resource(context, &available, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS && available.sm.smCount > 0 &&
      available.sm.smCount < static_cast<unsigned>(count))
    count = static_cast<int>(available.sm.smCount);
  return count;
}

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, void* stream, Args&&... args) {
  if (blocks > INT32_MAX) throw std::runtime_error("rnnt_loss: too many rows for one launch");
  // clang-format off
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(std::forward<Args>(args)...);
  // clang-format on
  check(cudaGetLastError());
}
#endif

// 16 bytes at once. Left to itself the compiler takes a store of values it has just computed apart.
template <typename T>
__device__ __forceinline__ void store16(T* p, const T& value) {
  static_assert(sizeof(T) == 16 && alignof(T) == 16);
#if defined(RNNT_EMULATE)
  *p = value;
#else
  uint4 bits;
  memcpy(&bits, &value, sizeof bits);
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
#endif
}

// x, of which the compiler knows nothing: it has to keep it, where it would compute it anew at each use.
__device__ __forceinline__ int kept(int x) {
#if !defined(RNNT_EMULATE)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// The first of several T in shared memory, of which the i'th is at(i): its address, kept, which instructions of shared
// memory take, or on the host a pointer.
template <typename T>
class SharedFirst {
#if defined(RNNT_EMULATE)
 protected:
  explicit SharedFirst(T* first) : first_(first) {}
  T* at(int i) const { return first_ + i; }

 private:
  T* first_;
#else
 protected:
  __device__ __forceinline__ explicit SharedFirst(T* first)
      : address_(kept(static_cast<int>(__cvta_generic_to_shared(first)))) {}
  __device__ __forceinline__ int at(int i) const { return address_ + i * static_cast<int>(sizeof(T)); }

 private:
  int address_;
#endif
};

// Phases in shared memory. What a thread did before it completed a phase is seen by whoever has waited for it. start()
// comes before a barrier of the block.
class PhasesArray : SharedFirst<Phases> {
 public:
  __device__ __forceinline__ explicit PhasesArray(Phases* first) : SharedFirst(first) {}

#if defined(RNNT_EMULATE)
  void start(int i) const { at(i)->start(); }
  void complete(int i) const { at(i)->complete(); }
  void wait_for(int i, int number) const { at(i)->wait_for(number); }
#else
  __device__ __forceinline__ void start(int i) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(i)) : "memory");
  }
  __device__ __forceinline__ void complete(int i) const {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(at(i)) : "memory");
  }
  // Waits for phase `number` of the i'th; the one after it must not have been completed.
  __device__ __forceinline__ void wait_for(int i, int number) const {
    int is_complete;
    do {
      asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }"
                   : "=r"(is_complete)
                   : "r"(at(i)), "r"(number & 1)
                   : "memory");
    } while (!is_complete);
  }
#endif
};

// An array in shared memory, of elements of 4, 8 or 16 bytes.
template <typename T>
class SharedArray : SharedFirst<T> {
  using SharedFirst<T>::at;

 public:
  __device__ __forceinline__ explicit SharedArray(T* first) : SharedFirst<T>(first) {}

#if defined(RNNT_EMULATE)
  T read(int i) const { return *at(i); }
  void write(int i, T value) const { *at(i) = value; }
#else
  __device__ __forceinline__ T read(int i) const {
    int words[kWords];
    if constexpr (kWords == 1)
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(at(i)) : "memory");
    else if constexpr (kWords == 2)
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at(i)) : "memory");
    else
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(at(i))
                   : "memory");
    T value;
    memcpy(&value, words, sizeof value);
    return value;
  }
  __device__ __forceinline__ void write(int i, T value) const {
    int words[kWords];
    memcpy(words, &value, sizeof value);
    if constexpr (kWords == 1)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at(i)), "r"(words[0]) : "memory");
    else if constexpr (kWords == 2)
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at(i)), "r"(words[0]), "r"(words[1]) : "memory");
    else
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at(i)), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                   "r"(words[3])
                   : "memory");
  }

 private:
  static constexpr int kWords = sizeof(T) / 4;
#endif
};

constexpr unsigned kWholeWarp = 0xffffffffu;
