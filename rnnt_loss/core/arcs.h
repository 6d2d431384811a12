// The lattice of any arcs (README, eq. 14 to 16): log Z and posteriors by alpha and beta, and how the posteriors change
// with the scores. Written for a team of threads that share an utterance: on the CPU it is one, which takes
// Lanes<Real>::kWidth nodes at a time; on CUDA a block, of which each thread takes one.
//
// Team: rank() and size(), sync() (what one wrote before, all may read after), any(Flag), each(rows, columns, visit),
// which shares out the pairs of a row and a column. Flag is bool, or as wide as a score if that is done many at a time.

// Two numbers of every node of an utterance, front by front. There are kGuard slots before the first and behind the
// last: a neighbour in u is read where there may be none.
constexpr int64_t kGuard = 16;
RNNT_HD int64_t plane_of_nodes(FrontLayout layout) { return layout.slots() + 2 * kGuard; }

template <typename Scalar>
struct NodeValues {
  Scalar *mantissa, *exponent;

  template <typename Real>
  RNNT_HD Value<Real> load(int64_t slot) const {
    return {Lanes<Real>::load(mantissa + slot), Lanes<Real>::load(exponent + slot)};
  }
  template <typename Real>
  RNNT_HD void store(int64_t slot, Value<Real> value) const {
    Lanes<Real>::store(mantissa + slot, value.mantissa);
    Lanes<Real>::store(exponent + slot, value.exponent);
  }
};

// How many numbers an utterance needs.
RNNT_HD int64_t arc_memory(const ArcLatticeParams& p) { return (p.tangent ? 6 : 4) * plane_of_nodes(p.layout()); }

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
    const int64_t plane = plane_of_nodes(layout);
    Scalar* const planes = memory + kGuard;
    alpha = {planes, planes + plane}, beta = {planes + 2 * plane, planes + 3 * plane};
    ahead = planes + 4 * plane, behind = planes + 5 * plane;
    for (int64_t i = team.rank(); i < plane; i += team.size()) {
      memory[i] = memory[2 * plane + i] = 0;
      memory[plane + i] = memory[3 * plane + i] = -INFINITY;
      if (p.tangent) memory[4 * plane + i] = memory[5 * plane + i] = 0;
    }
    team.sync();
  }

  // log Z in nats; -inf without a path, NaN where a score of an arc that leaves a cell is NaN or +inf.
  RNNT_HD double forward() {
    const bool bad = has_bad_score(p, scores + first_row, T, U, team);
    if (team.rank() == 0) alpha.mantissa[0] = 1, alpha.exponent[0] = 0;
    team.sync();
    for (int64_t f = 1; f <= T + U; f++) {
      each_node(f, [&](int64_t u) RNNT_INLINE {
        Value<Real> total = zero<Real>();
        each_arc(f, u, -1, [&](int k, int64_t from, int64_t label, LabelRange range) RNNT_INLINE {
          total = total + alpha.template load<Real>(slot(from, label)) * value(k, from, label, range);
        });
        alpha.store(slot(f, u), normalised(total));
      });
    }
    z = {alpha.mantissa[slot(T + U, U)], alpha.exponent[slot(T + U, U)]};
    return bad ? NAN : nats_from_value(z);
  }

  // After forward, where log Z is finite. Cells of padding and arcs that lead out of the lattice are not written.
  RNNT_HD void posteriors() {
    if (team.rank() == 0) beta.store(slot(T + U, U), Value<Scalar>{1 / z.mantissa, -z.exponent});
    team.sync();
    Scalar* const out = static_cast<Scalar*>(p.posteriors);
    for (int64_t f = T + U - 1; f >= 0; f--) {
      each_node(f, [&](int64_t u) RNNT_INLINE {
        const Value<Real> arrived = alpha.template load<Real>(slot(f, u));
        Value<Real> total = zero<Real>();
        each_arc(f, u, 1, [&](int k, int64_t to, int64_t label, LabelRange range) RNNT_INLINE {
          const Value<Real> left = value(k, f, u, range) * beta.template load<Real>(slot(to, label));
          total = total + left;
          L::scatter(out + arc(k, f, u), next_lane(), lanes_in(range, u), number_from_value(arrived * left));
        });
        beta.store(slot(f, u), normalised(total));
      });
    }
  }

  // After posteriors, for lanes of one: with f a path's sum of the tangent, E f given that it takes an arc, less E f.
  RNNT_HD void derivative() {
    const double* const tangent = p.tangent;
    const Scalar* const posterior = static_cast<const Scalar*>(p.posteriors);
    for (int64_t f = 1; f <= T + U; f++) {
      each_node(f, [&](int64_t u) {
        const Value<Real> here = alpha.template load<Real>(slot(f, u));
        Real mean = 0;
        each_arc(f, u, -1, [&](int k, int64_t from, int64_t label, LabelRange range) {
          if (!range.has(label) || here.mantissa == 0) return;
          const Value<Real> arriving = alpha.template load<Real>(slot(from, label)) * value(k, from, label, range);
          mean += ratio(arriving, here) * (behind[slot(from, label)] + tangent[arc(k, from, label)]);
        });
        behind[slot(f, u)] = mean;
      });
    }
    const Real whole = behind[slot(T + U, U)];
    for (int64_t f = T + U - 1; f >= 0; f--) {
      each_node(f, [&](int64_t u) {
        const Value<Real> here = beta.template load<Real>(slot(f, u));
        Real mean = 0;
        each_arc(f, u, 1, [&](int k, int64_t to, int64_t label, LabelRange range) {
          if (!range.has(u) || here.mantissa == 0) return;
          const Value<Real> leaving = value(k, f, u, range) * beta.template load<Real>(slot(to, label));
          const int64_t i = arc(k, f, u);
          const Real rest = tangent[i] + ahead[slot(to, label)];
          mean += ratio(leaving, here) * rest;
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

  RNNT_HD static Real ratio(Value<Real> a, Value<Real> b) {
    return number_from_value(Value<Real>{a.mantissa / b.mantissa, a.exponent - b.exponent});
  }

  const ArcLatticeParams& p;
  int64_t T, U, K, first_row;
  FrontLayout layout;
  Team team;
  const Scalar* scores;
  NodeValues<Scalar> alpha, beta;
  Scalar *ahead, *behind;  // of a path's sum of the tangent, the mean from a node on, and up to it
  Value<Scalar> z;
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
  lattice.fill(posteriors, is_nan ? Scalar(NAN) : Scalar(0), Scalar(0));
  if (p.tangent) lattice.fill(p.derivative, is_nan ? double(NAN) : 0.0, 0.0);
  if (!has_path) return;
  lattice.posteriors();
  if constexpr (std::is_same_v<Real, double>)
    if (p.tangent) lattice.derivative();
}
