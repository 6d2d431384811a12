"""optimized_transducer.transducer_loss and TransducerLoss, as of optimized_transducer 1.4."""

import torch
from torch import Tensor

from ..checks import check_one_of
from ..packed import rnnt_loss_packed
from ._arguments import check_tensor


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_log_softmax: bool,
    one_sym_per_frame: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """optimized_transducer.transducer_loss.

    logits are packed rows, [sum of T_b (U_b + 1), V], log-probabilities if from_log_softmax. With one_sym_per_frame,
    label u leads from (t, u) to (t + 1, u + 1), and the last frame says blank: that is our topology "modified" with
    windows that end one frame before the last, where k2's modified transducer may end by a label.

    Differs: logits are left as they are, where optimized_transducer writes the gradient over them in forward; memory
    like that is to be had by `rnnt_loss_packed(..., inplace_grad=True)`. one_sym_per_frame with no more frames than
    labels is a loss of +inf, not memory that nobody wrote.

    Raises: ValueError for a reduction that is neither "mean" nor "sum".

    Example:
        >>> logit_lengths, target_lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> targets = torch.randint(1, 30, (2, 10), dtype=torch.int32)       # [B, U]
        >>> logits = torch.randn(50 * 11 + 40 * 8, 30, requires_grad=True)   # [sum of T_b (U_b + 1), V]
        >>> loss = compat.optimized_transducer.transducer_loss
        >>> loss(logits, targets, logit_lengths, target_lengths, blank=0, from_log_softmax=False).backward()
    """
    check_one_of("reduction", reduction, ("mean", "sum"))
    windows = None
    if one_sym_per_frame:
        check_tensor("targets", targets, ["B", "U"])
        check_tensor("logit_lengths", logit_lengths, [len(targets)])
        last = (logit_lengths - 2)[:, None].expand(*targets.shape)
        windows = torch.stack([torch.zeros_like(last), last], -1)
    return rnnt_loss_packed(logits, targets, logit_lengths, target_lengths, blank, reduction,
                            from_logits=not from_log_softmax, windows=windows,
                            topology="modified" if one_sym_per_frame else "standard")  # fmt: skip


class TransducerLoss(torch.nn.Module):
    """optimized_transducer.TransducerLoss: `transducer_loss` as a module.

    Differs: it can be called, which there fails for want of Module's own __init__.

    Example:
        >>> logit_lengths, target_lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> targets = torch.randint(1, 30, (2, 10), dtype=torch.int32)       # [B, U]
        >>> logits = torch.randn(50 * 11 + 40 * 8, 30, requires_grad=True)   # [sum of T_b (U_b + 1), V]
        >>> criterion = compat.optimized_transducer.TransducerLoss(blank=0)
        >>> criterion(logits, targets, logit_lengths, target_lengths, from_log_softmax=False).backward()
    """

    def __init__(self, blank: int, reduction: str = "mean"):
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
        from_log_softmax: bool,
        one_sym_per_frame: bool = False,
    ) -> Tensor:
        return transducer_loss(logits, targets, logit_lengths, target_lengths, self.blank, from_log_softmax,
                               one_sym_per_frame, self.reduction)  # fmt: skip
