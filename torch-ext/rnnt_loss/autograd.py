"""What torch must know of the native ops: the shapes they return and their derivatives."""

import torch

from ._ops import add_op_namespace_prefix, ops


def _acc_type(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _sizes(x, labels, max_input_length):
    """B, T and U + 1 of a batch; x is packed if it has two dimensions."""
    return x.shape[:3] if x.dim() == 4 else (labels.shape[0], max_input_length, labels.shape[1] + 1)


def _slots(T, U1, topology):
    """Slots of the front layout (rnnt_loss/core/topology.h)."""
    fronts = T + U1 if topology == "standard" else T + 1
    return fronts * ((U1 + 15) // 16 * 16)


@torch.library.register_fake(add_op_namespace_prefix("loss_forward"))
def _(x, labels, input_lengths, label_lengths, blank, normalizer, topology, clamp, fastemit_lambda, inplace_grad,
      keep, validate, max_input_length=0):  # fmt: skip
    B, T, U1 = _sizes(x, labels, max_input_length)
    acc_type = _acc_type(x)
    softmax = x.new_empty((2, B, T, U1) if keep and normalizer != "none" else (0,), dtype=acc_type)
    shares = x.new_empty((B, _slots(T, U1, topology) if keep else 0), dtype=acc_type)
    return x.new_empty(B, dtype=acc_type), softmax, shares


@torch.library.register_fake(add_op_namespace_prefix("loss_backward"))
def _(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, normalizer, topology, clamp,
      fastemit_lambda, max_input_length=0):  # fmt: skip
    return x.new_empty(x.shape)


@torch.library.register_fake(add_op_namespace_prefix("loss_backward_"))
def _(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, normalizer, topology, clamp,
      fastemit_lambda, max_input_length=0):  # fmt: skip
    return None


@torch.library.register_fake(add_op_namespace_prefix("rnnt_forward"))
def _(log_probs, labels, input_lengths, label_lengths, blank):
    B, T, U1, _ = log_probs.shape
    alpha = log_probs.new_empty((B, T, U1), dtype=torch.float64)
    return log_probs.new_empty(B, dtype=_acc_type(log_probs)), alpha, torch.empty_like(alpha)


@torch.library.register_fake(add_op_namespace_prefix("rnnt_backward"))
def _(grad_loss, log_probs, labels, input_lengths, label_lengths, alpha, beta, blank):
    return log_probs.new_empty(log_probs.shape)


def _save_loss(ctx, inputs, output):
    x, labels, input_lengths, label_lengths, *options, inplace_grad, _, _, max_input_length = inputs
    loss, softmax, shares = output
    ctx.mark_non_differentiable(softmax, shares)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, labels, input_lengths, label_lengths, loss, softmax, shares)
    ctx.options = (*options, max_input_length)
    ctx.inplace_grad = inplace_grad


def _loss_gradient(ctx, grad_loss, *_):
    if grad_loss is None:
        return (None,) * 13
    x, *kept = ctx.saved_tensors
    if not ctx.inplace_grad:
        return (ops.loss_backward(grad_loss, x, *kept, *ctx.options), *[None] * 12)
    x = x.detach()
    ops.loss_backward_(grad_loss, x, *kept, *ctx.options)
    # What else was saved of the logits, here for a second backward too, has to be found out of date.
    torch.autograd.graph.increment_version(x)
    return (x, *[None] * 12)


def _save_rnnt(ctx, inputs, output):
    *tensors, blank = inputs
    _, alpha, beta = output
    ctx.mark_non_differentiable(alpha, beta)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, alpha, beta)
    ctx.blank = blank


def _rnnt_gradient(ctx, grad_loss, *_):
    grad_log_probs = None if grad_loss is None else ops.rnnt_backward(grad_loss, *ctx.saved_tensors, ctx.blank)
    return (grad_log_probs, *[None] * 4)


def _no_double_backward(ctx, *_):
    raise RuntimeError("rnnt_loss: double backward is not supported, the gradient of the loss has no derivative here")


torch.library.register_autograd(add_op_namespace_prefix("loss_forward"), _loss_gradient, setup_context=_save_loss)
torch.library.register_autograd(add_op_namespace_prefix("rnnt_forward"), _rnnt_gradient, setup_context=_save_rnnt)
torch.library.register_autograd(add_op_namespace_prefix("loss_backward"), _no_double_backward)
torch.library.register_autograd(add_op_namespace_prefix("rnnt_backward"), _no_double_backward)


@torch.library.register_fake(add_op_namespace_prefix("score"))
def _(x, labels, input_lengths, label_lengths, blank, normalizer, validate, max_input_length=0, tail=0):
    B, T, U1 = _sizes(x, labels, max_input_length)
    scores = x.new_empty((2, B, T, U1), dtype=_acc_type(x))
    softmax = scores.new_empty((2, B, T, U1) if normalizer != "none" else (0,))
    return scores, softmax, scores.new_empty((B, T, U1, tail) if tail else (0,))


