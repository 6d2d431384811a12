// What host and device compilers spell differently.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// RNNT_DEVICE: arithmetic is the GPU's own. So it is, too, where the tests run the kernels on the host (RNNT_EMULATE).
#if defined(__CUDA_ARCH__)
#define RNNT_DEVICE
#endif

// Before a loop that is not to be unrolled on a GPU: it has no registers for several turns at a time.
#if defined(__CUDA_ARCH__)
#define RNNT_ONE_BY_ONE _Pragma("unroll 1")
#else
#define RNNT_ONE_BY_ONE
#endif

// RNNT_HD is for functions, RNNT_INLINE for lambdas. All that takes or returns lanes has one of them: how a vector
// wider than the build's instruction set is passed between functions is not to be relied on.
#if defined(__CUDACC__)
#define RNNT_HD __host__ __device__ __forceinline__
#define RNNT_INLINE
#else
#define RNNT_HD inline __attribute__((always_inline))
#define RNNT_INLINE __attribute__((always_inline))
#endif
