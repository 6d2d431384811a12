// The parts of the core, in the order they need. Included within a namespace: rnnt by core.h, and once per instruction
// set by cpu/each_isa.h. So they have no guard, and include nothing.
#include "lanes.h"
#include "convert.h"
#include "value.h"
#include "merge.h"
#include "lattice.h"
#include "normalizer.h"
#include "tdt.h"
#include "arcs.h"
#include "paths.h"
