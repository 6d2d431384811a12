"""transformers' transducer losses as layers of the hub: its arguments and its reductions over this package's functions.

The hub puts a layer's forward in place of another's, so a layer has no constructor, no state and no methods besides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .checks import check_one_of
from .loss import rnnt_loss_from_logits
from .tdt import tdt_loss

_OURS = {"mean_volume": "mean_volume", "mean_batch": "mean", "mean": "none", "sum": "sum", "none": "none"}


class RNNTLoss(torch.nn.Module):
    r"""`rnnt_loss_from_logits` with the arguments of transformers' `rnnt_loss`, which Parakeet-RNNT trains with.

    loss_b = -log Z_b, as in `rnnt_loss`.

    Args:
        logits: [B, T, U + 1, V], float32, float64, float16 or bfloat16, any strides.
        targets: [B, U], int32 or int64, each in [0, V) and not blank within its length.
        logit_lengths: [B], int32 or int64, frames of each utterance, in [1, T].
        target_lengths: [B], int32 or int64, labels of each utterance, in [0, U].
        blank_token_id: class of the blank, in [-V, V).
        reduction: "mean_volume" (sum of the losses / sum of target_lengths) | "mean_batch" (over the batch) | "mean"
            (over the batch, of loss_b / its own target length) | "sum" | "none". "mean" is not the "mean" of
            `rnnt_loss_from_logits`, which is "mean_batch" here. Where a length divides, it counts as 1 at least.

    Returns:
        The loss in nats, float32 (float64 for float64 logits): [B] for reduction "none", else a scalar.

    Edges: as `rnnt_loss_from_logits`: without a path loss +inf and gradient 0, padding is never read. An empty
    transcript counts with its blanks' loss, over 1 in "mean".

    Raises: as `rnnt_loss_from_logits`, whose messages call the arguments labels, input_lengths, label_lengths, blank.

    Source: Graves, Sequence Transduction with Recurrent Neural Networks, 2012; arguments and reductions: transformers.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> targets = torch.randint(0, 29, (2, 10))                          # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> layers.RNNTLoss()(logits, targets, *lengths, blank_token_id=29).backward()
    """

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
        blank_token_id: int,
        reduction: str = "mean_volume",
    ) -> Tensor:
        ours = _ours(reduction)
        loss = rnnt_loss_from_logits(logits, targets, logit_lengths, target_lengths, blank_token_id, ours)
        return _mean_per_label(loss, target_lengths) if reduction == "mean" else loss


class TDTLoss(torch.nn.Module):
    r"""`tdt_loss` with the arguments of transformers' `tdt_loss`, which Parakeet-TDT trains with.

    loss_b = -log Z_b, as in `tdt_loss`.

    Args:
        token_logits: [B, T, U + 1, V], float32, float64, float16 or bfloat16.
        duration_logits: [B, T, U + 1, D], floating point.
        durations: D different frame counts >= 0 in the order of duration_logits' last axis, one of them above 0.
        sigma: subtracted from each token's log-probability (logit under-normalisation).
        targets, logit_lengths, target_lengths, blank_token_id, reduction: as in `layers.RNNTLoss`; blank_token_id
            counts within the V tokens. "mean" is not the "mean" of this package's `tdt_loss`, which is "mean_batch"
            here.

    Returns:
        The loss in nats, float32 (float64 for float64 tokens): [B] for reduction "none", else a scalar.

    Edges: as `tdt_loss`: an utterance that no path of these durations crosses has loss +inf and gradient 0; empty
    transcripts as in `layers.RNNTLoss`.

    Raises: as `tdt_loss`, whose messages call the arguments labels, input_lengths, label_lengths, blank.

    Source: Xu et al., Efficient Sequence Transduction by Jointly Predicting Tokens and Durations, 2023; arguments and
    reductions: transformers.

    Example:
        >>> tokens = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> frames = torch.randn(2, 50, 11, 5, requires_grad=True)           # [B, T, U + 1, D]
        >>> targets = torch.randint(0, 29, (2, 10))                          # [B, U]
        >>> lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> criterion = layers.TDTLoss()
        >>> criterion(tokens, frames, targets, *lengths, blank_token_id=29, durations=[0, 1, 2, 3, 4]).backward()
    """

    has_backward: bool = True
    can_torch_compile: bool = False  # its backward is no part of a whole graph

    def forward(
        self,
        token_logits: Tensor,
        duration_logits: Tensor,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
        blank_token_id: int,
        durations: Sequence[int],
        sigma: float = 0.0,
        reduction: str = "mean",
    ) -> Tensor:
        ours = _ours(reduction)
        loss = tdt_loss(token_logits, duration_logits, targets, logit_lengths, target_lengths, durations,
                        blank_token_id, sigma, ours)  # fmt: skip
        return _mean_per_label(loss, target_lengths) if reduction == "mean" else loss


def _ours(reduction: str) -> str:
    check_one_of("reduction", reduction, _OURS)
    return _OURS[reduction]


def _mean_per_label(loss: Tensor, target_lengths: Tensor) -> Tensor:
    return (loss / target_lengths.to(loss.device).clamp(min=1)).mean()
