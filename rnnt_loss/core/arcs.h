// The lattice of any arcs (README, eq. 14 to 16): log Z, posteriors, and how the posteriors change with the scores.
// Written for a team of threads that share an utterance: on the CPU it is one, which takes Lanes<Real>::kWidth nodes at
// a time; on CUDA a block, of which each thread takes one.
//
// Team: rank() and size(), sync() (what one wrote before, all may read after), any(Flag), each(rows, columns, visit),
// which shares out the pairs of a row and a column. Flag is bool, or as wide as a score if that is done many at a time.
// kRemembers: whether a node's arrivals are better kept than found a second time.

// A number of every node of an utterance, front by front. There are kGuard slots before the first and behind the last:
// a neighbour in u is read where there may be none.
constexpr int64_t kGuard = 16;
RNNT_HD int64_t plane_of_nodes(FrontLayout layout) { return layout.slots() + 2 * kGuard; }

// How many numbers an utterance needs: alpha; for posteriors, shares and the occupancy; for their derivative, two
// means.
RNNT_HD int64_t arc_memory(const ArcLatticeParams& p) {
  return (2 + (p.posteriors ? p.arcs.count + 1 : 0) + (p.tangent ? 2 : 0)) * plane_of_nodes(p.layout());
}

// Whether an arc that leaves a cell scores NaN or +inf. scores: of the utterance's first arc.
template <typename Scalar, typename Team>
RNNT_HD bool has_bad_score(const ArcLatticeParams& p, const Scalar* scores, int64_t T, int64_t U, Team team) {
  typename Team::Flag bad = false;
  RNNT_ONE_BY_ONE
  for (int k = 0; k < p.arcs.count; k++) {
    const Scalar* const of_arc = scores + k * p.B * p.T * p.U1;
    team.each(T, U + 1 - p.arcs.arc[k].du,
              [&](int64_t t, int64_t u) { bad |= !(of_arc[t * p.U1 + u] < Scalar(INFINITY)); });
  }
  return team.any(bad);
}

template <typename Real, typename Team>
class ArcLattice {
  using L = Lanes<Real>;
  using Scalar = typename L::Scalar;
  static constexpr int kWidth = L::kWidth;

 public:
  // memory: arc_memory(p) numbers. T, U: within the tensors' sizes.
  RNNT_HD ArcLattice(const ArcLatticeParams& params, int64_t b, int64_t frames, int64_t labels, Scalar* memory,
                     Team team_of_utterance)
      : p(params), T(frames), U(labels), K(params.arcs.count), layout(params.layout()), team(team_of_utterance) {
    first_row = b * p.T * p.U1;
    scores = static_cast<const Scalar*>(p.scores);
    plane = plane_of_nodes(layout);
    mantissa = memory + kGuard, exponent = mantissa + plane;
    occupancy = exponent + plane, shares = occupancy + plane;
    behind = shares + K * plane, ahead = behind + plane;
    for (int64_t i = team.rank(); i < plane; i += team.size()) {
      memory[i] = 0, memory[plane + i] = -INFINITY;
      if (p.tangent) memory[(3 + K) * plane + i] = memory[(4 + K) * plane + i] = 0;
    }
    team.sync();
  }

