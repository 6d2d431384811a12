// What memory a launch may touch: the exact bounds of every buffer and what is known of its contents. Used in check
// builds; declare() in params_memory.h fills one in from a kernel's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "region.h"

namespace emulator {

class Memory {
 public:
  // A contiguous buffer. An input that an earlier launch left partly unwritten is known to be so, as long as nobody has
  // changed it since. Nothing is added where there are no data.
  void add(const char* name, const void* data, size_t bytes, size_t element_bytes, Use use);

  // A buffer that lies scattered between the addresses data and data + bytes: everything is outside, until part() says
  // what is not.
  void add_scattered(const char* name, const void* data, size_t bytes, size_t element_bytes, Use use);
  void part(const void* data, size_t bytes, Content content);  // of the region that was added last

  void start();  // when all has been added
  Region* find(uintptr_t p);
  std::string neighbour_of(uintptr_t p) const;  // the region that p lies just before or behind, in words
  void finish();                                // reports outputs that are not wholly written, and remembers scratch

 private:
  std::vector<std::unique_ptr<Region>> regions_;
  Region* last_found_ = nullptr;
};

}  // namespace emulator
