// The lattice of one utterance, as sweeps for a wavefront: alpha with its shares (README, eq. 2 to 4), the flow of the
// occupancy (eq. 7), beta (eq. 9). What a step computes is the core's.
#pragma once

#include "../core/core.h"
#include "cells.cuh"
#include "launch.cuh"
#include "progress.cuh"
#include "tuning.h"
#include "wavefront.cuh"

namespace rnnt::cuda {

template <typename acc_t>
constexpr int kAheadOf = sizeof(acc_t) == sizeof(float) ? kAhead : kAheadWide;

// Empty where the utterance's lengths are out of range.
struct Lattice {
  Topology topology;
  FrontLayout layout;
  int T, U, U1, steps;  // U1 of the batch

  __device__ Lattice(const Batch& batch, int64_t b)
      : topology(batch.topology), layout(batch.layout()), U1(static_cast<int>(batch.U1)) {
    const Utterance utterance = utterance_of(batch, b);
    T = utterance.T, U = T ? utterance.U : -1;
    steps = T ? static_cast<int>(topology.last_front(T, U)) : 0;
  }
  __device__ int fronts() const { return static_cast<int>(layout.fronts); }
  __device__ int stride() const { return static_cast<int>(layout.stride); }
};

// The slots of one label: one in each front. With the pitch in bytes an address is a single instruction.
template <typename T>
class Column {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;

 public:
  __device__ Column(const Lattice& lattice, T* slots, int u)
      : first_(reinterpret_cast<Byte*>(slots + u)), pitch_(static_cast<uint32_t>(lattice.stride() * sizeof(T))) {}
  __device__ T& operator[](int front) const {
    return *reinterpret_cast<T*>(first_ + static_cast<uint64_t>(static_cast<uint32_t>(front)) * pitch_);
  }

 private:
  Byte* first_;
  uint32_t pitch_;
};

// The cells of one label.
struct Cells {
  int first;        // front of the first one
  unsigned frames;  // 0 outside the utterance

  __device__ Cells(const Lattice& lattice, int u)
      : first(static_cast<int>(lattice.topology.front(0, u))), frames(u <= lattice.U ? lattice.T : 0) {}
  __device__ bool has(int front) const { return static_cast<unsigned>(front - first) < frames; }
};

// The arcs that leave the cells of one label; where there is no cell, those of the last front, which score made zero.
template <typename acc_t>
class LeavingArcs {
 public:
  __device__ LeavingArcs(const Lattice& lattice, const Arcs<acc_t>* arcs, int u)
      : cells_(lattice, u), arcs_(lattice, arcs, u < lattice.U1 ? u : 0), none_(lattice.fronts() - 1) {}
  __device__ Arcs<acc_t> at(int front) const { return arcs_[cells_.has(front) ? front : none_]; }

 private:
  Cells cells_;
  Column<const Arcs<acc_t>> arcs_;
  int none_;
};

// keep(front, alpha, share) for the nodes of every front but the first.
template <typename acc_t, typename Keep>
class AlphaSweep {
 public:
  using Message = Value<acc_t>;
  using Item = Arcs<acc_t>;
  static constexpr int kAhead = kAheadOf<acc_t>;
  static constexpr Direction kDirection = Direction::kUp;

  __device__ AlphaSweep(const Lattice& lattice, const Arcs<acc_t>* arcs, int u, FramesDone frames, Keep keep)
      : leaving_(lattice, arcs, u),
        alpha_(u == 0 ? one<acc_t>() : zero<acc_t>()),
        frames_(frames),
        keep_(keep),
        T_(lattice.T),
        first_cell_(static_cast<int>(lattice.topology.front(0, u / 32 * 32))) {}

