"""The loss functions and their module: one native op, or arc scores where a keyword needs them, and the reduction."""

from typing import Optional

import torch
from torch import Tensor

from ._ops import ops
from .checks import (
    check_options,
    check_overwritable,
    check_tensors,
    check_variant,
    clamp_of,
    class_of,
    frames_of,
    integer_of,
    normalizer_of,
    number_of,
)
from .lattice import ARCS, Rows, lattice_loss, reduced, refuse_tangents, transducer_arcs


def rnnt_loss(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    *,
    clamp: Optional[float] = None,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    zero_infinity: bool = False,
    topology: str = "standard",
    sigma: float = 0.0,
    delay_penalty: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""RNN-transducer loss of log-probabilities.

    loss_b = -log Z_b, where Z_b sums exp(sum of log_probs along the path) over all paths from (0, 0) to (T_b, U_b):
    a blank moves from (t, u) to (t + 1, u), label u from (t, u) to (t, u + 1).

    Args:
        log_probs: [B, T, U + 1, V], float32, float64, float16 or bfloat16, any strides. Two values per cell are read,
            those of blank and of the next label. They need not be normalised; -inf is an ordinary value.
        labels: [B, U], int32 or int64, each in [0, V) and not blank within its length.
        input_lengths: [B], int32 or int64, frames of each utterance, in [1, T].
        label_lengths: [B], int32 or int64, labels of each utterance, in [0, U].
        blank: class of the blank, in [-V, V); negative counts from the end.
        reduction: "none" | "sum" | "mean" (over the batch) | "mean_volume" (sum of the losses / sum of
            label_lengths, at least 1).
        clamp: bound, > 0, of d loss_b / d log_probs, applied before the upstream gradient of loss_b (the factor of
            the reduction included) is multiplied in. None: no bound.
        fastemit_lambda: FastEmit, finite and >= 0: in the gradient, and there alone, the posteriors of label arcs
            count 1 + fastemit_lambda times, before the clamp. It makes labels come early.
        scale_loss: the value is (1 + fastemit_lambda) loss_b, as some libraries have it; the gradient stays what it
            is without.
        zero_infinity: count a loss of +inf as 0, with gradient 0. NaN stays.
        topology: "standard"; "modified": one label per frame, label u moves from (t, u) to (t + 1, u + 1);
            "constrained": as modified, and the label arc also scores blank at (t, u + 1).
        sigma: subtracted from every log-probability (logit under-normalisation).
        delay_penalty: added to the score of label arcs, times (T_b - 1) / 2 - t: above 0 labels come early.
        windows: [B, U, 2], int32 or int64, the first and the last frame that each label may be said in (alignment
            restriction); padding is not looked at. None: any.
        blank_bias, label_bias: [B, T, U + 1], floating point, differentiable, added to the scores of the arcs that
            leave (t, u). With topology "constrained" the label's blank at (t, u + 1) has its bias too.
        validate: check lengths and labels. Where they are on the CPU they always are; on a GPU it costs a
            synchronisation, and without it a bad one makes loss and gradient of its utterance NaN.

    Returns:
        The loss in nats, float32 (float64 for float64 input): [B] for reduction "none", else a scalar. Its gradient
        has the dtype of log_probs.

    Edges: an utterance without a path (all are -inf, or outside of the windows; T_b < U_b with one label per frame)
    has loss +inf and gradient 0. NaN or +inf in blank or next label of a cell makes that utterance's loss and gradient
    NaN, and no other's; a label outside of its window is masked whatever it is. Padding (t >= T_b, u > U_b, labels
    beyond U_b) is never read and has gradient 0. An empty batch gives an empty tensor, 0 for "sum" and "mean_volume",
    NaN for "mean".

    Raises:
        TypeError: an argument is not a tensor or has the wrong dtype or type.
        ValueError: a shape, a device, an option or blank is wrong.
        RuntimeError: a checked length or label is out of range; a second derivative is asked for.

    Source: Graves, Sequence Transduction with Recurrent Neural Networks, 2012; one label per frame: Tripathi et al.,
    Monotonic Recurrent Neural Network Transducer and Decoding Strategies, 2019; constrained: k2; FastEmit: Yu et al.,
    FastEmit: Low-latency Streaming ASR with Sequence-level Emission Regularization, 2020; delay_penalty: Kang et al.,
    Delay-penalized Transducer for Low-latency Streaming ASR, 2022; windows: Mahadeokar et al., Alignment Restricted
    Streaming Recurrent Neural Network Transducer, 2021; sigma: Xu et al., Multi-blank Transducers, 2022.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> rnnt_loss(logits.log_softmax(-1), labels, *lengths).backward()
    """
    return _loss("log_probs", log_probs, labels, input_lengths, label_lengths, blank, reduction, normalizer="none",
                 clamp=clamp, fastemit_lambda=fastemit_lambda, scale_loss=scale_loss, zero_infinity=zero_infinity,
                 topology=topology, sigma=sigma, delay_penalty=delay_penalty, windows=windows, blank_bias=blank_bias,
                 label_bias=label_bias, validate=validate)  # fmt: skip


def rnnt_loss_from_logits(
    logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    *,
    normalizer: str = "softmax",
    clamp: Optional[float] = None,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    zero_infinity: bool = False,
    topology: str = "standard",
    sigma: float = 0.0,
    delay_penalty: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    inplace_grad: bool = False,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""RNN-transducer loss of logits, with the softmax fused, or HAT's normalization.

    rnnt_loss_from_logits(logits, ...) = rnnt_loss(log_softmax(logits, -1), ...), without the log-probabilities ever
    being built: logits are read once in forward, read once and their gradient written once in backward. Without a
    gradient to come, nothing V wide is allocated at all. In place of the softmax over all classes, HAT decides
    between blank and a label first: with b the blank's logit, log p(blank) = log sigmoid(b), and
    log p(k) = log(1 - sigmoid(b)) + log_softmax(logits of all classes but blank)_k for the others.

    Args:
        logits: [B, T, U + 1, V], float32, float64, float16 or bfloat16, any strides (copied only if the elements of
            a row are not contiguous). -inf is an ordinary value.
        normalizer: how a row becomes log-probabilities: "softmax", "hat", or "none" if it holds them already.
        clamp: bound of d loss_b / d logits, as in `rnnt_loss`.
        inplace_grad: in backward, write the gradient over the logits: no second V-wide tensor exists. The logits must
            not be a leaf, expanded or overlapping, and nothing may read them after backward began; autograd tells if
            a saved tensor would.
        labels, input_lengths, label_lengths, blank, reduction, fastemit_lambda, scale_loss, zero_infinity, topology,
            sigma, delay_penalty, windows, blank_bias, label_bias, validate: as in `rnnt_loss`.

    Returns:
        The loss in nats, as `rnnt_loss`. Each row of a softmax's gradient sums to 0, of HAT's without the blank.

    Edges: as `rnnt_loss`; NaN or +inf anywhere in a row of an utterance, or a row that is all -inf, makes that
    utterance's loss and gradient NaN. HAT takes the classes but blank for such a row of their own, that counts where a
    label is left to come (u < U_b); where none is, only the blank's logit counts.

    Raises: as `rnnt_loss`.

    Source: Graves 2012; the fused softmax: Bagby et al., Efficient Implementation of Recurrent Neural Network
    Transducer in Tensorflow, 2018; Li et al., Improving RNN Transducer Modeling for End-to-End Speech Recognition,
    2019; HAT: Variani et al., Hybrid Autoregressive Transducer (HAT), 2020.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> rnnt_loss_from_logits(logits, labels, *lengths).backward()
    """
    return _loss("logits", logits, labels, input_lengths, label_lengths, blank, reduction, normalizer=normalizer,
                 clamp=clamp, fastemit_lambda=fastemit_lambda, scale_loss=scale_loss, zero_infinity=zero_infinity,
                 topology=topology, sigma=sigma, delay_penalty=delay_penalty, windows=windows, blank_bias=blank_bias,
                 label_bias=label_bias, validate=validate, inplace_grad=inplace_grad)  # fmt: skip


