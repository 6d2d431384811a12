// Paths through a lattice of any arcs (README, eq. 17 to 19): the best one, or samples of their distribution. First
// beta, in nats, over the fronts; then a walk from (0, 0). The best path takes additions and comparisons alone, so that
// it is the same one on every machine. Team: as in arcs.h.

// A sum that is not rounded where two doubles can hold it, so that paths of equal scores tie in whatever order these
// are added up: `sum` is the double nearest to it, `rest` what that leaves.
struct Exact {
  double sum, rest;

  RNNT_HD bool operator==(Exact other) const { return sum == other.sum && rest == other.rest; }
  RNNT_HD bool operator>(Exact other) const { return sum > other.sum || (sum == other.sum && rest > other.rest); }
};
RNNT_HD Exact operator+(double a, Exact b) {
  const double sum = a + b.sum, of_b = sum - a;
  if (!(sum - sum == 0)) return {sum, 0};
  const double rest = (a - (sum - of_b)) + (b.sum - of_b) + b.rest, nearest = sum + rest;
  return {nearest, rest - (nearest - sum)};
}

// How many doubles an utterance needs: of every node its beta, and of every frame a mark.
RNNT_HD int64_t path_memory(const ArcLatticeParams& p) { return 2 * p.layout().slots() + p.T + 1; }

template <typename Scalar, bool kBest, typename Team>
class Paths {
 public:
  // memory: path_memory(p.lattice) doubles. T, U: within the tensors' sizes.
  RNNT_HD Paths(const PathParams& params, int64_t b, int64_t frames, int64_t labels, double* memory,
                Team team_of_utterance)
      : p(params.lattice), T(frames), U(labels), layout(p.layout()), team(team_of_utterance) {
    scores = static_cast<const Scalar*>(p.scores) + b * p.T * p.U1;
    beta = memory, rests = beta + layout.slots(), marks = rests + layout.slots();
  }

  // log Z, or the score of the best path, in nats; NaN where a score of an arc that leaves a cell is NaN or +inf.
  RNNT_HD double backward() {
    const bool bad = has_bad_score(p, scores, T, U, team);
    for (int64_t f = T + U; f >= 0; f--) {
      const int64_t last = f < U ? f : U;
      for (int64_t u = (f > T ? f - T : 0) + team.rank(); u <= last; u += team.size()) {
        const Exact merged = f == T + U ? Exact{0, 0} : kBest ? best(f - u, u) : Exact{summed(f - u, u), 0};
        beta[layout.slot(f, u)] = merged.sum, rests[layout.slot(f, u)] = merged.rest;
      }
      team.sync();
    }
    return bad ? NAN : at(0, 0).sum;
  }

  // The best path whose labels come earliest, the first before all. Where that leaves a choice of durations, each label
  // has the shortest. Every node that is looked at lies on a best path: so there is always a next one.
  RNNT_HD void best_path(int64_t* frames, int64_t* arcs) {
    int64_t start = 0;  // where the last label left
    for (int64_t u = 0; u <= U; u++) {
      for (int64_t t = start; t <= T; t++) {
        const int from = mark_at(t, u, start);
        marks[t] = from;
        const bool is_end = u == U && t == T;
        if (from == kUnreached || !(is_end || leaves_by_label(t, u))) continue;
        if (u > 0) arcs[u - 1] = from;
        if (!is_end) frames[u] = start = t;
        break;
      }
    }
  }

  // A path whose arc out of a node of front f is drawn with uniforms[f].
  RNNT_HD void sample(const double* uniforms, int64_t* frames, int64_t* arcs) {
    for (int64_t t = 0, u = 0; t < T || u < U;) {
      double rest = uniforms[t + u];
      int chosen = 0;
      RNNT_ONE_BY_ONE
      for (int k = 0; k < p.arcs.count; k++) {
        const double share = ::exp(onward(k, t, u).sum - at(t, u).sum);
        if (!(share > 0)) continue;
        chosen = k;  // the last one, if rounding leaves a rest
        if (rest < share) break;
        rest -= share;
      }
      const Arc arc = p.arcs.arc[chosen];
      if (arc.du) frames[u] = t, arcs[u] = chosen;
      t += arc.dt, u += arc.du;
    }
  }

