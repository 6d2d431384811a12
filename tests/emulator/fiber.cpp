#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <vector>

#if !defined(__x86_64__) || !defined(__linux__)
#error \
    "the emulator switches stacks with instructions of x86-64 and the calling convention of Linux: port emulator_switch"
#endif

// Saves what a called function has to leave as it was. The jump is no `ret`: those the processor predicts from where
// the calls were, and here each would be mispredicted.
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size emulator_switch, .-emulator_switch
)");

namespace emulator {

char* stack_of(int i) {
  constexpr size_t kPage = 4096;
  static std::vector<char*> stacks;
  while (static_cast<int>(stacks.size()) <= i) {
    void* memory = mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE)) throw std::bad_alloc();
    stacks.push_back(static_cast<char*>(memory) + kPage);
  }
  return stacks[i];
}

void* ready_to_enter(char* stack, size_t reserved, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + kStackBytes - reserved) / 16 * 16);
  *--top = nullptr;  // in place of a return address: `entry` finds the stack as after a call
  *--top = reinterpret_cast<void*>(entry);
  return top - 6;  // the registers that the switch pops
}

}  // namespace emulator
