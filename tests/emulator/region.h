// A buffer that a kernel may touch, and what has happened to each few bytes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

enum class Use {
  kInput,    // only read
  kScratch,  // nobody has written it yet, and not all of it need be
  kOutput,   // nobody has written it yet, and at the end all of it has to be
  kInPlace,  // holds an input, and at the end all of it has to be written
  kUpdate,   // holds an input, and any of it may be written
};

enum class Content : uint8_t {
  kOutside,    // no part of the buffer, only surrounded by it
  kUnwritten,  // its value is nobody's: may be written, not read
  kWritten,
};

struct Access {
  uint32_t thread, time, code;  // code: distance from access_base(); time 0: there was none
};

// What has happened to a few bytes of memory.
struct Cell {
  Access write, read;    // the last ones; reads are of after the last write, and by no flag
  uint32_t block_reads;  // where the reads of the block of `read` are kept, see checker.cpp; 0: it is the only one
  uint32_t other_reads;  // likewise those of blocks before
  bool has_content;      // else the region's
  Content content;
  bool is_flag;  // the last write was a release
};

struct Region {
  std::string name;
  uintptr_t start, end;
  unsigned granule;  // bytes of a cell
  Use use;
  Content content;                                     // of cells that have none of their own
  std::vector<std::pair<uintptr_t, uintptr_t>> parts;  // from, to
  Cell* cells;
  std::vector<bool> touched;                             // by stretches of cells: whether any of them was written
  std::shared_ptr<const std::vector<bool>> was_written;  // by cells: what earlier launches left; null: see content

  Region(std::string name, const void* data, size_t bytes, unsigned granule, Use use, Content content);
  ~Region();
  Region(const Region&) = delete;
  size_t size() const { return (end - start) / granule; }
  size_t cell_bytes() const { return (size() + 1) * sizeof(Cell); }
  bool contains(uintptr_t p) const { return p - start < end - start; }
  bool is_writable() const { return use != Use::kInput; }
  Cell& cell_at(uintptr_t p) const { return cells[(p - start) / granule]; }
  void touch(uintptr_t p) { touched[(p - start) / granule / kStretch] = true; }
  Content content_at(uintptr_t p) const {
    const Cell& cell = cell_at(p);
    if (cell.has_content) return cell.content;
    if (was_written) return (*was_written)[(p - start) / granule] ? Content::kWritten : Content::kUnwritten;
    return content;
  }
  static constexpr size_t kStretch = 4096;
};

}  // namespace emulator