@torch.library.register_fake(add_op_namespace_prefix("score_backward"))
def _(grad_loss, x, labels, input_lengths, label_lengths, softmax, posteriors, blank, normalizer, clamp,
      max_input_length=0, tail=None, clamp_tail=True):  # fmt: skip
    return x.new_empty(x.shape)


@torch.library.register_fake(add_op_namespace_prefix("score_backward_out"))
def _(grad_x, grad_loss, x, labels, input_lengths, label_lengths, softmax, posteriors, blank, normalizer, clamp,
      max_input_length=0, tail=None, clamp_tail=True):  # fmt: skip
    return None


@torch.library.register_fake(add_op_namespace_prefix("tdt_scores"))
def _(scores, logits, input_lengths, label_lengths, durations, normalizer):
    arcs = len(durations) + sum(d > 0 for d in durations)
    return logits.new_empty((arcs, *logits.shape[:3]))


@torch.library.register_fake(add_op_namespace_prefix("tdt_scores_backward"))
def _(grad, logits, input_lengths, label_lengths, durations, normalizer):
    return logits.new_empty((2, *logits.shape[:3])), logits.new_empty(logits.shape)


@torch.library.register_fake(add_op_namespace_prefix("lattice"))
def _(scores, input_lengths, label_lengths, dt, du, ends_by_blank, keep, validate):
    K, *cells = scores.shape
    return scores.new_empty(cells[0]), scores.new_empty((K if keep else 0, *cells))


@torch.library.register_fake(add_op_namespace_prefix("lattice_derivative"))
def _(tangent, scores, input_lengths, label_lengths, dt, du, ends_by_blank):
    return scores.new_empty(scores.shape)


@torch.library.register_fake(add_op_namespace_prefix("paths"))
def _(scores, input_lengths, label_lengths, dt, du, ends_by_blank, uniforms):
    _, B, _, U1 = scores.shape
    frames = scores.new_empty((1 if uniforms is None else uniforms.shape[0], B, U1 - 1), dtype=torch.int64)
    return frames, torch.empty_like(frames), scores.new_empty(B, dtype=torch.float64)


def _save_score(ctx, inputs, output):
    *tensors, blank, normalizer, _, max_input_length, tail = inputs
    _, softmax, _ = output
    ctx.mark_non_differentiable(softmax)
    ctx.save_for_backward(*tensors, softmax)
    ctx.options, ctx.has_tail = (blank, normalizer, None, max_input_length), tail > 0


def _score_gradient(ctx, grad_scores, _, grad_tail):
    ones = grad_scores.new_ones(grad_scores.shape[1])
    tail = -grad_tail if ctx.has_tail else None
    grad_x = ops.score_backward(ones, *ctx.saved_tensors, -grad_scores, *ctx.options, tail)
    return (grad_x, *[None] * 8)


def _save_tdt(ctx, inputs, output):
    _, *tensors, durations, normalizer = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = durations, normalizer


def _tdt_gradient(ctx, grad):
    return (*ops.tdt_scores_backward(grad, *ctx.saved_tensors, *ctx.options), *[None] * 4)


def _save_lattice(ctx, inputs, output):
    scores, input_lengths, label_lengths, *arcs, keep, _ = inputs
    _, posteriors = output
    if not keep:
        ctx.mark_non_differentiable(*output)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(scores, input_lengths, label_lengths, posteriors)
    ctx.arcs = arcs


def _lattice_gradient(ctx, grad_loss, grad_posteriors):
    scores, *lengths, posteriors = ctx.saved_tensors
    grads = []
    if grad_loss is not None:
        grads.append(-grad_loss[:, None, None] * posteriors)
    if grad_posteriors is not None:  # the derivative is symmetric: along a vector, and that of its product
        along = ops.lattice_derivative(grad_posteriors.double(), scores.double(), *lengths, *ctx.arcs)
        grads.append(along.to(scores.dtype))
    return (sum(grads) if grads else None, *[None] * 7)


def _no_second_derivative(ctx, *_):
    raise RuntimeError("rnnt_loss: posteriors have one derivative, and what is made of them; this asks for another")


torch.library.register_autograd(add_op_namespace_prefix("score"), _score_gradient, setup_context=_save_score)
torch.library.register_autograd(add_op_namespace_prefix("lattice"), _lattice_gradient, setup_context=_save_lattice)
torch.library.register_autograd(add_op_namespace_prefix("tdt_scores"), _tdt_gradient, setup_context=_save_tdt)
torch.library.register_autograd(add_op_namespace_prefix("score_backward"), _no_second_derivative)
torch.library.register_autograd(add_op_namespace_prefix("tdt_scores_backward"), _no_second_derivative)
torch.library.register_autograd(add_op_namespace_prefix("lattice_derivative"), _no_second_derivative)
