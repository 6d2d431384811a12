// Kernels that are right and kernels that have one fault each; tests/test_emulator.py says what is to be found in
// which. Each exported function launches one and returns the report, empty if there is none.
#pragma once

#include <string>

#include "../../../rnnt_loss/cuda/launch.cuh"

#define EXPORT extern "C" __attribute__((visibility("default")))

using emulator::Memory, emulator::Use;

constexpr int kThreads = 128;

struct Buffers {
  const float* in;  // [kThreads]
  float* out;       // [kThreads]
  float* scratch;   // [kThreads]
};

inline void declare(Memory& memory, const Buffers& p) {
  memory.add("in", p.in, kThreads * sizeof(float), sizeof(float), Use::kInput);
  memory.add("out", p.out, kThreads * sizeof(float), sizeof(float), Use::kOutput);
  memory.add("scratch", p.scratch, kThreads * sizeof(float), sizeof(float), Use::kScratch);
}

inline void declare(Memory& memory, const Buffers& p, const int* done) {
  declare(memory, p);
  memory.add("done", done, kThreads * sizeof(int), sizeof(int), Use::kUpdate);
}

// Guarded by as much memory of the process on either side, so that a wrong access hits nothing else.
struct Data {
  alignas(16) float guard[kThreads], in[kThreads], between[kThreads], out[kThreads], behind[kThreads],
      scratch[kThreads];
  unsigned words[640];
  int done[kThreads] = {};

  Data() {
    for (int i = 0; i < kThreads; i++) in[i] = i, out[i] = scratch[i] = NAN;
  }
  Buffers buffers() { return {in, out, scratch}; }
};

template <typename Run>
const char* outcome(Run run) {
  static std::string text;
  text.clear();
  try {
    Data data;
    run(data);
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  return text.c_str();
}

inline void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("wrong result: ") + what);
}

template <typename Kernel>
const char* run(Kernel kernel, int blocks = 1, int threads = kThreads) {
  return outcome([&](Data& data) { launch(kernel, dim3(blocks), dim3(threads), nullptr, data.buffers()); });
}