  __device__ void before_loads(int end) {
    // Those that the strip's first label comes to; at least one, with which the zeros of the last front are there.
    const int frames = end - first_cell_;
    frames_.wait_for(frames < 1 ? 1 : frames < T_ ? frames : T_);
  }
  __device__ Item load(int step) const { return leaving_.at(step); }
  __device__ Message nothing() const { return zero<acc_t>(); }
  __device__ Message send(const Item& arc) const { return alpha_ * arc.label; }
  __device__ void receive(int step, const Item& arc, Message by_label) {
    acc_t share;
    alpha_ = Sum::merge(alpha_ * arc.blank, by_label, share);
    keep_(step + 1, alpha_, share);
  }
  __device__ void after(int) {}

  // Of the last front.
  __device__ Value<acc_t> alpha() const { return alpha_; }
  // Whether an arc of any of the label's cells is NaN, also one that leads out of the lattice: it stays from front to
  // front.
  __device__ bool is_nan() const { return alpha_.mantissa != alpha_.mantissa; }

 private:
  LeavingArcs<acc_t> leaving_;
  Value<acc_t> alpha_;
  FramesDone frames_;
  Keep keep_;
  int T_, first_cell_;
};

template <typename Keep>
class BetaSweep {
 public:
  using Message = Value<double>;
  using Item = Arcs<double>;
  static constexpr int kAhead = kAheadWide;
  static constexpr Direction kDirection = Direction::kDown;

  __device__ BetaSweep(const Lattice& lattice, const Arcs<double>* arcs, int u, Keep keep)
      : leaving_(lattice, arcs, u),
        beta_(u == lattice.U ? one<double>() : zero<double>()),
        last_(lattice.steps - 1),
        keep_(keep) {}

  __device__ void before_loads(int) const {}
  __device__ Item load(int step) const { return leaving_.at(last_ - step); }
  __device__ Message nothing() const { return zero<double>(); }
  __device__ Message send(const Item&) const { return beta_; }
  __device__ void receive(int step, const Item& arc, Message above) {
    double share;
    beta_ = Sum::merge(beta_ * arc.blank, above * arc.label, share);
    keep_(last_ - step, beta_);
  }
  __device__ void after(int) const {}

 private:
  LeavingArcs<double> leaving_;
  Value<double> beta_;
  int last_;
  Keep keep_;
};

// Posteriors of the arcs that leave the slots of every front but the last, and word of it every few steps.
template <typename acc_t>
class FlowSweep {
 public:
  using Message = acc_t;
  using Item = acc_t;
  static constexpr int kAhead = kAheadOf<acc_t>;
  static constexpr Direction kDirection = Direction::kDown;

  // end: the occupancy of the utterance's end, NaN where there is no loss
  __device__ FlowSweep(const Lattice& lattice, const acc_t* shares, Posteriors<acc_t>* posteriors, int u, acc_t end,
                       int* done)
      : shares_(lattice, shares, u < lattice.stride() ? u : 0),
        posteriors_(lattice, posteriors, u),
        is_kept_(u < lattice.stride()),
        steps_(lattice.steps),
        nothing_(acc_t(0) * end),
        occupancy_(u == lattice.U ? end : nothing_),
        done_(done) {}

  __device__ void before_loads(int) const {}
  __device__ Item load(int step) const { return shares_[step < steps_ ? steps_ - step : 0]; }
  __device__ Message nothing() const { return nothing_; }
  __device__ Message send(Item share) const { return shares_of(share).second * occupancy_; }
  __device__ void receive(int step, Item share, Message by_label) {
    const acc_t by_blank = shares_of(share).first * occupancy_;
    occupancy_ = by_blank + by_label;
    if (is_kept_) posteriors_[steps_ - 1 - step] = {by_blank, by_label};
  }
  __device__ void after(int end) {
    if (end % kToldEvery && end < steps_) return;
    __syncwarp();  // the posteriors of all lanes
    if (threadIdx.x % 32 == 0) tell(done_, end);
  }