  // log Z in nats; -inf without a path, NaN where a score of an arc that leaves a cell is NaN or +inf. For posteriors,
  // the share that each arc has in what arrives at a node is kept; as a number of at most 1 it needs no exponent.
  RNNT_HD double forward() {
    const bool bad = has_bad_score(p, scores + first_row, T, U, team);
    if (team.rank() == 0) mantissa[0] = 1, exponent[0] = 0;
    team.sync();
    for (int64_t f = 1; f <= T + U; f++) {
      each_node(f, [&](int64_t u) RNNT_INLINE {
        alignas(64) Scalar arrived[2][Team::kRemembers ? kMostArcs * kWidth : 1];
        const auto arrival = [&](int k, int64_t from, int64_t label, LabelRange range)
                                 RNNT_INLINE { return alpha(slot(from, label)) * value(k, from, label, range); };
        Value<Real> total = zero<Real>();
        each_arc(f, u, -1, [&](int k, int64_t from, int64_t label, LabelRange range) RNNT_INLINE {
          const Value<Real> x = arrival(k, from, label, range);
          if constexpr (Team::kRemembers)
            L::store(arrived[0] + k * kWidth, x.mantissa), L::store(arrived[1] + k * kWidth, x.exponent);
          total = total + x;
        });
        // A quotient for each share, and not a product with 1 / total: what arrives alone has all, to the bit, or a
        // long path would lose a part of itself at each node. The share of what does not arrive is 0.
        const Real arrived_in_all = maximum(total.mantissa, splat<Real>(0x1p-100f));
        if (p.posteriors)
          each_arc(f, u, -1, [&](int k, int64_t from, int64_t label, LabelRange range) RNNT_INLINE {
            Value<Real> x;
            if constexpr (Team::kRemembers)
              x = {L::load(arrived[0] + k * kWidth), L::load(arrived[1] + k * kWidth)};
            else
              x = arrival(k, from, label, range);
            const Value<Real> share = {quotient(x.mantissa, arrived_in_all), x.exponent - total.exponent};
            L::store(shares + k * plane + slot(f, u), number_from_value(share));
          });
        const Value<Real> kept = normalised(total);
        L::store(mantissa + slot(f, u), kept.mantissa);
        L::store(exponent + slot(f, u), kept.exponent);
      });
    }
    return bad ? NAN : nats_from_value(Value<Scalar>{mantissa[end()], exponent[end()]});
  }

  // After forward, where log Z is finite. Cells of padding and arcs that lead out of the lattice are not written.
  RNNT_HD void posteriors() {
    if (team.rank() == 0) occupancy[end()] = 1;
    team.sync();
    Scalar* const out = static_cast<Scalar*>(p.posteriors);
    for (int64_t f = T + U - 1; f >= 0; f--) {
      each_node(f, [&](int64_t u) RNNT_INLINE {
        Real total = splat<Real>(0);
        each_arc(f, u, 1, [&](int k, int64_t to, int64_t label, LabelRange range) RNNT_INLINE {
          const LaneRange lanes = lanes_in(range, u);
          const Real share = L::load(shares + k * plane + slot(to, label));
          const Real posterior = L::only(lanes, share * L::load(occupancy + slot(to, label)));
          total = total + posterior;
          L::scatter(out + arc(k, f, u), next_lane(), lanes, posterior);
        });
        L::store(occupancy + slot(f, u), total);
      });
    }
  }

  // After posteriors, for lanes of one: with f a path's sum of the tangent, E f given that it takes an arc, less E f.
  RNNT_HD void derivative() {
    const double* const tangent = p.tangent;
    const Scalar* const posterior = static_cast<const Scalar*>(p.posteriors);
    for (int64_t f = 1; f <= T + U; f++) {
      each_node(f, [&](int64_t u) {
        Real mean = 0;
        each_arc(f, u, -1, [&](int k, int64_t from, int64_t label, LabelRange range) {
          const Real share = shares[k * plane + slot(f, u)];
          if (range.has(label) && share != 0)
            mean += share * (behind[slot(from, label)] + tangent[arc(k, from, label)]);
        });
        behind[slot(f, u)] = mean;
      });
    }
    const Real whole = behind[end()];
    for (int64_t f = T + U - 1; f >= 0; f--) {
      each_node(f, [&](int64_t u) {
        Real mean = 0;
        each_arc(f, u, 1, [&](int k, int64_t to, int64_t label, LabelRange range) {
          const int64_t i = arc(k, f, u);
          if (!range.has(u) || posterior[i] == 0) return;
          const Real rest = tangent[i] + ahead[slot(to, label)];
          mean += posterior[i] / occupancy[slot(f, u)] * rest;
          p.derivative[i] = posterior[i] * (behind[slot(f, u)] + rest - whole);
        });
        ahead[slot(f, u)] = mean;
      });
    }
  }

  // Every number of the utterance's cells in an output.
  template <typename T_>
  RNNT_HD void fill(T_* out, T_ of_cell, T_ of_padding) {
    RNNT_ONE_BY_ONE
    for (int k = 0; k < K; k++) {
      T_* const of_arc = out + arc(k, 0, 0);
      team.each(p.T, p.U1,
                [&](int64_t t, int64_t u) { of_arc[t * p.U1 + u] = t < T && u <= U ? of_cell : of_padding; });
    }
    team.sync();
  }

