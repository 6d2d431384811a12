"""The waist: rows become scores of arcs, a variant changes these, and one lattice takes any arcs.

What a variant does is a function of tensors, from the scores of blank and label [B, T, U + 1, 2] to those of its arcs
[B, T, U + 1, K]. It is all there is of the variant: its derivative is torch's.
"""

from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ._ops import ops


class Arcs(NamedTuple):
    """The K arcs that leave a cell: by dt frames and du labels. ends_by_blank: no label arc leads to frame T."""

    dt: Sequence[int]
    du: Sequence[int]
    ends_by_blank: bool = False


ARCS = {
    "standard": Arcs((1, 0), (0, 1)),
    "modified": Arcs((1, 1), (0, 1)),
    "constrained": Arcs((1, 1), (0, 1)),
}


class Rows(NamedTuple):
    """What the rows are: ids, and how they become scores. extra: classes that are arcs besides blank and label."""

    labels: Tensor
    input_lengths: Tensor
    label_lengths: Tensor
    blank: int
    from_logits: bool = True
    extra: tuple = ()
    clamp: Optional[float] = None
    inplace_grad: bool = False
    validate: bool = False


class LatticeLoss(torch.autograd.Function):
    """[B] losses of x, of arcs = compose(scores, *inputs), or compose(scores, extra scores, *inputs).

    The gradients of x and of `clamped` inputs are bounded before the upstream gradient is multiplied in: so they are
    found for an upstream gradient of 1.
    """

    @staticmethod
    def forward(ctx, x, rows, arcs, compose, clamped, keep, *inputs):
        ids = rows.labels, rows.input_lengths, rows.label_lengths
        scores, softmax = ops.score(x, *ids, rows.blank, rows.from_logits, rows.validate)
        tensors = [scores, *inputs]
        if rows.extra:
            tensors.insert(1, x[..., list(rows.extra)].to(scores.dtype) - softmax[0, ..., None]
                           - softmax[1, ..., None].log1p())  # fmt: skip
        loss, posteriors = ops.lattice(compose(*tensors), *ids[1:], *arcs, keep, False)
        if keep:
            ctx.save_for_backward(x, softmax, posteriors, *tensors)
            ctx.rows, ctx.compose, ctx.clamped = rows, compose, clamped
        return loss

    @staticmethod
    def backward(ctx, grad_loss):
        x, softmax, posteriors, *tensors = ctx.saved_tensors
        rows = ctx.rows
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            grads = list(torch.autograd.grad(ctx.compose(*leaves), leaves, -posteriors))
        of_rows = [-grads.pop(0)] + ([-grads.pop(0)] if rows.extra else [])
        upstream = grad_loss[:, None, None, None]
        for i, grad in enumerate(grads):
            if i in ctx.clamped and rows.clamp is not None:
                grad = grad.clamp(-rows.clamp, rows.clamp)
            grads[i] = (grad * grad_loss.view(-1, *[1] * (grad.dim() - 1))).to(grad.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = x.detach() if rows.inplace_grad else torch.empty_like(x)
            _row_gradients(grad_x, grad_loss, upstream, x, softmax, rows, *of_rows)
            if rows.inplace_grad:
                torch.autograd.graph.increment_version(grad_x)
        return (grad_x, *[None] * 5, *grads)


def _row_gradients(grad_x, grad_loss, upstream, x, softmax, rows, posteriors, extra=None) -> None:
    if extra is not None:  # for the kernel their posteriors are the blank's; their classes are set right behind it
        classes = [rows.blank, *rows.extra]
        own = torch.cat([posteriors[..., :1], extra], -1)
        posteriors = torch.stack([own.sum(-1), posteriors[..., 1]], -1)
        logits, (largest, rest) = x[..., classes].to(own.dtype), softmax[..., None]
        p = (logits - largest).exp() / (1 + rest)
        other = posteriors.sum(-1, keepdim=True) - own
        lacks = torch.where(logits == largest, rest / (1 + rest), 1 - p)  # 1 - p
        of_classes = torch.where(posteriors.sum(-1, keepdim=True) == 0, 0.0, other * p - own * lacks)
        if rows.clamp is not None:
            of_classes = of_classes.clamp(-rows.clamp, rows.clamp)
    ops.score_backward_out(grad_x, grad_loss, x.detach(), rows.labels, rows.input_lengths, rows.label_lengths, softmax,
                           posteriors.contiguous(), rows.blank, rows.from_logits, rows.clamp)  # fmt: skip
    if extra is not None:
        grad_x[..., classes] = (of_classes * upstream).to(grad_x.dtype)


def lattice_loss(x: Tensor, rows: Rows, arcs: Arcs, compose: Callable, *inputs: Tensor, clamped=()) -> Tensor:
    """clamped: which of the inputs rows.clamp bounds the gradient of."""
    keep = torch.is_grad_enabled() and (x.requires_grad or any(tensor.requires_grad for tensor in inputs))
    return LatticeLoss.apply(x, rows, arcs, compose, clamped, keep, *inputs)


class ScaleGradient(torch.autograd.Function):
    """x, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def transducer_arcs(
    scores: Tensor,
    input_lengths: Tensor,
    topology: str = "standard",
    *,
    sigma: float = 0.0,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
) -> Tensor:
    """Scores [B, T, U + 1, 2] of the arcs of a transducer, from those of blank and label."""
    blank, label = scores.unbind(-1)
    T, U1 = blank.shape[1:]
    frame = torch.arange(T, device=scores.device)
    if sigma:
        blank, label = blank - sigma, label - sigma
    if blank_bias is not None:
        blank = blank + blank_bias
    if label_bias is not None:
        label = label + label_bias
    if delay_penalty:
        middle = (input_lengths.to(scores.device, scores.dtype) - 1) / 2
        label = label + (delay_penalty * (middle[:, None] - frame))[:, :, None]
    if windows is not None:
        first, last = F.pad(windows.to(scores.device), (0, 0, 0, 1)).unbind(-1)
        allowed = (frame[:, None] >= first[:, None]) & (frame[:, None] <= last[:, None])
        label = label.masked_fill(~allowed, -torch.inf)
    if topology == "constrained":
        label = label + F.pad(blank[:, :, 1:], (0, 1))
    if fastemit_lambda:
        label = ScaleGradient.apply(label, 1 + fastemit_lambda)
    return torch.stack([blank, label], -1)
