#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "leftovers.h"
#include "report.h"

namespace emulator {
namespace {

void report_unwritten(const Region& region) {
  size_t missing = 0, all = 0;
  uintptr_t first = region.end;
  for (const auto& [start, end] : region.parts) {
    all += end - start;
    for (uintptr_t p = start; p < end; p += region.granule)
      if (!region.cell_at(p).write.time) missing += region.granule, first = std::min(first, p);
  }
  if (missing)
    report("output not written", region.name + ", " + std::to_string(missing) + " bytes of " + std::to_string(all) +
                                     ", the first at byte " + std::to_string(first - region.start));
}

unsigned granule_of(size_t element_bytes) { return element_bytes < 4 ? static_cast<unsigned>(element_bytes) : 4; }

}  // namespace

// Pages of zeros that cost nothing until they are touched: rows may lie gigabytes apart.
Region::Region(std::string name, const void* data, size_t bytes, unsigned granule, Use use, Content content)
    : name(std::move(name)),
      start(reinterpret_cast<uintptr_t>(data)),
      end(start + bytes),
      granule(granule),
      use(use),
      content(content) {
  void* const pages =
      mmap(nullptr, cell_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  cells = static_cast<Cell*>(pages);
  touched.resize(size() / kStretch + 1);
}

Region::~Region() { munmap(cells, cell_bytes()); }

void Memory::add(const char* name, const void* data, size_t bytes, size_t element_bytes, Use use) {
  if (!data || !bytes) return;
  const bool is_read = use != Use::kScratch && use != Use::kOutput;
  regions_.push_back(std::make_unique<Region>(name, data, bytes, granule_of(element_bytes), use,
                                              is_read ? Content::kWritten : Content::kUnwritten));
  Region& region = *regions_.back();
  region.parts.push_back({region.start, region.end});
  if (use == Use::kInput) recall_leftovers(region);
}

void Memory::add_scattered(const char* name, const void* data, size_t bytes, size_t element_bytes, Use use) {
  regions_.push_back(std::make_unique<Region>(name, data, bytes, granule_of(element_bytes), use, Content::kOutside));
}

void Memory::part(const void* data, size_t bytes, Content content) {
  Region& region = *regions_.back();
  const uintptr_t start = reinterpret_cast<uintptr_t>(data);
  region.parts.push_back({start, start + bytes});
  for (uintptr_t p = start; p < start + bytes; p += region.granule) {
    Cell& cell = region.cell_at(p);
    cell.has_content = true, cell.content = std::max(cell.content, content);  // parts may overlap
  }
}

void Memory::start() {
  std::sort(regions_.begin(), regions_.end(), [](const auto& a, const auto& b) { return a->start < b->start; });
}

Region* Memory::find(uintptr_t p) {
  if (last_found_ && last_found_->contains(p)) return last_found_;
  auto after = std::upper_bound(regions_.begin(), regions_.end(), p,
                                [](uintptr_t p, const auto& region) { return p < region->start; });
  while (after != regions_.begin())  // not only the nearest: scattered buffers may lie within each other's gaps
    if ((*--after)->contains(p)) return last_found_ = after->get();
  return nullptr;
}

std::string Memory::neighbour_of(uintptr_t p) const {
  size_t nearest = 4096;
  std::string text = "far from every tensor";
  for (const auto& region : regions_) {
    const bool is_behind = p >= region->end;
    const size_t distance = is_behind ? p - region->end : region->start - p;
    if (distance >= nearest) continue;
    nearest = distance;
    text = std::to_string(distance) + (is_behind ? " bytes behind the end of " : " bytes before ") + region->name;
  }
  return text;
}

void Memory::finish() {
  for (const auto& region : regions_) {
    if (region->use == Use::kOutput || region->use == Use::kInPlace) report_unwritten(*region);
    if (region->is_writable()) forget_leftovers(*region);
    if (region->use == Use::kScratch) remember_leftovers(*region);
  }
}

}  // namespace emulator
