// Paths through a lattice of any arcs (README, eq. 17 to 19): the best one, or samples of their distribution. First
// beta, in nats and in double, over the fronts; then a walk from (0, 0). The best path takes additions and comparisons
// alone, so that it is the same one on every machine. Team: as in arcs.h.

// How many doubles an utterance needs: of every node its beta, and of every frame a mark.
RNNT_HD int64_t path_memory(const ArcLatticeParams& p) { return p.layout().slots() + p.T + 1; }

template <typename Scalar, typename Team>
class Paths {
 public:
  // memory: path_memory(p.lattice) doubles. T, U: within the tensors' sizes.
  RNNT_HD Paths(const PathParams& params, int64_t b, int64_t frames, int64_t labels, double* memory,
                Team team_of_utterance)
      : p(params.lattice),
        T(frames),
        U(labels),
        is_best(!params.uniforms),
        layout(p.layout()),
        team(team_of_utterance) {
    scores = static_cast<const Scalar*>(p.scores) + b * p.T * p.U1;
    beta = memory, marks = memory + layout.slots();
  }

  // log Z, or the score of the best path, in nats; NaN where a score of an arc that leaves a cell is NaN or +inf.
  RNNT_HD double backward() {
    const bool bad = has_bad_score(p, scores, T, U, team);
    for (int64_t f = T + U; f >= 0; f--) {
      const int64_t last = f < U ? f : U;
      for (int64_t u = (f > T ? f - T : 0) + team.rank(); u <= last; u += team.size())
        beta[layout.slot(f, u)] = f == T + U ? 0 : merged(f - u, u);
      team.sync();
    }
    return bad ? NAN : at(0, 0);
  }

  // The best path whose labels come earliest, the first before all. Where that leaves a choice of durations, each label
  // has the shortest. Every node that is looked at lies on a best path: so there is always a next one.
  RNNT_HD void best(int64_t* frames, int64_t* arcs) {
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
      for (int k = 0; k < p.arcs.count; k++) {
        const double share = ::exp(onward(k, t, u) - at(t, u));
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

  RNNT_HD double at(int64_t t, int64_t u) const { return beta[layout.slot(t + u, u)]; }

  // By arc k from (t, u) to the end.
  RNNT_HD double onward(int k, int64_t t, int64_t u) const {
    if (!leaving(p.arcs, k, t + u, T, U).has(u)) return -INFINITY;
    const Arc arc = p.arcs.arc[k];
    return static_cast<double>(scores[(k * p.B * p.T + t) * p.U1 + u]) + at(t + arc.dt, u + arc.du);
  }
  RNNT_HD bool is_optimal(int k, int64_t t, int64_t u) const { return onward(k, t, u) == at(t, u); }

  RNNT_HD double merged(int64_t t, int64_t u) const {
    double most = -INFINITY, sum = 0;
    for (int k = 0; k < p.arcs.count; k++) {
      const double x = onward(k, t, u);
      if (x > most) most = x;
    }
    if (is_best || most == -INFINITY) return most;
    for (int k = 0; k < p.arcs.count; k++) sum += ::exp(onward(k, t, u) - most);
    return most + ::log(sum);
  }

  RNNT_HD bool leaves_by_label(int64_t t, int64_t u) const {
    for (int k = 0; k < p.arcs.count; k++)
      if (p.arcs.arc[k].du && is_optimal(k, t, u)) return true;
    return false;
  }

  // The arc of label u - 1, which leaves at frame start, by which (t, u) is reached, on blanks after it; of several the
  // shortest. Frames from start to t - 1 are marked.
  RNNT_HD int mark_at(int64_t t, int64_t u, int64_t start) const {
    int found = u == 0 && t == 0 ? kFromStart : kUnreached;
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
  bool is_best;
  FrontLayout layout;
  Team team;
  const Scalar* scores;
  double *beta, *marks;
};

// All of it for utterance b. A length that cannot be makes T < 0: a score of NaN, and no path.
template <typename Scalar, typename Team>
RNNT_HD void run_paths(const PathParams& p, int64_t b, int64_t T, int64_t U, double* memory, Team team) {
  const int64_t B = p.lattice.B, labels = p.lattice.U1 - 1;
  Paths<Scalar, Team> paths(p, b, T, U, memory, team);
  const double score = T < 0 ? static_cast<double>(NAN) : paths.backward();
  if (team.rank() == 0) p.score[b] = score;
  for (int64_t i = team.rank(); i < p.n; i += team.size()) {
    const int64_t path = i * B + b;
    int64_t *frames = p.frames + path * labels, *arcs = p.path_arcs + path * labels;
    for (int64_t u = 0; u < labels; u++) frames[u] = arcs[u] = -1;
    if (!(score - score == 0)) continue;
    p.uniforms ? paths.sample(p.uniforms + path * (p.lattice.T + p.lattice.U1), frames, arcs)
               : paths.best(frames, arcs);
  }
}
