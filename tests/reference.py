"""Plain-PyTorch twins of the losses: a log-domain recursion over arcs, and an enumeration of paths.

A node is (t, u), an arc goes (t, u) -> (t + dt, u + du); log Z sums the paths from (0, 0) to (T, U). Every arc raises
t + u, so the recursion takes one anti-diagonal at a time: row n, column u of a skewed array is node (n - u, u).
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import torch
from batches import Batch, inside
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

INF = float("inf")
# (dt, du) of the blank arc and of the label arc
TOPOLOGIES = {"standard": ((1, 0), (0, 1)), "modified": ((1, 0), (1, 1)), "constrained": ((1, 0), (1, 1))}
CHUNK = 1 << 19  # elements of one V-wide temporary, so that it stays in the cache


class Arc(NamedTuple):
    dt: int
    du: int
    score: Tensor  # [B, T, U+1], of the arc that leaves (t, u)


class Lattice(NamedTuple):
    log_z: Tensor  # [B]
    alpha: Tensor  # [B, T, U+1], -inf outside an utterance
    beta: Tensor  # [B, T, U+1], -inf outside an utterance
    posteriors: list[Tensor]  # one [B, T, U+1] per arc; all 0 where log Z = -inf


def skew(x: Tensor) -> Tensor:
    B, T, W = x.shape
    t, u = torch.arange(T)[:, None], torch.arange(W)
    skewed = x.new_full((B, T + W, W), -INF)
    skewed[:, t + u, u] = x
    return skewed


def unskew(x: Tensor, T: int) -> Tensor:
    t, u = torch.arange(T)[:, None], torch.arange(x.shape[2])
    return x[:, t + u, u]


def lattice(arcs: list[Arc], input_lengths: Tensor, label_lengths: Tensor) -> Lattice:
    """Sum over the paths through any arcs; the posteriors are log Z's chain rule, from (T, U) back to (0, 0)."""
    B, T, W = arcs[0].score.shape
    T_b, U_b = input_lengths.long(), label_lengths.long()
    t, u = torch.arange(T)[:, None], torch.arange(W)
    cells = inside(T, W, T_b, U_b)
    arrives = [cells & (t + a.dt <= T_b[:, None, None]) & (u + a.du <= U_b[:, None, None]) for a in arcs]
    scores = [skew(arc.score.masked_fill(~a, -INF)) for arc, a in zip(arcs, arrives, strict=True)]
    steps = [(arc.dt + arc.du, arc.du) for arc in arcs]  # in diagonals, in columns
    N, last = T + W, (torch.arange(B), T_b + U_b, U_b)

    def target(x: Tensor, dn: int, du: int) -> Tensor:
        """x where the arc arrives, at the node that it leaves."""
        return pad(x[:, dn:, du:], (0, du, 0, dn))

    # alpha is kept relative to the largest of its diagonal, which loses no digits in a long lattice
    alpha = torch.full_like(scores[0], -INF)
    alpha[:, 0, 0] = 0
    shares, drop = alpha.new_zeros(len(arcs), *alpha.shape), alpha.new_zeros(B, N)
    for n in range(1, N):
        come = torch.full_like(shares[:, :, n], -INF)
        for k, (dn, du) in enumerate(steps):
            if dn <= n:
                dropped = drop[:, n - dn + 1 : n].sum(1, keepdim=True)
                come[k, :, du:] = (alpha[:, n - dn] + scores[k][:, n - dn] - dropped)[:, : W - du]
        shares[:, :, n] = come.softmax(0).nan_to_num(0)  # of the arcs that arrive
        alpha[:, n] = come.logsumexp(0)
        drop[:, n] = alpha[:, n].amax(1).nan_to_num(0, neginf=0)
        alpha[:, n] -= drop[:, n, None]
    alpha += drop.cumsum(1)[:, :, None]
    log_z = alpha[last]

    beta, flow = torch.full_like(alpha, -INF), torch.zeros_like(alpha)
    beta[last], flow[last] = 0, (log_z > -INF).to(alpha.dtype)
    for n in reversed(range(N - 1)):
        leave = [beta[:, n]]
        for k, (dn, du) in enumerate(steps):
            if n + dn < N:
                flow[:, n, : W - du] += shares[k][:, n + dn, du:] * flow[:, n + dn, du:]
                leave.append(scores[k][:, n] + pad(beta[:, n + dn, du:], (0, du), value=-INF))
        beta[:, n] = torch.stack(leave).logsumexp(0)
    posteriors = [unskew(target(share * flow, *step), T) for share, step in zip(shares, steps, strict=True)]
    alpha, beta = (unskew(x, T).masked_fill(~cells, -INF) for x in (alpha, beta))
    return Lattice(log_z, alpha, beta, posteriors)


def among_labels(x: Tensor, blank: int) -> Tensor:
    """Log-softmax over all classes but blank, which gets -inf."""
    return x.index_fill(-1, torch.tensor([blank]), -INF).log_softmax(-1)


