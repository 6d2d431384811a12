// Includes the core and RNNT_KERNELS once per instruction set, in a namespace and target region of its own, with
// `Floats` the widest vector of float there. RNNT_DISPATCH(function)(...) calls the best this machine runs. One object
// file holds them all: no flag of the build names an instruction set, and the kernels' text names none; RNNT_FUSED,
// RNNT_MAXIMUM, RNNT_MINIMUM, RNNT_FROM_HALVES and RNNT_TO_HALVES are what the compiler's vector extensions cannot say.
//
// All other headers have to be included before, outside the regions: a function of theirs that is first seen inside one
// would be compiled for it, and could be the copy the linker keeps.

#define RNNT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define RNNT_BEGIN_TARGET(list) RNNT_PRAGMA(clang attribute push(__attribute__((target(list))), apply_to = function))
#define RNNT_END_TARGET RNNT_PRAGMA(clang attribute pop)
#else
#define RNNT_BEGIN_TARGET(list) RNNT_PRAGMA(GCC push_options) RNNT_PRAGMA(GCC target(list))
#define RNNT_END_TARGET RNNT_PRAGMA(GCC pop_options)
#endif

#if defined(__aarch64__)
#define RNNT_FUSED(a, b, c) vfmaq_f32(c, a, b)
#else
#define RNNT_MAXIMUM(a, b) _mm_max_ps(a, b)
#define RNNT_MINIMUM(a, b) _mm_min_ps(a, b)
#endif
namespace rnnt::cpu::baseline {
namespace {
typedef float Floats __attribute__((vector_size(16)));
#include "../core/parts.h"
#include "planes.h"
#include "several.h"
#include "simd.h"
#include RNNT_KERNELS
}  // namespace
}  // namespace rnnt::cpu::baseline

#if defined(__x86_64__)

#undef RNNT_MAXIMUM
#undef RNNT_MINIMUM
#define RNNT_MAXIMUM(a, b) _mm256_max_ps(a, b)
#define RNNT_MINIMUM(a, b) _mm256_min_ps(a, b)
#define RNNT_FUSED(a, b, c) _mm256_fmadd_ps(a, b, c)
#define RNNT_FROM_HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128(p))
#define RNNT_TO_HALVES(p, x) _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
RNNT_BEGIN_TARGET("avx2,fma,f16c")
namespace rnnt::cpu::avx2 {
namespace {
typedef float Floats __attribute__((vector_size(32)));
#include "../core/parts.h"
#include "planes.h"
#include "several.h"
#include "simd.h"
#include RNNT_KERNELS
}  // namespace
}  // namespace rnnt::cpu::avx2
RNNT_END_TARGET

#undef RNNT_MAXIMUM
#undef RNNT_MINIMUM
#undef RNNT_FUSED
#undef RNNT_FROM_HALVES
#undef RNNT_TO_HALVES
#define RNNT_MAXIMUM(a, b) _mm512_max_ps(a, b)
#define RNNT_MINIMUM(a, b) _mm512_min_ps(a, b)
#define RNNT_FUSED(a, b, c) _mm512_fmadd_ps(a, b, c)
#define RNNT_FROM_HALVES(p) _mm512_cvtph_ps(_mm256_loadu_si256(p))
#define RNNT_TO_HALVES(p, x) _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
RNNT_BEGIN_TARGET("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")
namespace rnnt::cpu::avx512 {
namespace {
typedef float Floats __attribute__((vector_size(64)));
#include "../core/parts.h"
#include "planes.h"
#include "several.h"
#include "simd.h"
#include RNNT_KERNELS
}  // namespace
}  // namespace rnnt::cpu::avx512
RNNT_END_TARGET

#define RNNT_DISPATCH(function)                                    \
  (instruction_set() == InstructionSet::kAvx512 ? avx512::function \
   : instruction_set() == InstructionSet::kAvx2 ? avx2::function   \
                                                : baseline::function)
#else
#define RNNT_DISPATCH(function) baseline::function
#endif
