"""What the lattice of any arcs knows: of scores [K, B, T, U + 1], float or double, in nats, which lattice.py makes."""

from typing import Optional

import torch
from torch import Tensor

from ._ops import ops
from .checks import check_generator, class_of, integer_of
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
    lengths = label_lengths.to(scores.device)
    lengths = torch.where((lengths < 0) | (lengths >= U1), U1 - 1, lengths)  # those of nobody are all NaN
    has_label = torch.arange(U1 - 1, device=scores.device) < lengths[:, None]
    has_frame = has_label & (loss != torch.inf)[:, None]
    return mean.masked_fill(loss.isnan()[:, None], torch.nan).masked_fill(~has_frame, -1.0)


def entropy_of_arcs(scores: Tensor, input_lengths: Tensor, label_lengths: Tensor, arcs: Arcs) -> Tensor:
    _, of_arcs = _loss_and_posteriors(scores.double(), input_lengths, label_lengths, arcs)
    p = of_arcs.detach()
    # That of an arc, given its cell. Its own derivatives add up to 0 in a cell.
    surprise = torch.where(p > 0, p.sum(0).log() - p.log(), 0.0)
    return (of_arcs * surprise).sum((0, 2, 3)).to(scores.dtype)


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
    n = integer_of("n", n)
    if not 0 <= n < 1 << 31:
        raise ValueError(f"n must be in [0, 2^31), got {n}")
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
