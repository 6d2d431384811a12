"""What the lattice knows besides the loss: posteriors, expected frames, entropy, the best alignment, samples."""

from typing import Optional

import torch
from torch import Tensor

from .alignment_tdt import align_multiblank, align_tdt, posteriors_multiblank, posteriors_tdt
from .arcs import (
    align_of_arcs,
    entropy_of_arcs,
    expected_frames_of_arcs,
    posteriors_of_arcs,
    row_scores,
    sample_of_arcs,
)
from .checks import check_flags, check_one_of, check_tensors, check_variant, normalizer_of, number_of
from .lattice import ARCS, transducer_arcs

__all__ = [
    "align",
    "align_multiblank",
    "align_tdt",
    "entropy",
    "expected_frames",
    "frames_to_seconds",
    "posteriors",
    "posteriors_multiblank",
    "posteriors_tdt",
    "sample_paths",
]


def posteriors(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    *,
    from_logits: bool = False,
    normalizer: str = "softmax",
    topology: str = "standard",
    delay_penalty: float = 0.0,
    sigma: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor]":
    r"""The probability that a path takes an arc, given the transcript: minus the loss's gradient by the arc's score.

    Args:
        log_probs: [B, T, U + 1, V], float32, float64, float16 or bfloat16; logits with from_logits.
        from_logits: log_probs holds logits, which are normalized on the way.
        normalizer: how, "softmax" or "hat", as in `rnnt_loss_from_logits`.
        labels, input_lengths, label_lengths, blank, topology, delay_penalty, sigma, windows, blank_bias, label_bias,
            validate: as in `rnnt_loss`.

    Returns:
        (blank, label), [B, T, U + 1] each, float32 (float64 for float64 input): of the arcs that leave (t, u).
        Differentiable once, by log_probs and the biases: their derivative is the loss's second.

    Edges: 0 in padding, for labels at u = U_b, and everywhere in an utterance without a path. NaN in the cells of an
    utterance that has NaN or +inf in what is read of it.

    Raises: as `rnnt_loss`; RuntimeError where a derivative of the derivative is asked for.

    Source: Graves 2012; the derivative: Li and Eisner, First- and Second-Order Expectation Semirings, 2009.

    Example:
        >>> log_probs = torch.randn(2, 50, 11, 30).log_softmax(-1)           # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> blank, label = alignment.posteriors(log_probs, labels, *lengths)
        >>> label.sum((1, 2)).round()                                        # as many as there are labels
        tensor([10.,  7.])
    """
    scores = _scores(log_probs, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology,
                     delay_penalty, sigma, windows, blank_bias, label_bias, validate)  # fmt: skip
    (of_blank,), (of_label,) = posteriors_of_arcs(scores, input_lengths, label_lengths, ARCS[topology])
    return of_blank, of_label


