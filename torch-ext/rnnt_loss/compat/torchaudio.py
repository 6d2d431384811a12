"""torchaudio.functional.rnnt_loss and torchaudio.transforms.RNNTLoss, as of torchaudio 2.11."""

import torch
from torch import Tensor

from .. import loss
from ..checks import check_one_of
from ._arguments import clamp_of


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
) -> Tensor:
    """torchaudio.functional.rnnt_loss.

    The last class is blank, and clamp <= 0 is no bound. logits are log-probabilities if not fused_log_softmax.

    Differs: clamp bounds from both sides on a GPU too. With one frame, or an empty transcript, the loss is right on
    both devices. float16 logits have a float32 loss.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> targets = torch.randint(0, 29, (2, 10), dtype=torch.int32)       # [B, U]
        >>> lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> compat.torchaudio.rnnt_loss(logits, targets, *lengths).backward()
    """
    check_one_of("reduction", reduction, ("none", "mean", "sum"))
    function = loss.rnnt_loss_from_logits if fused_log_softmax else loss.rnnt_loss
    return function(logits, targets, logit_lengths, target_lengths, blank, reduction, clamp=clamp_of(clamp))


class RNNTLoss(torch.nn.Module):
    """torchaudio.transforms.RNNTLoss: `rnnt_loss` as a module.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> targets = torch.randint(1, 30, (2, 10), dtype=torch.int32)       # [B, U]
        >>> lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> compat.torchaudio.RNNTLoss(blank=0)(logits, targets, *lengths).backward()
    """

    def __init__(self, blank: int = -1, clamp: float = -1.0, reduction: str = "mean", fused_log_softmax: bool = True):
        super().__init__()
        self.blank = blank
        self.clamp = clamp
        self.reduction = reduction
        self.fused_log_softmax = fused_log_softmax

    def forward(self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return rnnt_loss(logits, targets, logit_lengths, target_lengths, self.blank, self.clamp, self.reduction,
                         self.fused_log_softmax)  # fmt: skip
