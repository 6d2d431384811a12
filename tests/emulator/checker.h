// Judges every access of a check build to memory: bounds, whether what is read was written, and whether other threads'
// accesses come before it or race with it. Does nothing in a plain build.
#pragma once

#include "memory.h"
#include "types.h"

namespace emulator::checker {

void start_launch(const Launch&);
void enter_block(unsigned number, int threads);  // which is the running one from here on
void finish_block(unsigned number);
void finish_launch();

// Of the running block.
void barrier();
void sync_warp(int first_thread, unsigned lanes);

// Of the running thread, just before they happen; the host's are not looked at. `code` says where.
void access(const void* address, size_t bytes, bool is_write, const void* code);
void store_release(const int* flag, const void* code);
void add_release(const int* flag, const void* code);
void load_acquire(const int* flag, const void* code);

}  // namespace emulator::checker
