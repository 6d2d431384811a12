"""The waist: rows become scores of arcs, a variant changes these, and one lattice takes any arcs.

What a variant does is a function of tensors, from the scores of blank and label [2, B, T, U + 1] to those of its arcs
[K, B, T, U + 1], and its derivative autograd's.
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


TAIL = -1  # of Rows, among the inputs


class Rows(NamedTuple):
    """What the rows are: ids, and how they become scores.

    extra: how many classes before the blank's are arcs too, the nearest first. tail: columns behind the classes that
    are no scores, but an input of the variant (a second head in the same tensor).
    """

    labels: Tensor
    input_lengths: Tensor
    label_lengths: Tensor
    blank: int
    normalizer: str = "softmax"
    extra: int = 0
    tail: int = 0
    clamp: Optional[float] = None
    inplace_grad: bool = False
    validate: bool = False
    max_input_length: int = 0


class Final(torch.autograd.Function):
    """A gradient that has no derivative here, though it depends on the others."""

    @staticmethod
    def forward(ctx, grad, *depends_on):
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError(
            "rnnt_loss: double backward is not supported, the gradient of the loss has no derivative here"
        )


class LatticeLoss(torch.autograd.Function):
    """[B] losses of x, whose arcs are compose(scores, extra scores if any, tail if any, *inputs).

    The gradients of x and of `clamped` inputs are bounded before the upstream gradient is multiplied in: so they are
    found for an upstream gradient of 1.
    """

    @staticmethod
    def forward(ctx, x, rows, arcs, compose, clamped, keep, *inputs):
        ids = rows.labels, rows.input_lengths, rows.label_lengths
        scores, softmax, tail = ops.score(x, *ids, rows.blank, rows.normalizer, rows.validate, rows.max_input_length,
                                         rows.tail)  # fmt: skip
        tensors = [scores]
        if rows.extra:
            tensors.append(_blanks(x, rows).to(scores.dtype)[1:] - softmax[0] - softmax[1].log1p())
        if rows.tail:
            tensors.append(tail)
        # No narrower than the scores: a gradient is rounded to its tensor's dtype when it has its upstream factor.
        wide = (tensor.detach().to(torch.promote_types(tensor.dtype, scores.dtype)) for tensor in (*tensors, *inputs))
        leaves = [tensor.requires_grad_(keep) for tensor in wide]
        with torch.set_grad_enabled(keep):
            composed = compose(*leaves)
        loss, posteriors = ops.lattice(composed.detach(), *ids[1:], *arcs, keep, False)
        if keep:
            ctx.save_for_backward(x, softmax, posteriors, *ids, *inputs)
            ctx.rows, ctx.clamped, ctx.leaves, ctx.composed = rows, clamped, leaves, composed
        return loss

    @staticmethod
    def backward(ctx, grad_loss):
        with torch.no_grad():
            grads = LatticeLoss.gradients(ctx, grad_loss)
        if torch.is_grad_enabled():  # for a second derivative, which must not be taken for 0
            x, _, _, _, _, _, *inputs = ctx.saved_tensors
            grads = [grad if grad is None else Final.apply(grad, x, grad_loss, *inputs) for grad in grads]
        return (grads[0], *[None] * 5, *grads[1:])

    @staticmethod
    def gradients(ctx, grad_loss):
        x, softmax, posteriors, *ids_and_inputs = ctx.saved_tensors
        ids, inputs = ids_and_inputs[:3], ids_and_inputs[3:]
        rows = ctx.rows._replace(**dict(zip(Rows._fields, ids)))
        # Posteriors are the gradient of log Z, the loss less its sign.
        grads = list(torch.autograd.grad(ctx.composed, ctx.leaves, posteriors, retain_graph=True, allow_unused=True,
                                         materialize_grads=True))  # fmt: skip
        of_arcs = grads.pop(0)
        of_extra = grads.pop(0) if rows.extra else None
        of_tail = grads.pop(0) if rows.tail else None
        for i, (grad, tensor) in enumerate(zip(grads, inputs)):
            if rows.clamp is not None and i in ctx.clamped:
                grad = grad.clamp(-rows.clamp, rows.clamp)
            grads[i] = _times(grad, -grad_loss.view(-1, *[1] * (grad.dim() - 1))).to(tensor.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = x.detach() if rows.inplace_grad else torch.empty_like(x, memory_format=torch.contiguous_format)
            tail = of_tail, TAIL in ctx.clamped
            _row_gradients(grad_x, grad_loss, x.detach(), softmax, rows, of_arcs, of_extra, tail)
            if rows.inplace_grad:  # what else was saved of x has to be found out of date
                torch.autograd.graph.increment_version(grad_x)
        return [grad_x, *grads]


def _blanks(x: Tensor, rows: Rows) -> Tensor:
    """The columns of the blank and of the extra classes, [1 + extra, B, T, U + 1]."""
    return x[..., rows.blank - rows.extra : rows.blank + 1].flip(-1).movedim(-1, 0)


def _row_gradients(grad_x, grad_loss, x, softmax, rows, posteriors, extra, tail) -> None:
    if extra is not None:  # for the kernel their posteriors are the blank's; their classes are set right behind it
        own = torch.cat([posteriors[:1], extra])
        # Those of the other arcs are added up: of a confident model, the sum of all less one's own is rounding.
        others = torch.stack([posteriors[1] + own[:k].sum(0) + own[k + 1 :].sum(0) for k in range(len(own))])
        posteriors = torch.stack([own.sum(0), posteriors[1]])
        logits, (largest, rest) = _blanks(x, rows).to(own.dtype), softmax
        p = (logits - largest).exp() / (1 + rest)
        lacks = torch.where(logits == largest, rest / (1 + rest), 1 - p)  # 1 - p, see eq. 10
        of_classes = torch.where(posteriors.sum(0) == 0, 0.0, others * p - own * lacks)
        if rows.clamp is not None:
            of_classes = of_classes.clamp(-rows.clamp, rows.clamp)
    ids = rows.labels, rows.input_lengths, rows.label_lengths
    ops.score_backward_out(grad_x, grad_loss, x, *ids, softmax, posteriors, rows.blank, rows.normalizer, rows.clamp,
                           rows.max_input_length, *tail)  # fmt: skip
    if extra is not None:
        last = grad_x[..., rows.blank - rows.extra : rows.blank + 1]
        last.copy_(_times(of_classes, grad_loss[:, None, None]).movedim(0, -1).flip(-1))


def _times(grad: Tensor, upstream: Tensor) -> Tensor:
    """0 stays 0, whatever comes from upstream."""
    return torch.where(grad == 0, 0.0, grad * upstream)


def refuse_tangents(*tensors: Tensor) -> None:
    """Forward-mode derivatives, which torch.library would drop without a word."""
    if any(torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError("rnnt_loss: forward-mode derivatives are not supported")


def lattice_loss(x: Tensor, rows: Rows, arcs: Arcs, compose: Callable, *inputs: Tensor, clamped=()) -> Tensor:
    """clamped: which of the inputs rows.clamp bounds the gradient of."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        x = x.contiguous()
    keep = torch.is_grad_enabled() and (x.requires_grad or any(tensor.requires_grad for tensor in inputs))
    return LatticeLoss.apply(x, rows, arcs, compose, clamped, keep, *inputs)


