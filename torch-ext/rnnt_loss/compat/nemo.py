"""NeMo's RNNTLoss (nemo.collections.asr.losses.rnnt) and its RNNTLossNumba, as of NeMo 3.0."""

import torch
from torch import Tensor

from ..checks import check_one_of
from ..lattice import reduced
from ..layers import _mean_per_label, _ours
from ..loss import rnnt_loss_from_logits
from ..tdt import Options, multiblank_rnnt_loss, tdt_of_joint
from ._arguments import cast, check_tensor, clamp_of


def _tdt(*tensors, durations, blank, reduction, scale_loss, clamp, fastemit_lambda=0.0, sigma=0.0, omega=0.0) -> Tensor:
    options = Options(reduction, fastemit_lambda, scale_loss, clamp, False, False, None, sigma, tokens_alone=True)
    return tdt_of_joint(*tensors, durations, blank, options, omega, generator=None)


_NUMBA = ("fastemit_lambda", "clamp")
_LOSSES = {  # ours, and the keywords that loss_kwargs may have
    "default": (rnnt_loss_from_logits, _NUMBA),
    "warprnnt_numba": (rnnt_loss_from_logits, _NUMBA),
    "warprnnt": (rnnt_loss_from_logits, ()),
    "pytorch": (rnnt_loss_from_logits, ()),
    "multiblank_rnnt": (multiblank_rnnt_loss, (*_NUMBA, "big_blank_durations", "sigma")),
    "multiblank_rnnt_pytorch": (multiblank_rnnt_loss, ("big_blank_durations", "sigma")),
    "tdt": (_tdt, (*_NUMBA, "durations", "sigma", "omega")),
    "tdt_pytorch": (_tdt, ("durations", "sigma")),
}
_REDUCTIONS = (None, "mean", "sum", "mean_batch", "mean_volume")


class RNNTLoss(torch.nn.Module):
    """nemo.collections.asr.losses.rnnt.RNNTLoss.

    num_classes is the blank. log_probs are logits, whatever their name says; with loss_name "tdt" the last columns are
    those of the durations, whose gradient FastEmit and clamp leave as it is. reduction is "mean_batch", "mean" (of
    loss_b / its own target length), "sum", "mean_volume" (sum of losses / sum of target lengths) or None. FastEmit's
    lambda and clamp are in loss_kwargs; the loss is multiplied by 1 + fastemit_lambda, as NeMo does. Ids and lengths of
    any dtype are cast to integers. NeMo's joints that fuse joint and loss, sampled or not, find what they call.

    Differs: the loss is so multiplied on the CPU without a gradient too, where NeMo's is not. clamp bounds the gradient
    of an utterance's own loss on both devices; NeMo's does on a GPU, and on the CPU bounds what is left of it after the
    reduction. A target length that divides counts as 1 at least. omega of "tdt" is drawn from torch's generator.
    "warprnnt" and "pytorch" are one loss with "default", and nothing is to be installed for either.

    Raises: ValueError for loss_kwargs that the loss does not know, which NeMo ignores with a warning;
    NotImplementedError for "graph_rnnt" and "graph_w_transducer".

    Example:
        >>> criterion = compat.nemo.RNNTLoss(num_classes=29, loss_kwargs={"fastemit_lambda": 0.005})
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> targets = torch.randint(0, 29, (2, 10))                          # [B, U]
        >>> lengths = {"input_lengths": torch.tensor([50, 40]), "target_lengths": torch.tensor([10, 7])}
        >>> criterion(log_probs=logits, targets=targets, **lengths).backward()
    """

    def __init__(self, num_classes, reduction: str = "mean_batch", loss_name: str = "default", loss_kwargs=None):
        super().__init__()
        check_one_of("reduction", reduction, _REDUCTIONS)
        if loss_name in ("graph_rnnt", "graph_w_transducer"):
            raise NotImplementedError(f"loss_name {loss_name!r}: a loss of k2's graphs is not here")
        check_one_of("loss_name", loss_name, _LOSSES)
        self.loss, known = _LOSSES[loss_name]
        self.options = dict(loss_kwargs or {})
        for name in sorted(set(self.options) - set(known)):
            raise ValueError(f"loss_kwargs of {loss_name!r} must be of {', '.join(known) or 'none'}, got {name}")
        self.options["clamp"] = clamp_of(self.options.get("clamp", -1.0))
        self.blank = num_classes
        self.reduction = reduction

    @property
    def _loss(self):
        """NeMo's sampled joint, whose blank is class 0, sets `_loss.blank` for a call."""
        return self

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        targets, *lengths = cast(targets=targets, input_lengths=input_lengths, target_lengths=target_lengths)
        losses = self.loss(log_probs, _reachable(targets, log_probs), *lengths, blank=self.blank, reduction="none",
                           scale_loss=True, **self.options)  # fmt: skip
        return self.reduce(losses, lengths[1])

    def reduce(self, losses, target_lengths) -> Tensor:
        """Of a batch, or of lists of its parts, as NeMo's joints call it that fuse joint and loss."""
        if isinstance(losses, (list, tuple)):
            losses, target_lengths = torch.cat(losses), torch.cat(target_lengths)
        if self.reduction == "mean":
            return _mean_per_label(losses, target_lengths)
        return reduced(losses, target_lengths, _ours(self.reduction or "none"), zero_infinity=False)


class RNNTLossNumba(torch.nn.Module):
    """nemo.collections.asr.parts.numba.rnnt_loss.RNNTLossNumba: `RNNTLoss` with warp-transducer's arguments.

    "mean" is over the batch, and "mean" and "sum" have shape [1], as there.

    Differs: as `RNNTLoss`, and a reduction that is none of "none", None, "mean" and "sum" is an error, not "none".

    Example:
        >>> acts = torch.randn(2, 50, 11, 30, requires_grad=True)            # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> compat.nemo.RNNTLossNumba(fastemit_lambda=0.005)(acts, labels, *lengths).backward()
    """

    def __init__(self, blank=0, reduction="mean", fastemit_lambda: float = 0.0, clamp: float = -1):
        super().__init__()
        check_one_of("reduction", reduction, ("none", "mean", "sum", None))
        self.blank = blank
        self.reduction = reduction
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        loss = rnnt_loss_from_logits(acts, _reachable(labels, acts), act_lens, label_lens, self.blank,
                                     self.reduction or "none", clamp=clamp_of(self.clamp),
                                     fastemit_lambda=self.fastemit_lambda, scale_loss=True)  # fmt: skip
        return loss.unsqueeze(0) if loss.dim() == 0 else loss


def _reachable(labels: Tensor, logits: Tensor) -> Tensor:
    """NeMo takes more columns of labels than logits have positions for."""
    check_tensor("logits", logits, ["B", "T", "U + 1", "V"])
    check_tensor("labels", labels, ["B", "U"])
    return labels[:, : logits.shape[2] - 1]