def hat(x: Tensor, blank: int) -> Tensor:
    """Log-probabilities of the hybrid autoregressive transducer; as in a row, the logit +inf has none."""
    b = x[..., blank, None]
    b = b.masked_fill(b == INF, torch.nan)
    is_blank = torch.arange(x.shape[-1]) == blank
    return torch.where(is_blank, logsigmoid(b), logsigmoid(-b) + among_labels(x, blank))


class Twin:
    """Loss (nats) and gradient of a batch, computed in `dtype`; V-wide work goes in slices of frames."""

    def __init__(
        self,
        batch: Batch,
        from_logits: bool,
        topology: str = "standard",
        dtype: torch.dtype = torch.float64,
        normalizer: str = "softmax",
        fastemit_lambda: float = 0.0,
    ):
        x, labels, T_b, U_b, blank = batch
        self.batch, self.from_logits, self.topology, self.dtype = batch, from_logits, topology, dtype
        self.is_hat, self.fastemit_lambda = normalizer == "hat", fastemit_lambda
        self.blank, self.cells = blank % x.shape[3], inside(*x.shape[1:3], T_b, U_b)
        ids = pad(labels.long(), (0, 1)).clamp(0, x.shape[3] - 1)[:, None, :, None]
        self.ids = ids.expand(-1, x.shape[1], -1, -1)  # [B, T, U+1, 1]
        slices = [self._scores(frames) for frames in self._slices()]
        blank_score, label_score = (torch.cat(scores, 1) for scores in zip(*slices, strict=True))
        has_label = inside(*x.shape[1:3], T_b, U_b - 1)
        bad = self.cells & ~(blank_score < INF) | has_label & ~(label_score < INF)
        self.bad = bad.flatten(1).any(1)  # [B], NaN or +inf where it is read
        if topology == "constrained":
            label_score = label_score + pad(blank_score[:, :, 1:], (0, 1))
        arcs = zip(TOPOLOGIES[topology], (blank_score, label_score), strict=True)
        self.lattice = lattice([Arc(dt, du, score) for (dt, du), score in arcs], T_b, U_b)
        self.loss = (-self.lattice.log_z).masked_fill(self.bad, torch.nan)

    def _slices(self) -> list[slice]:
        x = self.batch.x
        size = max(1, CHUNK // max(1, x[:, :1].numel()))
        return [slice(t, t + size) for t in range(0, x.shape[1], size)]

    def _log_probs(self, frames: slice) -> Tensor:
        x = self.batch.x[:, frames].to(self.dtype)
        return hat(x, self.blank) if self.is_hat else x.log_softmax(-1) if self.from_logits else x

    def _scores(self, frames: slice) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(frames)
        return log_probs[..., self.blank], log_probs.gather(-1, self.ids[:, frames])[..., 0]

    def grad_slices(self) -> Iterator[tuple[slice, Tensor]]:
        """d(sum of losses)/dx, frames by frames, in `dtype`."""
        blank_flow, label_flow = self.lattice.posteriors
        label_flow = label_flow * (1 + self.fastemit_lambda)
        if self.topology == "constrained":
            blank_flow = blank_flow + pad(label_flow[:, :, :-1], (1, 0))
        for frames in self._slices():
            blank, label, cells = (x[:, frames, :, None] for x in (blank_flow, label_flow, self.cells))
            x = self.batch.x[:, frames].to(self.dtype)
            if self.is_hat:
                grad = torch.where(label == 0, 0, label * among_labels(x, self.blank).exp())
                b = x[..., self.blank, None]
                grad[..., self.blank, None] = label * b.sigmoid() - blank * (-b).sigmoid()
            else:
                grad = (blank + label) * x.softmax(-1) if self.from_logits else torch.zeros_like(x)
                grad[..., self.blank, None] -= blank
            grad.scatter_add_(-1, self.ids[:, frames], -label)
            grad = grad.masked_fill((self.loss == INF)[:, None, None, None] | ~cells, 0)
            yield frames, grad.masked_fill(self.bad[:, None, None, None] & cells, torch.nan)

    @cached_property
    def grad(self) -> Tensor:
        return torch.cat([grad for _, grad in self.grad_slices()], 1)


def enumerate_paths(log_probs: Tensor, labels: list[int], blank: int = 0, topology: str = "standard") -> Tensor:
    """The loss of one utterance, log_probs [T, U+1, V], as the sum over all choices of a frame per label."""
    T, U = log_probs.shape[0], len(labels)
    choose = combinations_with_replacement if topology == "standard" else combinations
    paths = []
    for chosen in choose(range(T), U):
        arcs = [(t, u, labels[u]) for u, t in enumerate(chosen)]
        if topology == "constrained":
            arcs += [(t, u + 1, blank) for u, t in enumerate(chosen)]
        blanks = [t for t in range(T) if topology == "standard" or t not in chosen]
        arcs += [(t, sum(s <= t for s in chosen), blank) for t in blanks]
        paths.append(sum(log_probs[arc] for arc in arcs))
    return -torch.stack(paths).logsumexp(0) if paths else torch.tensor(INF, dtype=log_probs.dtype)
