// The parts of the core, in the order they need. Included within a namespace: rnnt by core.h, and once per instruction
// set by cpu/each_isa.h. So they have no guard, and include nothing.
#include "convert.h"
#include "lanes.h"
#include "lattice.h"
#include "merge.h"
#include "normalizer.h"
#include "value.h"
