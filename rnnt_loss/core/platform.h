// What host and device compilers spell differently.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define RNNT_HD __host__ __device__ __forceinline__
#else
#define RNNT_HD inline __attribute__((always_inline))
#endif
