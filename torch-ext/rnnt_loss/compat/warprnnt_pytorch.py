"""warprnnt_pytorch, the binding of warp-transducer, as of its master of 2020."""

import torch
from torch import Tensor

from ..checks import check_one_of
from ..loss import rnnt_loss_from_logits


def rnnt_loss(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, blank: int = 0, reduction: str = "mean"
) -> Tensor:
    """warprnnt_pytorch.rnnt_loss.

    acts are logits: warp-transducer takes log-probabilities on the CPU and logits on a GPU, and its binding applies
    log_softmax on the CPU. "mean" is over the batch, not over labels as its docstring says, and "mean" and "sum" have
    shape [1], as there.

    Differs: a reduction that is none of "none", "mean" and "sum" is an error, not "none". The loss of a batch on a GPU
    is found there, without a copy to the CPU and back.

    Example:
        >>> acts = torch.randn(2, 50, 11, 30, requires_grad=True)            # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10), dtype=torch.int32)        # [B, U]
        >>> lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> compat.warprnnt_pytorch.rnnt_loss(acts, labels, *lengths).backward()
    """
    check_one_of("reduction", reduction, ("none", "mean", "sum"))
    loss = rnnt_loss_from_logits(acts, labels, act_lens, label_lens, blank, reduction)
    return loss if reduction == "none" else loss.unsqueeze(0)


class RNNTLoss(torch.nn.Module):
    """warprnnt_pytorch.RNNTLoss: `rnnt_loss` as a module.

    Differs: its README's size_average and blank_label, of a binding before that, are not there, as in its code.

    Example:
        >>> acts = torch.randn(2, 50, 11, 30, requires_grad=True)            # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10), dtype=torch.int32)        # [B, U]
        >>> lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> compat.warprnnt_pytorch.RNNTLoss()(acts, labels, *lengths).backward()
    """

    def __init__(self, blank: int = 0, reduction: str = "mean"):
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction)
