"""Transducers whose arcs skip frames: token-and-duration (TDT) and multi-blank."""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from ._ops import ops
from .checks import (
    MOST_ARCS,
    chance_of,
    check_duration_logits,
    check_flags,
    check_generator,
    check_options,
    check_overwritable,
    check_tensors,
    clamp_of,
    class_of,
    durations_of,
    integer_of,
    integers_of,
    number_of,
)
from .lattice import ARCS, TAIL, Arcs, Rows, emphasised, lattice_loss, reduced


def tdt_loss(
    token_logits: Tensor,
    duration_logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    durations: Sequence[int],
    blank: int = 0,
    sigma: float = 0.0,
    reduction: str = "mean",
    *,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    clamp: Optional[float] = None,
    zero_infinity: bool = False,
    omega: float = 0.0,
    generator: Optional[torch.Generator] = None,
    inplace_grad: bool = False,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""Token-and-duration transducer loss: every token, blank too, comes with the number of frames it takes.

    loss_b = -log Z_b, where Z_b sums over all paths from (0, 0) to (T_b, U_b) that end by a blank. From (t, u) a blank
    of duration d > 0 leads to (t + d, u), label u of duration d >= 0 to (t + d, u + 1); each has the log-probability
    log_softmax(token_logits)[token] - sigma + log_softmax(duration_logits)[d].

    Args:
        token_logits: [B, T, U + 1, V], float32, float64, float16 or bfloat16, any strides.
        duration_logits: [B, T, U + 1, D], floating point.
        labels, input_lengths, label_lengths, blank, reduction, zero_infinity, inplace_grad, validate: as in
            `rnnt_loss_from_logits`; inplace_grad is of token_logits.
        durations: 1 to 16 different frame counts >= 0 in the order of duration_logits' last axis, one of them above 0.
        sigma: subtracted from each token's log-probability (logit under-normalisation): longer durations are preferred.
        fastemit_lambda: label posteriors x (1 + fastemit_lambda) in the gradients of both heads (FastEmit).
        scale_loss: return (1 + fastemit_lambda) x loss, with the same gradient.
        clamp: bound, > 0, of d loss_b / d logits of both heads, before the upstream gradient is multiplied in.
        omega: the chance that this call is the loss of the token head alone, as a standard transducer (sigma unused).
        generator: that omega is drawn from; torch's default one on the CPU. One on a GPU is waited for.

    Returns:
        The loss in nats, float32 (float64 for float64 tokens): [B] for reduction "none", else a scalar.

    Edges: an utterance that no path of these durations crosses has loss +inf and gradient 0. Empty transcripts are
    fine. NaN or +inf in a row of a cell, of either head, makes that utterance NaN and no other. Padding is never read.

    Raises: as `rnnt_loss`; ValueError for durations that are negative, not different, all 0, or not D.

    Source: Xu et al., Efficient Sequence Transduction by Jointly Predicting Tokens and Durations, 2023.

    Example:
        >>> tokens = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> frames = torch.randn(2, 50, 11, 5, requires_grad=True)           # [B, T, U + 1, D]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> tdt_loss(tokens, frames, labels, *lengths, durations=[0, 1, 2, 3, 4], sigma=0.05).backward()
    """
    check_tensors("token_logits", token_logits, labels, input_lengths, label_lengths)
    durations = durations_of(durations)
    check_duration_logits(duration_logits, token_logits, durations)
    options = Options(reduction, fastemit_lambda, scale_loss, clamp, zero_infinity, inplace_grad, validate, sigma)
    rows = options.rows("token_logits", token_logits, labels, input_lengths, label_lengths, blank)
    return _tdt(token_logits, rows, durations, options, omega, generator, duration_logits)


def tdt_loss_from_joint_logits(
    logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    durations: Sequence[int],
    blank: int = 0,
    sigma: float = 0.0,
    reduction: str = "mean",
    *,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    clamp: Optional[float] = None,
    zero_infinity: bool = False,
    omega: float = 0.0,
    generator: Optional[torch.Generator] = None,
    inplace_grad: bool = False,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""`tdt_loss` of one tensor [B, T, U + 1, V + D], as a joint network gives it: V tokens, then D durations.

    There is one gradient, of the same shape; tokens are not copied. blank counts within the V tokens.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30 + 5, requires_grad=True)      # [B, T, U + 1, V + D]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> tdt_loss_from_joint_logits(logits, labels, *lengths, durations=[0, 1, 2, 3, 4]).backward()
    """
    options = Options(reduction, fastemit_lambda, scale_loss, clamp, zero_infinity, inplace_grad, validate, sigma)
    return tdt_of_joint(logits, labels, input_lengths, label_lengths, durations, blank, options, omega, generator)


class TDTLoss(torch.nn.Module):
    """`tdt_loss` as a module without state; joint=True takes one tensor, as `tdt_loss_from_joint_logits`.

    Example:
        >>> criterion = TDTLoss(durations=[0, 1, 2, 3, 4], sigma=0.05, joint=True)
        >>> logits = torch.randn(2, 50, 11, 30 + 5, requires_grad=True)      # [B, T, U + 1, V + D]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> criterion(logits, labels, torch.tensor([50, 40]), torch.tensor([10, 7])).backward()
    """

    def __init__(self, durations: Sequence[int], blank: int = 0, sigma: float = 0.0, reduction: str = "mean", *,
                 joint: bool = False, fastemit_lambda: float = 0.0, scale_loss: bool = False,
                 clamp: Optional[float] = None, zero_infinity: bool = False, omega: float = 0.0,
                 generator: Optional[torch.Generator] = None, validate: Optional[bool] = None):  # fmt: skip
        super().__init__()
        self.joint = joint
        self.options = {
            "durations": durations_of(durations), "blank": blank, "sigma": sigma, "reduction": reduction,
            "fastemit_lambda": fastemit_lambda, "scale_loss": scale_loss, "clamp": clamp,
            "zero_infinity": zero_infinity, "omega": omega, "generator": generator, "validate": validate,
        }  # fmt: skip
        Options(reduction, fastemit_lambda, scale_loss, clamp, zero_infinity, False, validate, sigma)
        integer_of("blank", blank), chance_of(omega), check_generator(generator), check_flags(joint=joint)

    def forward(self, *tensors: Tensor, **named: Tensor) -> Tensor:
        """The five tensors of `tdt_loss`, or the four of `tdt_loss_from_joint_logits` if joint, in order or by name."""
        loss, wanted = (tdt_loss_from_joint_logits, 4) if self.joint else (tdt_loss, 5)
        if len(tensors) + len(named) != wanted:
            raise TypeError(
                f"TDTLoss with joint={self.joint} takes the {wanted} tensors of {loss.__name__}, "
                f"got {len(tensors) + len(named)}"
            )
        return loss(*tensors, **named, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in {**self.options, "joint": self.joint}.items())


def multiblank_rnnt_loss(
    logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    big_blank_durations: Sequence[int],
    blank: int,
    sigma: float = 0.0,
    reduction: str = "mean",
    *,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    clamp: Optional[float] = None,
    zero_infinity: bool = False,
    inplace_grad: bool = False,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""Multi-blank transducer loss: the standard lattice, and blanks that lead over several frames.

    loss_b = -log Z_b over all paths from (0, 0) to (T_b, U_b). From (t, u), blank leads to (t + 1, u), big blank i to
    (t + big_blank_durations[i], u), label u to (t, u + 1); each has log_softmax(logits)[class] - sigma.

    Args:
        logits: [B, T, U + 1, V], float32, float64, float16 or bfloat16, any strides.
        big_blank_durations: frames, >= 1, of the big blanks, at most 30. Big blank i is class blank - 1 - i.
        blank: class of the blank, in [-V, V); counted from 0, at least the number of big blanks.
        sigma: subtracted from every log-probability (logit under-normalisation).
        labels, input_lengths, label_lengths, reduction, zero_infinity, inplace_grad, validate: as in
            `rnnt_loss_from_logits`. A label may not be a big blank.
        fastemit_lambda, scale_loss, clamp: as in `tdt_loss`.

    Returns, Edges, Raises: as `rnnt_loss_from_logits`.

    Source: Xu et al., Multi-blank Transducers for Speech Recognition, 2022.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> labels = torch.randint(0, 27, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> multiblank_rnnt_loss(logits, labels, *lengths, big_blank_durations=[2, 4], blank=29).backward()
    """
    check_tensors("logits", logits, labels, input_lengths, label_lengths)
    options = Options(reduction, fastemit_lambda, scale_loss, clamp, zero_infinity, inplace_grad, validate, sigma)
    arcs, (index, *extra), labels = big_blanks_of(logits, labels, label_lengths, big_blank_durations, blank, validate)
    rows = options.rows("logits", logits, labels, input_lengths, label_lengths, index, extra=len(extra))

    def compose(scores: Tensor, *big: Tensor) -> Tensor:
        return emphasised(torch.cat([scores, *big]) - sigma, arcs, options.fastemit_lambda)

    return options.finished(lattice_loss(logits, rows, arcs, compose), label_lengths)


class Options:
    """What losses with durations have in common. tokens_alone: FastEmit and clamp leave durations' gradient alone."""

    def __init__(self, reduction, fastemit_lambda, scale_loss, clamp, zero_infinity, inplace_grad, validate, sigma,
                 tokens_alone=False):  # fmt: skip
        check_options(reduction, "softmax", clamp, fastemit_lambda, "standard", zero_infinity=zero_infinity,
                      inplace_grad=inplace_grad, validate=validate, scale_loss=scale_loss)  # fmt: skip
        self.fastemit_lambda = number_of("fastemit_lambda", fastemit_lambda, 0.0)
        self.sigma, self.tokens_alone = number_of("sigma", sigma), tokens_alone
        self.reduction, self.scale_loss, self.zero_infinity = reduction, scale_loss, zero_infinity
        self.kept = {"clamp": clamp_of(clamp), "inplace_grad": inplace_grad, "validate": bool(validate)}

    def rows(self, name, x, labels, input_lengths, label_lengths, blank, extra=0, tail=0) -> Rows:
        if self.kept["inplace_grad"] and torch.is_grad_enabled() and x.requires_grad:
            check_overwritable(name, x)
        return Rows(labels, input_lengths, label_lengths, class_of(blank, x.shape[3] - tail), "softmax", extra, tail,
                    **self.kept)  # fmt: skip

    def finished(self, loss: Tensor, label_lengths: Tensor) -> Tensor:
        if self.scale_loss and self.fastemit_lambda:  # the value alone
            loss = loss + (self.fastemit_lambda * loss).detach()
        return reduced(loss, label_lengths, self.reduction, self.zero_infinity)


def tdt_arcs(durations: Sequence[int]) -> Arcs:
    """Blanks of the durations above 0, then labels of all."""
    blanks = [d for d in durations if d > 0]
    return Arcs((*blanks, *durations), (*[0] * len(blanks), *[1] * len(durations)), ends_by_blank=True)


def tdt_of_joint(logits, labels, input_lengths, label_lengths, durations, blank, options, omega, generator) -> Tensor:
    check_tensors("logits", logits, labels, input_lengths, label_lengths)
    durations = durations_of(durations)
    V = logits.shape[3] - len(durations)
    if V < 1:
        raise ValueError(
            f"logits must have more than {len(durations)} columns, tokens and durations, got {V + len(durations)}"
        )
    rows = options.rows("logits", logits, labels, input_lengths, label_lengths, blank, tail=len(durations))
    return _tdt(logits, rows, durations, options, omega, generator)


def _tdt(x, rows, durations, options, omega, generator, *duration_logits) -> Tensor:
    def compose_tokens(scores: Tensor, _: Tensor) -> Tensor:
        return emphasised(scores, ARCS["standard"], options.fastemit_lambda)

    def compose(scores: Tensor, logits: Tensor) -> Tensor:
        tokens = scores - options.sigma if options.sigma else scores
        if options.tokens_alone:
            tokens = compose_tokens(tokens, logits)
        of_arcs = ops.tdt_scores(tokens, logits.to(tokens.dtype), rows.input_lengths, rows.label_lengths, durations,
                                 "softmax")  # fmt: skip
        return of_arcs if options.tokens_alone else emphasised(of_arcs, tdt_arcs(durations), options.fastemit_lambda)

    omega = chance_of(omega)
    check_generator(generator)
    device = None if generator is None else generator.device
    tokens_only = omega and torch.rand((), generator=generator, device=device).item() < omega
    arcs, composed = (ARCS["standard"], compose_tokens) if tokens_only else (tdt_arcs(durations), compose)
    clamped = () if options.tokens_alone else (TAIL, 0)  # the durations, in x or beside it
    loss = lattice_loss(x, rows, arcs, composed, *duration_logits, clamped=clamped)
    return options.finished(loss, rows.label_lengths)


def big_blanks_of(x, labels, label_lengths, durations, blank, validate) -> "tuple[Arcs, list[int], Tensor]":
    """Arcs of blank, label and big blanks, the classes of all but label, and the labels.

    A label must not be a big blank: that is an error, or where nobody may look, on a GPU, no label at all (so NaN).
    """
    durations = integers_of("big_blank_durations", durations, 1, MOST_ARCS - 2)
    index = class_of(blank, x.shape[3])
    if index < len(durations):
        raise ValueError(f"blank must be at least {len(durations)}, for as many big blanks before it, got {blank}")
    big = [index - 1 - i for i in range(len(durations))]
    is_big = (labels >= index - len(big)) & (labels < index)
    if not validate and not labels.device.type == label_lengths.device.type == "cpu":
        labels = labels.masked_fill(is_big, -1)
    elif not (label_lengths > labels.shape[1]).any():  # which is an error that comes first
        within = torch.arange(labels.shape[1], device=labels.device) < label_lengths.to(labels.device)[:, None]
        if (within & is_big).any():
            b, u = (within & is_big).nonzero()[0].tolist()
            raise RuntimeError(f"labels[{b}, {u}] must not be a big blank ({big}), got {labels[b, u]}")
    return Arcs((1, 0, *durations), (0, 1, *[0] * len(durations))), [index, *big], labels
