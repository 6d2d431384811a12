// What launches leave behind in scratch memory that they wrote in part. The next launch is given no more than an
// address: that it means the same memory is concluded from address, size and bytes being the same.
#pragma once

#include "region.h"

namespace emulator {

void remember_leftovers(const Region&);  // of scratch, after a launch
void recall_leftovers(Region&);          // into an input, before the next
void forget_leftovers(const Region&);    // of memory that is written again

}  // namespace emulator