 private:
  static constexpr int kUnreached = -1, kFromStart = 0;

  RNNT_HD Exact at(int64_t t, int64_t u) const {
    const int64_t slot = layout.slot(t + u, u);
    return {beta[slot], rests[slot]};
  }

  // By arc k from (t, u) to the end.
  RNNT_HD Exact onward(int k, int64_t t, int64_t u) const {
    if (!leaving(p.arcs, k, t + u, T, U).has(u)) return {-INFINITY, 0};
    const Arc arc = p.arcs.arc[k];
    return static_cast<double>(scores[(k * p.B * p.T + t) * p.U1 + u]) + at(t + arc.dt, u + arc.du);
  }
  RNNT_HD bool is_optimal(int k, int64_t t, int64_t u) const { return onward(k, t, u) == at(t, u); }

  RNNT_HD Exact best(int64_t t, int64_t u) const {
    Exact most = {-INFINITY, 0};
    RNNT_ONE_BY_ONE
    for (int k = 0; k < p.arcs.count; k++) {
      const Exact x = onward(k, t, u);
      if (x > most) most = x;
    }
    return most;
  }
  RNNT_HD double summed(int64_t t, int64_t u) const {
    const double most = best(t, u).sum;
    if (most == -INFINITY) return most;
    double sum = 0;
    RNNT_ONE_BY_ONE
    for (int k = 0; k < p.arcs.count; k++) sum += ::exp(onward(k, t, u).sum - most);
    return most + ::log(sum);
  }

  RNNT_HD bool leaves_by_label(int64_t t, int64_t u) const {
    RNNT_ONE_BY_ONE
    for (int k = 0; k < p.arcs.count; k++)
      if (p.arcs.arc[k].du && is_optimal(k, t, u)) return true;
    return false;
  }

  // The arc of label u - 1, which leaves at frame start, by which (t, u) is reached, on blanks after it; of several the
  // shortest. Frames from start to t - 1 are marked.
  RNNT_HD int mark_at(int64_t t, int64_t u, int64_t start) const {
    int found = u == 0 && t == 0 ? kFromStart : kUnreached;
    RNNT_ONE_BY_ONE
    for (int k = 0; k < p.arcs.count; k++) {
      const int64_t from = t - p.arcs.arc[k].dt;
      int by = kUnreached;
      if (p.arcs.arc[k].du && u > 0 && from == start && is_optimal(k, from, u - 1)) by = k;
      if (!p.arcs.arc[k].du && from >= start && is_optimal(k, from, u)) by = static_cast<int>(marks[from]);
      if (by != kUnreached && (found == kUnreached || p.arcs.arc[by].dt < p.arcs.arc[found].dt)) found = by;
    }
    return found;
  }

  const ArcLatticeParams& p;
  int64_t T, U;
  FrontLayout layout;
  Team team;
  const Scalar* scores;
  double *beta, *rests, *marks;
};

// All of it for utterance b. A length that cannot be makes T < 0: a score of NaN, and no path.
template <typename Scalar, bool kBest, typename Team>
RNNT_HD void run_paths(const PathParams& p, int64_t b, int64_t T, int64_t U, double* memory, Team team) {
  const int64_t B = p.lattice.B, labels = p.lattice.U1 - 1;
  Paths<Scalar, kBest, Team> paths(p, b, T, U, memory, team);
  const double score = T < 0 ? static_cast<double>(NAN) : paths.backward();
  if (team.rank() == 0) p.score[b] = score;
  for (int64_t i = team.rank(); i < p.n; i += team.size()) {
    const int64_t path = i * B + b;
    int64_t *frames = p.frames + path * labels, *arcs = p.path_arcs + path * labels;
    for (int64_t u = 0; u < labels; u++) frames[u] = arcs[u] = -1;
    if (!(score - score == 0)) continue;
    if constexpr (kBest)
      paths.best_path(frames, arcs);
    else
      paths.sample(p.uniforms + path * (p.lattice.T + p.lattice.U1), frames, arcs);
  }
}
