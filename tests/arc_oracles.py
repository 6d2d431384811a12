"""What a variant should give: walks over every path, and the twin's recursion with torch's own derivative."""

import itertools
from fractions import Fraction
from typing import NamedTuple

import torch
from batches import INF, Batch, inside
from reference import TOPOLOGIES, Arc, hat, lattice
from torch import Tensor
from torch.nn.functional import pad

VARIANTS = [
    "constrained",
    "modified",
    "hat",
    "fastemit_lambda",
    "sigma",
    "delay_penalty",
    "windows",
    "blank_bias",
    "label_bias",
]
PAIRS = [pair for pair in itertools.combinations(VARIANTS, 2) if pair != ("constrained", "modified")]
ALONE_AND_IN_PAIRS = [("constrained",), *((name,) for name in VARIANTS[4:]), *PAIRS]


def walk(arcs: list[tuple[int, int, Tensor]], T: int, U: int, ends_by_blank: bool) -> Tensor:
    """The loss of one utterance, arcs (dt, du, score [T, U + 1]), by following every path from (0, 0) to (T, U)."""
    paths = []

    def follow(t: int, u: int, total) -> None:
        if (t, u) == (T, U):
            paths.append(total)
            return
        for dt, du, score in arcs:
            lands = t + dt, u + du
            if t < T and lands[0] <= T and lands[1] <= U and not (ends_by_blank and du and lands[0] == T):
                follow(*lands, total + score[t, u])

    follow(0, 0, torch.zeros((), dtype=torch.float64))
    return -torch.stack(paths).logsumexp(0) if paths else torch.tensor(INF, dtype=torch.float64)