 private:
  RNNT_HD int64_t slot(int64_t f, int64_t u) const { return layout.slot(f, u); }
  RNNT_HD int64_t end() const { return slot(T + U, U); }
  RNNT_HD int64_t arc(int k, int64_t f, int64_t u) const {
    return k * p.B * p.T * p.U1 + first_row + (f - u) * p.U1 + u;
  }

  template <typename Visit>
  RNNT_HD void each_node(int64_t f, Visit visit) {
    const int64_t first = (f > T ? f - T : 0) / kWidth * kWidth, last = f < U ? f : U;
    for (int64_t u = first + team.rank() * kWidth; u <= last; u += team.size() * kWidth) visit(u);
    team.sync();
  }

  // Arcs that arrive at the nodes (f, u ..), direction -1, or leave them, 1: visit(k, front and label at the other end,
  // labels from which k leaves the front it leaves).
  template <typename Visit>
  RNNT_HD void each_arc(int64_t f, int64_t u, int direction, Visit visit) {
    RNNT_ONE_BY_ONE
    for (int k = 0; k < K; k++) {
      const int64_t other = f + direction * p.arcs.span(k), label = u + direction * p.arcs.arc[k].du;
      if (other < 0 || other > T + U) continue;
      const LabelRange range = leaving(p.arcs, k, direction < 0 ? other : f, T, U);
      const int64_t from = direction < 0 ? label : u;
      if (range.first < from + kWidth && range.last >= from && range.first <= range.last) visit(k, other, label, range);
    }
  }

  // Of a front's cells the next label's is one frame back.
  RNNT_HD int64_t next_lane() const { return 1 - p.U1; }
  RNNT_HD static LaneRange lanes_in(LabelRange range, int64_t u) {
    const int64_t first = range.first - u, last = range.last - u;
    return {static_cast<int>(first > 0 ? first : 0), static_cast<int>(last < kWidth ? last + 1 : kWidth)};
  }
  RNNT_HD Value<Real> value(int k, int64_t f, int64_t u, LabelRange range) const {
    return value_from_score(L::gather(scores + arc(k, f, u), next_lane(), lanes_in(range, u), Scalar(-INFINITY)));
  }

  RNNT_HD Value<Real> alpha(int64_t slot) const { return {L::load(mantissa + slot), L::load(exponent + slot)}; }

  const ArcLatticeParams& p;
  int64_t T, U, K, first_row;
  FrontLayout layout;
  Team team;
  const Scalar* scores;
  int64_t plane;
  Scalar *mantissa, *exponent;  // of alpha
  Scalar *occupancy, *shares;   // shares: by arc, at the node it leads to
  Scalar *behind, *ahead;       // of a path's sum of the tangent, the mean up to a node, and from it on
};

// All of it for utterance b, to the outputs of p. A length that cannot be makes T < 0: NaN.
template <typename Real, typename Team>
RNNT_HD void run_arc_lattice(const ArcLatticeParams& p, int64_t b, int64_t T, int64_t U,
                             typename Lanes<Real>::Scalar* memory, Team team) {
  using Scalar = typename Lanes<Real>::Scalar;
  ArcLattice<Real, Team> lattice(p, b, T, U, memory, team);
  const double log_z = T < 0 ? static_cast<double>(NAN) : lattice.forward();
  if (team.rank() == 0) p.loss.set(b, 0.0 - log_z);  // 0 - 0 is +0, where -0 is not
  if (!p.posteriors) return;
  Scalar* const posteriors = static_cast<Scalar*>(p.posteriors);
  const bool is_nan = log_z != log_z, has_path = log_z - log_z == 0;
  // Of lengths that cannot be, nobody knows what is padding.
  lattice.fill(posteriors, is_nan ? Scalar(NAN) : Scalar(0), T < 0 ? Scalar(NAN) : Scalar(0));
  if (p.tangent) lattice.fill(p.derivative, is_nan ? double(NAN) : 0.0, T < 0 ? double(NAN) : 0.0);
  if (!has_path) return;
  lattice.posteriors();
  if constexpr (std::is_same_v<Real, double>)
    if (p.tangent) lattice.derivative();
}
