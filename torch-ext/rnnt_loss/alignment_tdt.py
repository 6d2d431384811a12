"""What the lattices of tdt.py know besides the loss; alignment.py has the rest."""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from ._ops import ops
from .arcs import align_of_arcs, posteriors_of_arcs, row_scores
from .checks import check_duration_logits, check_flags, check_tensors, durations_of, normalizer_of, number_of
from .lattice import Arcs, refuse_tangents
from .tdt import big_blanks_of, tdt_arcs


def posteriors_tdt(
    token_logits: Tensor,
    duration_logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    durations: Sequence[int],
    blank: int = 0,
    sigma: float = 0.0,
    *,
    from_logits: bool = True,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor]":
    """`posteriors` of a token-and-duration transducer.

    Args:
        token_logits, duration_logits, labels, input_lengths, label_lengths, durations, blank, sigma: as in `tdt_loss`.
        from_logits: False: both heads hold log-probabilities.
        validate: as in `rnnt_loss`.

    Returns:
        (blank, label), [B, T, U + 1, D] each, by duration; 0 for a blank of duration 0, which there is none of.

    Edges, Raises: as `posteriors`.

    Source: Xu et al., Efficient Sequence Transduction by Jointly Predicting Tokens and Durations, 2023.

    Example:
        >>> tokens, frames = torch.randn(2, 50, 11, 30), torch.randn(2, 50, 11, 5)
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> blank, label = alignment.posteriors_tdt(tokens, frames, labels, *lengths, durations=[0, 1, 2, 3, 4])
    """
    scores, arcs = _tdt_scores(token_logits, duration_logits, labels, input_lengths, label_lengths, durations, blank,
                               sigma, from_logits, validate)  # fmt: skip
    of_blanks, of_labels = posteriors_of_arcs(scores, input_lengths, label_lengths, arcs)
    blanks, none = iter(of_blanks), torch.zeros_like(of_labels[0])
    of_blanks = [next(blanks) if d > 0 else none for d, du in zip(arcs.dt, arcs.du) if du]
    return torch.stack(of_blanks, -1), of_labels.movedim(0, -1)


@torch.no_grad()
def align_tdt(
    token_logits: Tensor,
    duration_logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    durations: Sequence[int],
    blank: int = 0,
    sigma: float = 0.0,
    *,
    from_logits: bool = True,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor, Tensor]":
    """`align` of a token-and-duration transducer.

    Args: as in `posteriors_tdt`.

    Returns:
        (frames, durations, score): frames and durations [B, U], int64, at which each label leaves and how many it
        takes; score [B], float64, in nats. Of equally good paths it is the one with the earliest labels, as `align`;
        of several durations of a label that this leaves, the shortest.

    Edges: as `align`; durations are -1 where frames are.

    Raises: as `posteriors_tdt`.

    Source: as `posteriors_tdt`.

    Example:
        >>> tokens, frames = torch.randn(2, 50, 11, 30), torch.randn(2, 50, 11, 5)
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> frames, taken, score = alignment.align_tdt(tokens, frames, labels, *lengths, durations=[0, 1, 2, 3, 4])
    """
    scores, arcs = _tdt_scores(token_logits, duration_logits, labels, input_lengths, label_lengths, durations, blank,
                               sigma, from_logits, validate)  # fmt: skip
    frames, path_arcs, score = align_of_arcs(scores, input_lengths, label_lengths, arcs)
    return frames, torch.tensor([*arcs.dt, -1], device=frames.device)[path_arcs], score


