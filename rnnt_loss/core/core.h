// The core as a library of namespace rnnt, for whoever needs it once.
#pragma once

#include "../params.h"
#include "topology.h"

namespace rnnt {
#include "parts.h"
}  // namespace rnnt