class RNNTLoss(torch.nn.Module):
    """`rnnt_loss`, or `rnnt_loss_from_logits` with from_logits=True, as a module without state.

    Example:
        >>> criterion = RNNTLoss(blank=0, from_logits=True)
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> criterion(logits, labels, torch.tensor([50, 40]), torch.tensor([10, 7])).backward()
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        from_logits: bool = False,
        *,
        normalizer: str = "softmax",
        clamp: Optional[float] = None,
        fastemit_lambda: float = 0.0,
        scale_loss: bool = False,
        zero_infinity: bool = False,
        topology: str = "standard",
        sigma: float = 0.0,
        delay_penalty: float = 0.0,
        validate: Optional[bool] = None,
    ):
        super().__init__()
        check_options(
            reduction, normalizer, clamp, fastemit_lambda, topology, scale_loss=scale_loss,
            zero_infinity=zero_infinity, validate=validate)  # fmt: skip
        normalizer_of(from_logits, normalizer), integer_of("blank", blank)
        number_of("sigma", sigma), number_of("delay_penalty", delay_penalty)
        self.blank = blank
        self.reduction = reduction
        self.from_logits = from_logits
        self.normalizer = normalizer
        self.clamp = clamp
        self.fastemit_lambda = fastemit_lambda
        self.scale_loss = scale_loss
        self.zero_infinity = zero_infinity
        self.topology = topology
        self.sigma = sigma
        self.delay_penalty = delay_penalty
        self.validate = validate

    def forward(
        self,
        x: Tensor,
        labels: Tensor,
        input_lengths: Tensor,
        label_lengths: Tensor,
        *,
        windows: Optional[Tensor] = None,
        blank_bias: Optional[Tensor] = None,
        label_bias: Optional[Tensor] = None,
    ) -> Tensor:
        """x: [B, T, U + 1, V], logits if from_logits, else log-probabilities; the rest as in `rnnt_loss`."""
        name = "logits" if self.from_logits else "log_probs"
        return _loss(name, x, labels, input_lengths, label_lengths, self.blank, self.reduction,
                     normalizer=normalizer_of(self.from_logits, self.normalizer), clamp=self.clamp,
                     fastemit_lambda=self.fastemit_lambda, scale_loss=self.scale_loss,
                     zero_infinity=self.zero_infinity, topology=self.topology, sigma=self.sigma,
                     delay_penalty=self.delay_penalty, windows=windows, blank_bias=blank_bias, label_bias=label_bias,
                     validate=self.validate)  # fmt: skip

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name in self._OPTIONS)

    _OPTIONS = ("blank", "reduction", "from_logits", "normalizer", "clamp", "fastemit_lambda", "scale_loss",
                "zero_infinity", "topology", "sigma", "delay_penalty", "validate")  # fmt: skip


def _loss(name, x, labels, input_lengths, label_lengths, blank, reduction, *, normalizer, clamp, fastemit_lambda,
          scale_loss, zero_infinity, topology, sigma, delay_penalty, windows, blank_bias, label_bias, validate,
          inplace_grad=False, packed=False, max_input_length=None):  # fmt: skip
    check_options(
        reduction, normalizer, clamp, fastemit_lambda, topology, scale_loss=scale_loss, zero_infinity=zero_infinity,
        validate=validate, inplace_grad=inplace_grad)  # fmt: skip
    check_tensors(name, x, labels, input_lengths, label_lengths, packed)
    frames = frames_of(name, x, input_lengths, max_input_length) if packed else 0
    cells = (labels.shape[0], frames, labels.shape[1] + 1) if packed else x.shape[:3]
    check_variant(x.device, cells, windows, blank_bias, label_bias)
    blank = class_of(blank, x.shape[-1])
    refuse_tangents(x)
    keep = torch.is_grad_enabled() and x.requires_grad
    if inplace_grad and keep:
        check_overwritable(name, x)
    clamp, fastemit_lambda = clamp_of(clamp), number_of("fastemit_lambda", fastemit_lambda, 0.0)
    variant = {"sigma": number_of("sigma", sigma), "delay_penalty": number_of("delay_penalty", delay_penalty)}
    if topology != "constrained" and not any(variant.values()) and windows is blank_bias is label_bias is None:
        loss, _, _ = ops.loss_forward(x, labels, input_lengths, label_lengths, blank, normalizer, topology, clamp,
                                      fastemit_lambda, inplace_grad, keep, bool(validate), frames)  # fmt: skip
    else:
        given = {"blank_bias": blank_bias, "label_bias": label_bias}
        biases = {key: bias for key, bias in given.items() if bias is not None}

        def compose(scores, *values):
            return transducer_arcs(scores, input_lengths, topology, fastemit_lambda=fastemit_lambda, windows=windows,
                                   **variant, **dict(zip(biases, values)))  # fmt: skip

        rows = Rows(labels, input_lengths, label_lengths, blank, normalizer, clamp=clamp, inplace_grad=inplace_grad,
                    validate=bool(validate), max_input_length=frames)  # fmt: skip
        loss = lattice_loss(x, rows, ARCS[topology], compose, *biases.values())
    if scale_loss and fastemit_lambda:
        loss = loss + fastemit_lambda * loss.detach()  # of the value alone
    return reduced(loss, label_lengths, reduction, zero_infinity)
