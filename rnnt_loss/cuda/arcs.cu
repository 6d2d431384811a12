// The lattice of any arcs, by a block an utterance, a thread a node, a barrier a front; and paths through it, a thread
// a path.
#include "../backend.h"
#include "../core/core.h"
#include "launch.cuh"
#include "tuning.h"

namespace rnnt::cuda {
namespace {

struct Block {
  static constexpr bool kRemembers = false;  // registers cannot be picked by number
  using Flag = bool;
  __device__ int64_t rank() const { return threadIdx.x; }
  __device__ int64_t size() const { return kThreads; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool condition) const { return __syncthreads_or(condition); }
  template <typename Visit>
  __device__ void each(int64_t rows, int64_t columns, Visit visit) const {
    for (int64_t i = rank(); i < rows * columns; i += size()) {
      const int64_t row = i / columns;
      visit(row, i - row * columns);
    }
  }
};

template <typename acc_t>
__global__ void __launch_bounds__(kThreads, 1) arc_lattice_kernel(ArcLatticeParams p) {
  const int64_t b = blockIdx.x, T = p.input_lengths[b], U = p.label_lengths[b];
  const bool good = 1 <= T && T <= p.T && 0 <= U && U < p.U1;
  acc_t* memory = static_cast<acc_t*>(p.workspace) + b * arc_memory(p);
  run_arc_lattice<acc_t>(p, b, good ? T : -1, good ? U : -1, memory, Block());
}

template <typename acc_t, bool kBest>
__global__ void __launch_bounds__(kThreads, 1) paths_kernel(PathParams p) {
  const ArcLatticeParams& lattice = p.lattice;
  const int64_t b = blockIdx.x, T = lattice.input_lengths[b], U = lattice.label_lengths[b];
  const bool good = 1 <= T && T <= lattice.T && 0 <= U && U < lattice.U1;
  run_paths<acc_t, kBest>(p, b, good ? T : -1, good ? U : -1, p.workspace + b * path_memory(lattice), Block());
}

}  // namespace

int64_t arc_workspace_bytes(const ArcLatticeParams& p) {
  return p.B * arc_memory(p) * static_cast<int64_t>(p.wide ? sizeof(double) : sizeof(float));
}

void arc_lattice(const ArcLatticeParams& p, void* stream) {
  if (p.B) launch(p.wide ? arc_lattice_kernel<double> : arc_lattice_kernel<float>, p.B, kThreads, stream, p);
}

int64_t path_workspace_bytes(const PathParams& p) {
  return p.lattice.B * path_memory(p.lattice) * static_cast<int64_t>(sizeof(double));
}

void paths(const PathParams& p, void* stream) {
  if (p.lattice.B == 0) return;
  const auto best = p.lattice.wide ? paths_kernel<double, true> : paths_kernel<float, true>;
  const auto samples = p.lattice.wide ? paths_kernel<double, false> : paths_kernel<float, false>;
  launch(p.uniforms ? samples : best, p.lattice.B, kThreads, stream, p);
}

}  // namespace rnnt::cuda
