"""warp_rnnt.rnnt_loss, as of warp-rnnt 0.7."""

from typing import Optional

import torch
from torch import Tensor

from .. import loss
from ..checks import check_one_of
from ..lattice import reduced
from ..packed import rnnt_loss_packed
from ._arguments import check_tensor


def rnnt_loss(
    log_probs: Tensor,
    labels: Tensor,
    frames_lengths: Tensor,
    labels_lengths: Tensor,
    average_frames: bool = False,
    reduction: Optional[str] = "none",
    blank: int = 0,
    gather: bool = False,
    fastemit_lambda: float = 0.0,
    compact: bool = False,
) -> Tensor:
    """warp_rnnt.rnnt_loss.

    log_probs are log-probabilities, not logits. average_frames divides each loss by its own number of frames, before
    the reduction. With compact, log_probs are packed rows, [sum of T_b (U_b + 1), V], and labels are packed too,
    [sum of U_b], or of any shape with as many. With blank=-1, log_probs have two columns, those of blank and of the
    next label. fastemit_lambda is in the gradient alone.

    Differs: it runs on the CPU too. gather changes nothing, since two values of a row are read with and without. A
    mismatch of forward and backward never happens, so no gradient is set to 0 for it.

    Raises: ValueError for blank < 0, but for -1 with two columns, neither gathered nor compact.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> labels = torch.randint(1, 30, (2, 10), dtype=torch.int32)        # [B, U]
        >>> lengths = torch.tensor([50, 40]).int(), torch.tensor([10, 7]).int()
        >>> log_probs = logits.log_softmax(-1)
        >>> compat.warp_rnnt.rnnt_loss(log_probs, labels, *lengths, average_frames=True, reduction="mean").backward()
    """
    check_one_of("reduction", reduction, ("none", "mean", "sum", None))
    if blank < 0:
        if blank != -1 or gather or compact or log_probs.shape[-1] != 2:
            raise ValueError(
                f"blank must be in [0, V), or -1 for padded log_probs of two columns, without gather, got {blank}"
            )
        labels, blank = torch.ones_like(labels), 0
    if compact:
        losses = rnnt_loss_packed(log_probs, _padded(labels, labels_lengths), frames_lengths, labels_lengths, blank,
                                  "none", from_logits=False, fastemit_lambda=fastemit_lambda)  # fmt: skip
    else:
        losses = loss.rnnt_loss(log_probs, labels, frames_lengths, labels_lengths, blank, "none",
                                fastemit_lambda=fastemit_lambda)  # fmt: skip
    if average_frames:
        losses = losses / frames_lengths.to(losses)
    return reduced(losses, labels_lengths, reduction or "none", zero_infinity=False)


def _padded(labels: Tensor, lengths: Tensor) -> Tensor:
    """[B, U] of sum of U_b labels."""
    check_tensor("labels", labels)
    check_tensor("labels_lengths", lengths, ["B"])
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"labels_lengths must be int32 or int64, got {lengths.dtype}")
    counts = lengths.tolist()
    for b, count in enumerate(counts):
        if count < 0:
            raise ValueError(f"labels_lengths[{b}] must be at least 0 with compact, got {count}")
    if labels.numel() != sum(counts):
        raise ValueError(f"labels must be {sum(counts)} with compact, as labels_lengths say, got {labels.numel()}")
    inside = torch.arange(max(counts, default=0), device=labels.device) < lengths.to(labels.device)[:, None]
    return labels.new_zeros(inside.shape).masked_scatter(inside, labels)
