// Which instruction set the kernels use: the best the machine has, or the one RNNT_LOSS_ISA names.
#pragma once

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace rnnt::cpu {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

inline bool machine_has(InstructionSet set) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (set == InstructionSet::kAvx2) return avx2;
  if (set == InstructionSet::kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
  return set == InstructionSet::kBaseline;
}

inline InstructionSet choose_instruction_set() {
  constexpr struct {
    const char* name;
    InstructionSet set;
  } kBestFirst[] = {
      {"avx512", InstructionSet::kAvx512}, {"avx2", InstructionSet::kAvx2}, {"baseline", InstructionSet::kBaseline}};
  const char* wanted = std::getenv("RNNT_LOSS_ISA");
  for (const auto& candidate : kBestFirst)
    if (machine_has(candidate.set) && (!wanted || !std::strcmp(wanted, candidate.name))) return candidate.set;
  throw std::runtime_error("RNNT_LOSS_ISA must be avx512, avx2 or baseline, and one this machine has, got " +
                           std::string(wanted));
}

inline InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

}  // namespace rnnt::cpu
