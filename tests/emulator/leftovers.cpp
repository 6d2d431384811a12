#include "leftovers.h"

#include <algorithm>
#include <deque>
#include <string_view>

namespace emulator {
namespace {

struct Leftover {
  uintptr_t start, end;
  unsigned granule;
  std::shared_ptr<const std::vector<bool>> is_written;
  size_t hash;
};

std::deque<Leftover> leftovers;
constexpr size_t kMost = 32;

size_t hash_of(const Region& region) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(region.start), region.end - region.start});
}

}  // namespace

void remember_leftovers(const Region& region) {
  std::vector<bool> is_written(region.size());
  for (size_t i = 0; i < region.size(); i++) {
    if (!region.touched[i / Region::kStretch])
      i += Region::kStretch - 1;
    else
      is_written[i] = region.cells[i].write.time != 0;
  }
  if (std::find(is_written.begin(), is_written.end(), false) == is_written.end()) return;
  leftovers.push_back({region.start, region.end, region.granule,
                       std::make_shared<const std::vector<bool>>(std::move(is_written)), hash_of(region)});
  if (leftovers.size() > kMost) leftovers.pop_front();
}

void recall_leftovers(Region& region) {
  for (const Leftover& left : leftovers) {
    const bool is_same = left.start == region.start && left.end == region.end && left.granule == region.granule;
    if (is_same && left.hash == hash_of(region)) region.was_written = left.is_written;
  }
}

void forget_leftovers(const Region& region) {
  std::erase_if(leftovers, [&](const Leftover& left) { return left.start < region.end && region.start < left.end; });
}

}  // namespace emulator
