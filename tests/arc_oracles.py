"""What a variant should give: a walk over every path, and the twin's recursion with torch's own derivative."""

import torch
from batches import INF, Batch, inside
from reference import Arc, lattice
from torch import Tensor
from torch.nn.functional import pad


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


def recursion(arcs: list[Arc], batch: Batch, ends_by_blank: bool, label_weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """The losses [B], and a sum whose derivative is theirs, with label posteriors times label_weight."""
    T_b, U_b = batch.input_lengths, batch.label_lengths
    t = torch.arange(batch.x.shape[1])[:, None]
    last = t + 0 * U_b[:, None, None]
    kept = []
    for arc in arcs:
        score = arc.score
        if ends_by_blank and arc.du:
            score = score.masked_fill(last + arc.dt == T_b[:, None, None], -INF)
        kept.append(arc._replace(score=score))
    with torch.no_grad():
        found = lattice([arc._replace(score=arc.score.detach()) for arc in kept], T_b, U_b)
    cells = inside(*batch.x.shape[1:3], T_b, U_b)
    surrogate = torch.zeros((), dtype=torch.float64)
    for arc, posterior in zip(arcs, found.posteriors, strict=True):
        weight = label_weight if arc.du else 1.0
        moves = cells & (posterior > 0)
        surrogate = surrogate - (weight * posterior * arc.score.masked_fill(~moves, 0)).sum()
    return -found.log_z, surrogate
