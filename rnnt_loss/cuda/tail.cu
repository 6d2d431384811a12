// The columns behind the classes of a row, a thread an element. They are few beside the row's.
#include "../backend.h"
#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"

namespace rnnt::cuda {
namespace {

struct TailThread {
  int64_t element, offset, b;  // in the tail, in the rows
  bool exists, of_nobody, is_cell;

  __device__ TailThread(const Batch& batch, const Rows& rows, const Tail& tail) {
    element = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    exists = element < batch.rows() * tail.columns;
    if (!exists) return;
    const int64_t row = element / tail.columns, u = row % batch.U1, t = row / batch.U1 % batch.T;
    b = row / batch.U1 / batch.T;
    offset = rows.row_offset(batch, b, t, u) + batch.V + element % tail.columns;
    const Utterance utterance = utterance_of(batch, b);
    of_nobody = utterance.T == 0, is_cell = utterance.has(static_cast<int>(t), static_cast<int>(u));
  }
  static int64_t blocks(const Batch& batch, const Tail& tail) {
    return (batch.rows() * tail.columns + kThreads - 1) / kThreads;
  }
};

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) tail_kernel(Batch batch, Rows x, Tail tail) {
  using acc_t = acc_of<scalar_t>;
  const TailThread at(batch, x, tail);
  if (!at.exists) return;
  static_cast<acc_t*>(tail.data)[at.element] = at.is_cell ? load(static_cast<const scalar_t*>(x.data)[at.offset]) : 0;
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
    tail_gradient_kernel(Batch batch, Rows grad_x, Tail tail, PerUtterance grad_loss) {
  using acc_t = acc_of<scalar_t>;
  const TailThread at(batch, grad_x, tail);
  if (!at.exists) return;
  acc_t g = at.of_nobody ? acc_t(NAN) : acc_t(0);
  if (at.is_cell) {
    const acc_t of_log_z = static_cast<const acc_t*>(tail.data)[at.element];
    g = finished(tail, of_log_z, static_cast<acc_t>(grad_loss.at(at.b)));
  }
  static_cast<scalar_t*>(grad_x.data)[at.offset] = store<scalar_t>(g);
}

}  // namespace

void tail(const ScoreParams& p, void* stream) {
  if (const int64_t blocks = TailThread::blocks(p.batch, p.tail))
    dispatch(p.x.dtype, [&](auto scalar) {
      launch(tail_kernel<decltype(scalar)>, blocks, kThreads, stream, p.batch, p.x, p.tail);
    });
}

void tail_gradient(const ScoreBackwardParams& p, void* stream) {
  if (const int64_t blocks = TailThread::blocks(p.batch, p.tail))
    dispatch(p.x.dtype, [&](auto scalar) {
      launch(tail_gradient_kernel<decltype(scalar)>, blocks, kThreads, stream, p.batch, p.grad_x, p.tail, p.grad_loss);
    });
}

}  // namespace rnnt::cuda
