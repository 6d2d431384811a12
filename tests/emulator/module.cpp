#include "module.h"

#include <link.h>

#include <vector>

namespace emulator {
namespace {

thread_local char first_byte;  // for its address: a thread gets its block when it first asks for something in it

struct Module {
  struct Segment {
    uintptr_t start;
    size_t bytes;

    bool contains(uintptr_t p) const { return p - start < bytes; }
  };
  std::vector<Segment> segments;
  SharedMemory shared = {};

  bool contains(uintptr_t p) const {
    for (const Segment& segment : segments)
      if (segment.contains(p)) return true;
    return false;
  }
};

Module look_up() {
  asm volatile("" : : "r"(&first_byte));
  Module found;
  const auto visit = [](dl_phdr_info* info, size_t, void* result) {
    Module module;
    for (int i = 0; i < info->dlpi_phnum; i++) {
      const ElfW(Phdr)& header = info->dlpi_phdr[i];
      if (header.p_type == PT_LOAD) module.segments.push_back({info->dlpi_addr + header.p_vaddr, header.p_memsz});
      if (header.p_type == PT_TLS) module.shared = {static_cast<char*>(info->dlpi_tls_data), header.p_memsz};
    }
    if (!module.contains(reinterpret_cast<uintptr_t>(&look_up))) return 0;
    *static_cast<Module*>(result) = module;
    return 1;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

}  // namespace

static SharedMemory current;

SharedMemory shared_memory() { return current = look_up().shared; }

bool is_shared(const void* p) {
  return static_cast<size_t>(static_cast<const char*>(p) - current.data) < current.bytes;
}

bool is_in_module(uintptr_t p) {
  static const Module module = look_up();
  return module.contains(p);
}

}  // namespace emulator
