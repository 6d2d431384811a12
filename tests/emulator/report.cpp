#include "report.h"

#include <dlfcn.h>
#include <stdio.h>

#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace emulator {
namespace {

struct Finding {
  std::string text, who;
  const void *code, *other_code;
};

constexpr size_t kMost = 20;
std::vector<Finding> findings;
std::set<std::pair<const void*, std::string>> known;

// File and line, and in what they were inlined.
std::string source_of(const void* code) {
  Dl_info library;
  if (!code || !dladdr(code, &library)) return "";
  const auto offset = static_cast<const char*>(code) - static_cast<const char*>(library.dli_fbase) - 1;
  char command[1000];
  snprintf(command, sizeof command, "addr2line -sie '%s' %#tx", library.dli_fname, offset);
  std::string places;
  if (FILE* output = popen(command, "r")) {
    char line[300];
    for (int depth = 0; fgets(line, sizeof line, output); depth++) {
      std::string place = line;
      if (depth == 4 || place.front() == '?') break;
      place.resize(place.find_first_of(" \n"));
      places += (depth ? " in " : "") + place;
    }
    pclose(output);
  }
  return places;
}

}  // namespace

bool is_news(const std::string& kind, const void* code) {
  return findings.size() < kMost && !known.count({code, kind});
}

void report(const std::string& kind, const std::string& detail, const void* code, const void* other_code) {
  if (!is_news(kind, code)) return;
  known.insert({code, kind});
  findings.push_back({kind + (detail.empty() ? "" : ": " + detail), self ? name_of(*self) : "", code, other_code});
}

void throw_reports(const std::string& setting) {
  if (findings.empty()) return;
  std::string text;
  for (const Finding& finding : findings) {
    const std::string place = source_of(finding.code), other = source_of(finding.other_code);
    text += finding.text;
    if (!place.empty()) text += ", at " + place;
    if (!finding.who.empty()) text += ", by " + finding.who;
    if (!other.empty()) text += "; the other at " + other;
    text += "\n";
  }
  findings.clear(), known.clear();
  throw std::runtime_error(text + "(" + setting + ")");
}

}  // namespace emulator
