// Stacks to run on, and the switch from one to another.
#pragma once

#include <cstddef>

namespace emulator {

constexpr size_t kStackBytes = 64 << 10;

// The i-th stack. Made when first asked for, and kept: what overflows one hits a page that may not be touched.
char* stack_of(int i);

// Where a stack pointer has to be for a switch to it to call `entry`, which must not return. The last `reserved` bytes
// of the stack are left alone.
void* ready_to_enter(char* stack, size_t reserved, void (*entry)());

}  // namespace emulator

// Keeps the running stack's pointer in *from and goes on where `to` was kept.
extern "C" void emulator_switch(void** from, void* to);
