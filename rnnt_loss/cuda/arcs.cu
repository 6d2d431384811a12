// The lattice of any arcs, by a block an utterance, a thread a node, a barrier a front; paths through it, a thread a
// path; and the tensors at its ends.
#include "../backend.h"
#include "../core/core.h"
#include "cells.cuh"
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
__global__ void __launch_bounds__(kThreads) arc_lattice_kernel(ArcLatticeParams p) {
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

template <typename acc_t>
__global__ void __launch_bounds__(kThreads) cells_from_values_kernel(CellsParams p) {
  const CellThread at(p.batch);
  if (!at.exists) return;
  acc_t* out = static_cast<acc_t*>(p.cells) + at.cell;
  const Arcs<acc_t> none = {one<acc_t>(), one<acc_t>()};
  const Arcs<acc_t> arcs = at.is_cell ? slots_of<Arcs, acc_t>(p.planes, at.b)[at.slot] : none;
  const acc_t none_has = at.of_nobody ? acc_t(NAN) : acc_t(0);  // the lattice sees lengths alone, not packed rows
  out[0] = at.is_cell ? score_from_value(arcs.blank) : none_has;
  out[p.batch.rows()] = at.has_label ? score_from_value(arcs.label) : none_has;
}

template <typename acc_t>
__global__ void __launch_bounds__(kThreads) planes_from_cells_kernel(CellsParams p) {
  const CellThread at(p.batch);
  if (!at.exists || !at.is_cell) return;
  const acc_t* cells = static_cast<const acc_t*>(p.cells) + at.cell;
  slots_of<Posteriors, acc_t>(p.planes, at.b)[at.slot] = {cells[0], at.has_label ? cells[p.batch.rows()] : acc_t(0)};
}

}  // namespace

void cells_from_values(const CellsParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  launch(p.planes.wide ? cells_from_values_kernel<double> : cells_from_values_kernel<float>,
         CellThread::blocks(p.batch), kThreads, stream, p);
}

void planes_from_cells(const CellsParams& p, void* stream) {
  if (p.batch.rows() == 0) return;
  launch(p.planes.wide ? planes_from_cells_kernel<double> : planes_from_cells_kernel<float>,
         CellThread::blocks(p.batch), kThreads, stream, p);
}

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
