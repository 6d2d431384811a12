// What went wrong in a launch, collected while kernels run, told when they are through.
#pragma once

#include <string>

namespace emulator {

// Notes an error unless it is one of a kind already noted for this place. `code` and `other_code` are return addresses,
// where known; what they stand for in the sources is looked up when the report is made.
void report(const std::string& kind, const std::string& detail = "", const void* code = nullptr,
            const void* other_code = nullptr);

// Whether a report of this kind and place would be noted; asked before an expensive detail is put together.
bool is_news(const std::string& kind, const void* code);

// Throws what has been noted since the last call as std::runtime_error; `setting` ends the text.
void throw_reports(const std::string& setting);

}  // namespace emulator