def row_scores(batch: Batch, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Of blank and next label, [B, T, U + 1]; the last column of labels belongs to nobody."""
    ids = pad(batch.labels.long(), (0, 1)).clamp(0, log_probs.shape[3] - 1)
    ids = ids[:, None, :, None].expand(-1, log_probs.shape[1], -1, -1)
    return log_probs[..., batch.blank % log_probs.shape[3]], log_probs.gather(3, ids)[..., 0]


def options_of(variants, batch, seed=0):
    """Keywords for some variants of a batch."""
    g = torch.Generator().manual_seed(seed)
    B, T, W, _ = batch.x.shape
    bias = lambda: torch.randn(B, T, W, dtype=torch.float64, generator=g)  # noqa: E731
    first = torch.randint(0, T, (B, W - 1), generator=g).sort(1).values
    options = {
        "fastemit_lambda": 0.4,
        "sigma": 0.3,
        "delay_penalty": -0.2,
        "windows": torch.stack([first - 1, first + T // 2 + 1], -1),
        "blank_bias": bias(),
        "label_bias": bias(),
    }
    chosen = {name: options[name] for name in variants if name in options}
    topology = next((name for name in variants if name in TOPOLOGIES), "standard")
    return {**chosen, "topology": topology, **({"normalizer": "hat"} if "hat" in variants else {})}


class Emphasised(torch.autograd.Function):
    """x, with a derivative of so much."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


def variant_arcs(batch, x, topology, *, normalizer="softmax", fastemit_lambda=0.0, sigma=0.0, delay_penalty=0.0,
            windows=None, blank_bias=0.0, label_bias=0.0) -> list[Arc]:  # fmt: skip
    """Of a two-arc loss, in float64, as the docstrings say."""
    T = x.shape[1]
    x = x.double()
    log_probs = {"softmax": lambda: x.log_softmax(-1), "hat": lambda: hat(x, batch.blank), "none": lambda: x}[
        normalizer
    ]()
    t = torch.arange(T)[:, None]
    blank, label = row_scores(batch, log_probs - sigma)
    blank, label = blank + blank_bias, label + label_bias
    label = label + delay_penalty * ((batch.input_lengths[:, None, None].double() - 1) / 2 - t)
    if windows is not None:
        first, last = (pad(edge, (0, 1))[:, None] for edge in windows.unbind(-1))
        label = torch.where((t < first) | (t > last), -INF, label)
    if topology == "constrained":
        label = label + pad(blank[:, :, 1:], (0, 1))
    label = Emphasised.apply(label, 1 + fastemit_lambda)
    return [Arc(dt, du, score) for (dt, du), score in zip(TOPOLOGIES[topology], (blank, label))]


def tdt_arcs(batch: Batch, durations: list[int], tokens: Tensor, frames: Tensor, sigma: float = 0.0) -> list[Arc]:
    """Of a token-and-duration transducer, from the logits of both heads."""
    blank, label = (score - sigma for score in row_scores(batch, tokens.double().log_softmax(-1)))
    log_probs = frames.double().log_softmax(-1)
    blanks = [Arc(d, 0, blank + log_probs[..., i]) for i, d in enumerate(durations) if d]
    return blanks + [Arc(d, 1, label + log_probs[..., i]) for i, d in enumerate(durations)]


def without_a_last_label(arcs: list[Arc], input_lengths: Tensor) -> list[Arc]:
    """Where the last arc is a blank, no label leads to frame T."""
    frame = torch.arange(arcs[0].score.shape[1])[:, None]
    lands = [frame + arc.dt == input_lengths[:, None, None] for arc in arcs]
    return [a._replace(score=a.score.masked_fill(last & bool(a.du), -INF)) for a, last in zip(arcs, lands, strict=True)]


def log_z(arcs: list[Arc], T_b: Tensor, U_b: Tensor) -> Tensor:
    """[B], node by node in nats, for torch to differentiate."""
    B, T, W = arcs[0].score.shape
    cells = inside(T, W, T_b, U_b)
    scores = [arc.score.masked_fill(~cells, -INF) for arc in arcs]
    alpha = {(0, 0): torch.zeros(B, dtype=torch.float64)}
    for n in range(1, T + W):
        for u in range(max(0, n - T), min(n, W - 1) + 1):
            starts = [((n - u - arc.dt, u - arc.du), score) for arc, score in zip(arcs, scores, strict=True)]
            come = [alpha[t, u] + score[:, t, u] for (t, u), score in starts if (t, u) in alpha and t < T]
            if come:
                come = torch.stack(come)
                some = (come > -INF).any(0)  # or torch's derivative is NaN
                alpha[n - u, u] = torch.where(some, torch.where(some, come, 0).logsumexp(0), -INF)
    none = torch.full((B,), -INF, dtype=torch.float64)
    return torch.stack([alpha.get((t, u), none)[b] for b, (t, u) in enumerate(zip(T_b.tolist(), U_b.tolist()))])


def recursion(arcs: list[Arc], batch: Batch, ends_by_blank: bool, label_weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """The losses [B], and a sum whose derivative is theirs, with label posteriors times label_weight."""
    T_b, U_b = batch.input_lengths, batch.label_lengths
    kept = without_a_last_label(arcs, T_b) if ends_by_blank else arcs
    with torch.no_grad():
        found = lattice([arc._replace(score=arc.score.detach()) for arc in kept], T_b, U_b)
    cells = inside(*batch.x.shape[1:3], T_b, U_b)
    surrogate = torch.zeros((), dtype=torch.float64)
    for arc, posterior in zip(arcs, found.posteriors, strict=True):
        weight = label_weight if arc.du else 1.0
        moves = cells & (posterior > 0)
        surrogate = surrogate - (weight * posterior * arc.score.masked_fill(~moves, 0)).sum()
    return -found.log_z, surrogate


# ---- what is known of a lattice besides its loss

ARC_SETS = {
    "standard": ((1, 0), (0, 1), False),
    "modified": ((1, 1), (0, 1), False),
    "tdt": ((1, 2, 0, 1, 2), (0, 0, 1, 1, 1), True),
    "tdt_without_0": ((4, 1, 2, 4, 1, 2), (0, 0, 0, 1, 1, 1), True),
    "multiblank": ((1, 0, 2, 3), (0, 1, 0, 0), False),
}


class Path(NamedTuple):
    score: Fraction  # exact
    cells: list  # (t, u, k)
    frames: tuple
    durations: tuple


def all_paths(scores: Tensor, arcs, T: int, U: int) -> list[Path]:
    """Of one utterance, scores [T, U + 1, K]."""
    dt, du, ends_by_blank = arcs
    values = scores.double().tolist()
    found = []

    def walk(t, u, cells):
        if (t, u) == (T, U):
            of_arcs = [values[t][u][k] for t, u, k in cells]
            labels = [(t, dt[k]) for t, u, k in cells if du[k]]
            if -INF not in of_arcs:
                found.append(
                    Path(sum(map(Fraction, of_arcs)), cells, tuple(t for t, _ in labels), tuple(d for _, d in labels))
                )
        elif t < T:
            for k in range(len(dt)):
                to = t + dt[k], u + du[k]
                if to[0] <= T and to[1] <= U and not (ends_by_blank and du[k] and to[0] == T):
                    walk(*to, [*cells, (t, u, k)])

    walk(0, 0, [])
    return found


class Oracle:
    """All that alignment.py answers, for scores [B, T, U + 1, K]."""

    def __init__(self, scores: Tensor, arcs, input_lengths: Tensor, label_lengths: Tensor):
        B, T, U1, _ = scores.shape
        self.arcs = arcs
        self.posteriors = torch.zeros(scores.shape, dtype=torch.float64)
        self.expected, self.entropy = torch.full((B, U1 - 1), -1.0, dtype=torch.float64), torch.zeros(B).double()
        self.frames, self.durations = torch.full((2, B, U1 - 1), -1).unbind(0)
        self.score, self.log_z = torch.full((2, B), -INF, dtype=torch.float64).unbind(0)
        self.paths = []
        for b, (frames, labels) in enumerate(zip(input_lengths.tolist(), label_lengths.tolist(), strict=True)):
            paths = all_paths(scores[b], arcs, frames, labels)
            self.paths.append(paths)
            if not paths:
                continue
            totals = torch.tensor([float(path.score) for path in paths], dtype=torch.float64)
            self.log_z[b] = totals.logsumexp(0)
            p = (totals - self.log_z[b]).exp()
            for path, weight in zip(paths, p, strict=True):
                for cell in path.cells:
                    self.posteriors[(b, *cell)] += weight
            self.expected[b, :labels] = p @ torch.tensor([path.frames for path in paths]).double().view(len(paths), -1)
            self.entropy[b] = -torch.xlogy(p, p).sum()
            best = max(path.score for path in paths)
            self.score[b] = float(best)
            ties = [path for path in paths if path.score == best]
            earliest = min(path.frames for path in ties)
            ties = [path.durations for path in ties if path.frames == earliest]
            self.frames[b, :labels] = torch.tensor(earliest)
            self.durations[b, :labels] = torch.tensor([min(of_label) for of_label in zip(*ties, strict=True)])

    def of(self, labels: int) -> Tensor:
        return self.posteriors[..., [k for k, du in enumerate(self.arcs[1]) if du == labels]]