class FastEmit(torch.autograd.Function):
    """Scores of arcs, of which the labels' have a gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx, scores, arcs, factor):
        ctx.labels, ctx.factor = [k for k, du in enumerate(arcs.du) if du], factor
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        for k in ctx.labels:
            grad[k] *= ctx.factor
        return grad, None, None


def emphasised(scores: Tensor, arcs: Arcs, fastemit_lambda: float) -> Tensor:
    return FastEmit.apply(scores, arcs, 1 + fastemit_lambda) if fastemit_lambda else scores


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
    """Scores [2, B, T, U + 1] of the arcs of a transducer, from those of blank and label."""
    blank, label = scores
    T, U1 = blank.shape[1:]
    frame = torch.arange(T, device=scores.device)
    if sigma:
        blank, label = blank - sigma, label - sigma
    if blank_bias is not None:
        blank = blank + blank_bias.to(blank.dtype)
    if label_bias is not None:
        label = label + label_bias.to(label.dtype)
    if delay_penalty:
        middle = (input_lengths.to(scores.device, scores.dtype) - 1) / 2
        label = label + (delay_penalty * (middle[:, None] - frame))[:, :, None]
    if windows is not None:
        first, last = F.pad(windows.to(scores.device), (0, 0, 0, 1)).unbind(-1)
        allowed = (frame[:, None] >= first[:, None]) & (frame[:, None] <= last[:, None])
        label = label.masked_fill(~allowed, -torch.inf)
    if topology == "constrained":
        label = label + F.pad(blank[:, :, 1:], (0, 1))
    return emphasised(torch.stack([blank, label]), ARCS[topology], fastemit_lambda)


def reduced(loss: Tensor, label_lengths: Tensor, reduction: str, zero_infinity: bool) -> Tensor:
    if zero_infinity:
        loss = torch.where(loss == torch.inf, 0.0, loss)
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / label_lengths.to(loss.device).sum().clamp(min=1)