 private:
  Column<const acc_t> shares_;
  Column<Posteriors<acc_t>> posteriors_;
  bool is_kept_;
  int steps_;
  acc_t nothing_, occupancy_;
  int* done_;
};

// The loss of utterance b, by a whole block. What keep_of(u) returns is called for the nodes of label u, as AlphaSweep
// says.
template <typename acc_t, typename KeepOf>
__device__ void sweep_alpha(const Lattice& lattice, const Arcs<acc_t>* arcs, FramesDone frames, Value<acc_t>* columns,
                            KeepOf keep_of, const PerUtterance& loss, int64_t b) {
  using Sweep = AlphaSweep<acc_t, decltype(keep_of(0))>;
  __shared__ typename Wavefront<Sweep>::Channels channels;
  Wavefront<Sweep> wavefront(channels, columns, lattice.steps);
  Value<acc_t> end = zero<acc_t>();
  bool is_nan = lattice.T == 0, holds_end = lattice.T == 0 && threadIdx.x == 0;
  wavefront.each_panel(lattice.U, lattice.U1, [&](int u, bool is_active, auto run) {
    if (!is_active) return;
    Sweep sweep(lattice, arcs, u, frames, keep_of(u));
    run(sweep);
    is_nan |= sweep.is_nan();
    if (u == lattice.U) end = sweep.alpha(), holds_end = true;
  });
  is_nan = __syncthreads_or(is_nan);
  if (holds_end) loss.set(b, is_nan ? static_cast<double>(NAN) : 0.0 - nats_from_value(end));  // 0 - 0 is +0, -0 is not
}

// The same with the shares of all slots, if they are wanted.
template <typename acc_t>
__device__ void sweep_loss(const LatticeParams& p, int64_t b, FramesDone frames) {
  const Lattice lattice(p.batch, b);
  acc_t* shares = p.shares ? static_cast<acc_t*>(p.shares) + b * lattice.layout.slots() : nullptr;
  const auto keep_of = [&](int u) {
    const bool keeps = shares && u < lattice.stride();
    const Column<acc_t> column(lattice, shares, keeps ? u : 0);
    return [=](int front, Value<acc_t>, acc_t share) {
      if (keeps) column[front] = share;
    };
  };
  sweep_alpha(lattice, slots_of<Arcs, acc_t>(p.arcs, b), frames, columns_of<Value<acc_t>>(p.workspace, p.batch, b),
              keep_of, p.loss, b);
  if (!shares) return;
  const int swept = (lattice.U + 32) / 32 * 32;  // labels of the strips that have one of the utterance's
  for (int u = threadIdx.x; u < lattice.stride(); u += kThreads) {
    const Column<acc_t> column(lattice, shares, u);  // 0 where the sweep did not come
    column[0] = 0;
    for (int front = u < swept ? lattice.steps + 1 : 1; front < lattice.fronts(); front++) column[front] = 0;
  }
}

// The posteriors of utterance b, by a whole block. done: [strips, kLine], how many steps a strip is through.
template <typename acc_t>
__device__ void sweep_posteriors(const PosteriorParams& p, int64_t b, int* done) {
  const Lattice lattice(p.batch, b);
  const acc_t* shares = static_cast<const acc_t*>(p.shares) + b * lattice.layout.slots();
  Posteriors<acc_t>* posteriors = slots_of<Posteriors, acc_t>(p.posteriors, b);
  // No path: all posteriors are 0; no loss: there are none.
  const double loss = p.loss.at(b);
  const acc_t end = loss == INFINITY ? acc_t(0) : loss - loss == 0 ? acc_t(1) : acc_t(NAN);
  using Sweep = FlowSweep<acc_t>;
  __shared__ typename Wavefront<Sweep>::Channels channels;
  Wavefront<Sweep> wavefront(channels, columns_of<acc_t>(p.workspace, p.batch, b), lattice.steps);
  wavefront.each_panel(lattice.U, lattice.U1, [&](int u, bool is_active, auto run) {
    if (!is_active) return;
    Sweep sweep(lattice, shares, posteriors, u, end, done + u / 32 * kLine);
    run(sweep);
  });
}

}  // namespace rnnt::cuda
