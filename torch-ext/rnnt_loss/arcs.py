"""What the lattice of any arcs knows: of scores [K, B, T, U + 1], float or double, in nats, which lattice.py makes."""

from typing import Optional

import torch
from torch import Tensor

from ._ops import ops
from .checks import check_generator, class_of
from .lattice import Arcs, refuse_tangents


def posteriors_of_arcs(
    scores: Tensor, input_lengths: Tensor, label_lengths: Tensor, arcs: Arcs
) -> "tuple[Tensor, Tensor]":
    """Posteriors of the blank arcs and of the label arcs, [how many of them there are, B, T, U + 1]."""
    _, of_arcs = _loss_and_posteriors(scores, input_lengths, label_lengths, arcs)
    return of_arcs[_advancing(arcs, 0)], of_arcs[_advancing(arcs, 1)]


def expected_frames_of_arcs(scores: Tensor, input_lengths: Tensor, label_lengths: Tensor, arcs: Arcs) -> Tensor:
    loss, of_arcs = _loss_and_posteriors(scores, input_lengths, label_lengths, arcs)
    T, U1 = scores.shape[2:]
    frame = torch.arange(T, device=scores.device, dtype=scores.dtype)
    mean = (of_arcs[_advancing(arcs, 1), ..., :-1].sum(0) * frame[:, None]).sum(1)
    has_label = torch.arange(U1 - 1, device=scores.device) < label_lengths.to(scores.device)[:, None]
    has_frame = has_label & (loss != torch.inf)[:, None]
    return mean.masked_fill(loss.isnan()[:, None], torch.nan).masked_fill(~has_frame, -1.0)


def entropy_of_arcs(scores: Tensor, input_lengths: Tensor, label_lengths: Tensor, arcs: Arcs) -> Tensor:
    wide = scores.double()  # a difference of large numbers
    loss, of_arcs = _loss_and_posteriors(wide, input_lengths, label_lengths, arcs)
    # Where an arc is on no path, neither its score, perhaps -inf, nor its posterior's derivative has a part.
    mean_score = (of_arcs * wide.masked_fill(of_arcs == 0, 0.0)).sum((0, 2, 3))
    return torch.where(loss == torch.inf, 0.0, (-loss - mean_score).clamp(min=0)).to(scores.dtype)


def align_of_arcs(
    scores: Tensor, input_lengths: Tensor, label_lengths: Tensor, arcs: Arcs
) -> "tuple[Tensor, Tensor, Tensor]":
    """Frames [B, U] and numbers of the labels' arcs [B, U] on the best path, and its score [B]."""
    frames, path_arcs, score = ops.paths(scores.detach(), input_lengths, label_lengths, *arcs, None)
    return frames[0], path_arcs[0], score


def sample_of_arcs(
    scores: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    arcs: Arcs,
    n: int,
    generator: Optional[torch.Generator] = None,
) -> "tuple[Tensor, Tensor]":
    """Frames [n, B, U] and numbers of the labels' arcs [n, B, U] on n paths."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n must be an int, got {type(n).__name__}")
    if n < 0:
        raise ValueError(f"n must be an int >= 0, got {n}")
    check_generator(generator)
    _, B, T, U1 = scores.shape
    device = scores.device if generator is None else generator.device
    uniforms = torch.rand(n, B, T + U1, dtype=torch.float64, device=device, generator=generator).to(scores.device)
    frames, path_arcs, _ = ops.paths(scores.detach(), input_lengths, label_lengths, *arcs, uniforms)
    return frames, path_arcs


def _loss_and_posteriors(scores, input_lengths, label_lengths, arcs) -> "tuple[Tensor, Tensor]":
    refuse_tangents(scores)
    return ops.lattice(scores, input_lengths, label_lengths, *arcs, True, False)


def _advancing(arcs: Arcs, labels: int) -> "list[int]":
    return [k for k, du in enumerate(arcs.du) if du == labels]


def row_scores(x, labels, input_lengths, label_lengths, blank, normalizer, validate) -> Tensor:
    """Scores of blank and label; log-probabilities as they are, to the bit."""
    refuse_tangents(x)
    blank = class_of(blank, x.shape[3])
    return ops.score(x, labels, input_lengths, label_lengths, blank, normalizer, bool(validate))[0]
