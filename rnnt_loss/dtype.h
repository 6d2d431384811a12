// Element types as they are stored, and the one switch from a run-time dtype to a compile-time type.
#pragma once

#include <cstdint>

namespace rnnt {

enum class Dtype { kFloat32, kFloat64, kFloat16, kBFloat16 };

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

// Calls f with a value of the stored type, of which only the type matters.
template <typename F>
void dispatch(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::kFloat32: return f(float());
    case Dtype::kFloat64: return f(double());
    case Dtype::kFloat16: return f(float16());
    case Dtype::kBFloat16: return f(bfloat16());
  }
}

}  // namespace rnnt