def expected_frames(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    *,
    from_logits: bool = False,
    normalizer: str = "softmax",
    topology: str = "standard",
    delay_penalty: float = 0.0,
    sigma: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""The mean frame at which each label leaves, over all paths: sum over t of t posterior(label u at t).

    Args: as in `posteriors`.

    Returns:
        [B, U], float32 (float64 for float64 input), in frames from 0. Differentiable once.

    Edges: -1, with gradient 0, where there is no label (u >= U_b) and in an utterance without a path; NaN in one that
    has NaN or +inf in what is read of it.

    Raises, Source: as `posteriors`.

    Example:
        >>> log_probs = torch.randn(2, 50, 11, 30, requires_grad=True)       # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> frames = alignment.expected_frames(log_probs, labels, *lengths, from_logits=True)
        >>> frames[frames >= 0].mean().backward()                            # say, to emit early
    """
    scores = _scores(log_probs, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology,
                     delay_penalty, sigma, windows, blank_bias, label_bias, validate)  # fmt: skip
    return expected_frames_of_arcs(scores, input_lengths, label_lengths, ARCS[topology])


def entropy(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    *,
    from_logits: bool = False,
    normalizer: str = "softmax",
    topology: str = "standard",
    delay_penalty: float = 0.0,
    sigma: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""How uncertain the alignment is: the entropy of the distribution over paths, log Z - sum posterior x score.

    Args: as in `posteriors`.

    Returns:
        [B] in nats, float32 (float64 for float64 input), computed in double: 0 where one path has all probability, at
        most the logarithm of the number of paths. Differentiable once.

    Edges: 0, with gradient 0, for an utterance without a path; NaN for one that has NaN or +inf in what is read of it.

    Raises, Source: as `posteriors`.

    Example:
        >>> log_probs = torch.zeros(1, 4, 3, 5)                              # equal: every path is as likely
        >>> labels = torch.tensor([[1, 2]])
        >>> alignment.entropy(log_probs, labels, torch.tensor([4]), torch.tensor([2])).exp().round()      # 5 over 2
        tensor([10.])
    """
    scores = _scores(log_probs, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology,
                     delay_penalty, sigma, windows, blank_bias, label_bias, validate)  # fmt: skip
    return entropy_of_arcs(scores, input_lengths, label_lengths, ARCS[topology])


@torch.no_grad()
def align(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    *,
    from_logits: bool = False,
    normalizer: str = "softmax",
    topology: str = "standard",
    delay_penalty: float = 0.0,
    sigma: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> "tuple[Tensor, Tensor]":
    r"""The best path (Viterbi, forced alignment): the frame at which each label leaves.

    Of equally good paths it is the one with the earliest label 1, of these the one with the earliest label 2, and so
    on. From log-probabilities the result is the same on every device.

    Args: as in `posteriors`.

    Returns:
        (frames, score): frames [B, U], int64, from 0; score [B], float64, the sum of the path's arcs in nats.

    Edges: -1 where there is no label (u >= U_b). An utterance without a path has score -inf and frames -1; one that
    has NaN or +inf in what is read of it has score NaN and frames -1.

    Raises: as `rnnt_loss`.

    Source: Graves 2012; Viterbi, Error Bounds for Convolutional Codes, 1967.

    Example:
        >>> logits = torch.zeros(1, 4, 3, 5)
        >>> logits[0, 1, 0, 1] = logits[0, 3, 1, 2] = 9                      # label 1 in frame 1, label 2 in frame 3
        >>> lengths = torch.tensor([4]), torch.tensor([2])
        >>> frames, score = alignment.align(logits, torch.tensor([[1, 2]]), *lengths, from_logits=True)
        >>> frames
        tensor([[1, 3]])
        >>> alignment.frames_to_seconds(frames, 0.04)
        tensor([[0.0400, 0.1200]], dtype=torch.float64)
    """
    scores = _scores(log_probs, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology,
                     delay_penalty, sigma, windows, blank_bias, label_bias, validate)  # fmt: skip
    frames, _, score = align_of_arcs(scores, input_lengths, label_lengths, ARCS[topology])
    return frames, score


@torch.no_grad()
def sample_paths(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    *,
    n: int = 1,
    generator: Optional[torch.Generator] = None,
    from_logits: bool = False,
    normalizer: str = "softmax",
    topology: str = "standard",
    delay_penalty: float = 0.0,
    sigma: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""Alignments drawn from their distribution: a path as often as exp(its score) / Z.

    Args:
        n: samples of each utterance, >= 0.
        generator: that they are drawn from, on any device; torch's default one on that of log_probs.
        The rest: as in `posteriors`.

    Returns:
        frames [n, B, U], int64: at which each label leaves.

    Edges: -1 where there is no label (u >= U_b), and in an utterance without a path or with NaN.

    Raises: as `rnnt_loss`.

    Source: forward filtering, backward sampling; here the filter runs backward.

    Example:
        >>> log_probs = torch.randn(2, 50, 11, 30).log_softmax(-1)           # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> alignment.sample_paths(log_probs, labels, *lengths, n=100).shape
        torch.Size([100, 2, 10])
    """
    scores = _scores(log_probs, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology,
                     delay_penalty, sigma, windows, blank_bias, label_bias, validate)  # fmt: skip
    return sample_of_arcs(scores, input_lengths, label_lengths, ARCS[topology], n, generator)[0]


def frames_to_seconds(frames: Tensor, frame_shift: float) -> Tensor:
    """frames x frame_shift, in seconds; NaN where frames are -1. Integers become float64.

    Args:
        frames: of any shape, from `align`, `sample_paths` or `expected_frames`.
        frame_shift: seconds from one frame of the lattice to the next.

    Example:
        >>> alignment.frames_to_seconds(torch.tensor([0, 25, -1]), 0.04)
        tensor([0., 1., nan], dtype=torch.float64)
    """
    if not isinstance(frames, Tensor) or frames.is_complex() or frames.dtype == torch.bool:
        kind = frames.dtype if isinstance(frames, Tensor) else type(frames).__name__
        raise TypeError(f"frames must be a tensor of integers or floating point numbers, got {kind}")
    frame_shift = number_of("frame_shift", frame_shift)
    frames = frames if frames.is_floating_point() else frames.double()
    return torch.where(frames == -1, torch.nan, frames * frame_shift)


def _scores(x, labels, input_lengths, label_lengths, blank, from_logits, normalizer, topology, delay_penalty, sigma,
            windows, blank_bias, label_bias, validate) -> Tensor:  # fmt: skip
    normalizer = normalizer_of(from_logits, normalizer)
    check_one_of("topology", topology, ARCS)
    check_flags(validate=validate)
    check_tensors("log_probs", x, labels, input_lengths, label_lengths)
    check_variant(x.device, x.shape[:3], windows, blank_bias, label_bias)
    scores = row_scores(x, labels, input_lengths, label_lengths, blank, normalizer, validate)
    return transducer_arcs(scores, input_lengths, topology, sigma=number_of("sigma", sigma), windows=windows,
                           delay_penalty=number_of("delay_penalty", delay_penalty), blank_bias=blank_bias,
                           label_bias=label_bias)  # fmt: skip