def posteriors_multiblank(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    big_blank_durations: Sequence[int],
    blank: int,
    sigma: float = 0.0,
    *,
    from_logits: bool = False,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor]":
    """`posteriors` of a multi-blank transducer.

    Args:
        log_probs: [B, T, U + 1, V], float32, float64, float16 or bfloat16; logits with from_logits.
        labels, input_lengths, label_lengths, big_blank_durations, blank, sigma: as in `multiblank_rnnt_loss`.
        from_logits, validate: as in `posteriors`.

    Returns:
        (blank, label): blank [B, T, U + 1, 1 + big blanks], by duration, 1 frame first and then big_blank_durations;
        label [B, T, U + 1].

    Edges: as `posteriors`.

    Raises: as `multiblank_rnnt_loss`.

    Source: Xu et al., Multi-blank Transducers for Speech Recognition, 2022.

    Example:
        >>> log_probs = torch.randn(2, 50, 11, 30).log_softmax(-1)           # [B, T, U + 1, V]
        >>> labels = torch.randint(0, 27, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> blank, label = alignment.posteriors_multiblank(log_probs, labels, *lengths, [2, 4], blank=29)
        >>> blank.shape
        torch.Size([2, 50, 11, 3])
    """
    scores, arcs = _multiblank_scores(log_probs, labels, input_lengths, label_lengths, big_blank_durations, blank,
                                      sigma, from_logits, validate)  # fmt: skip
    of_blanks, (of_label,) = posteriors_of_arcs(scores, input_lengths, label_lengths, arcs)
    return of_blanks.movedim(0, -1), of_label


@torch.no_grad()
def align_multiblank(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    big_blank_durations: Sequence[int],
    blank: int,
    sigma: float = 0.0,
    *,
    from_logits: bool = False,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor]":
    """`align` of a multi-blank transducer.

    Args: as in `posteriors_multiblank`.

    Returns: as `align`.

    Edges: as `align`.

    Raises: as `posteriors_multiblank`.

    Source: as `posteriors_multiblank`.

    Example:
        >>> log_probs = torch.randn(2, 50, 11, 30).log_softmax(-1)           # [B, T, U + 1, V]
        >>> labels = torch.randint(0, 27, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> frames, score = alignment.align_multiblank(log_probs, labels, *lengths, [2, 4], blank=29)
    """
    scores, arcs = _multiblank_scores(log_probs, labels, input_lengths, label_lengths, big_blank_durations, blank,
                                      sigma, from_logits, validate)  # fmt: skip
    frames, _, score = align_of_arcs(scores, input_lengths, label_lengths, arcs)
    return frames, score


def _tdt_scores(tokens, duration_logits, labels, input_lengths, label_lengths, durations, blank, sigma, from_logits,
                validate) -> "tuple[Tensor, Arcs]":  # fmt: skip
    normalizer = normalizer_of(from_logits, "softmax")
    check_flags(validate=validate)
    check_tensors("token_logits", tokens, labels, input_lengths, label_lengths)
    durations = durations_of(durations)
    check_duration_logits(duration_logits, tokens, durations)
    scores = row_scores(tokens, labels, input_lengths, label_lengths, blank, normalizer, validate)
    refuse_tangents(duration_logits)
    scores = ops.tdt_scores(scores - number_of("sigma", sigma), duration_logits.to(scores.dtype), input_lengths,
                            label_lengths, durations, normalizer)  # fmt: skip
    return scores, tdt_arcs(durations)


def _multiblank_scores(x, labels, input_lengths, label_lengths, big_blank_durations, blank, sigma, from_logits,
                       validate) -> "tuple[Tensor, Arcs]":  # fmt: skip
    normalizer = normalizer_of(from_logits, "softmax")
    check_flags(validate=validate)
    check_tensors("log_probs", x, labels, input_lengths, label_lengths)
    arcs, (blank, *big), labels = big_blanks_of(x, labels, label_lengths, big_blank_durations, blank, validate)
    ids = labels, input_lengths, label_lengths
    scores = [row_scores(x, *ids, blank, normalizer, validate)]
    scores += [row_scores(x, *ids, of_big, normalizer, validate)[:1] for of_big in big]
    return torch.cat(scores) - number_of("sigma", sigma), arcs
