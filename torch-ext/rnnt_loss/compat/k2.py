"""k2.rnnt_loss, as of k2 1.24."""

from typing import Optional

import torch
from torch import Tensor

from ..checks import check_one_of
from ..lattice import reduced
from ..loss import rnnt_loss_from_logits
from ._arguments import check_tensor

_TOPOLOGIES = {"regular": "standard", "modified": "modified", "constrained": "constrained"}


def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Optional[Tensor] = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: Optional[str] = "mean",
) -> Tensor:
    """k2.rnnt_loss, the loss of a joint network's whole output.

    boundary is [B, 4], the rows [begin_symbol, begin_frame, end_symbol, end_frame] of the part of the lattice that is
    summed over; None is all of it. rnnt_type "regular" is our topology "standard". delay_penalty adds
    delay_penalty ((end_frame - 1) / 2 - t) to the scores of symbols, where t counts from frame 0 of logits.

    Differs: symbols beyond end_symbol may be anything, and a symbol that is termination_symbol is an error. "modified"
    and "constrained" with fewer frames than symbols are a loss of +inf for that utterance, where k2 stops at the first.
    A part without frames and delay_penalty < 0, which k2 ignores, are errors. Parts that begin after 0 are copied;
    whether any does is read from boundary, which waits for a GPU, as k2 does.

    Raises: ValueError for a part that begins after 0 and is out of range; for others RuntimeError, as `rnnt_loss`.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> symbols = torch.randint(1, 30, (2, 10))                          # [B, U]
        >>> boundary = torch.tensor([[0, 0, 10, 50], [0, 0, 7, 40]])
        >>> compat.k2.rnnt_loss(logits, symbols, 0, boundary, rnnt_type="modified", delay_penalty=0.01).backward()
    """
    check_one_of("rnnt_type", rnnt_type, _TOPOLOGIES)
    check_one_of("reduction", reduction, ("none", "mean", "sum"))
    if delay_penalty < 0:
        raise ValueError(f"delay_penalty must be at least 0, got {delay_penalty}")
    check_tensor("logits", logits, ["B", "T", "U + 1", "V"])
    B, T, U1, _ = logits.shape
    check_tensor("symbols", symbols, [B, U1 - 1])
    if boundary is None:
        boundary = torch.zeros(B, 4, dtype=torch.int64, device=logits.device)
        boundary[:, 2], boundary[:, 3] = U1 - 1, T
        begins = False
    else:
        check_tensor("boundary", boundary, [B, 4])
        if boundary.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"boundary must be int32 or int64, got {boundary.dtype}")
        begins = bool(boundary[:, :2].any())
    if begins:
        logits, symbols = _from_its_begin(logits, symbols, boundary)
    begin_symbol, begin_frame, end_symbol, end_frame = boundary.unbind(1)
    label_lengths = end_symbol - begin_symbol
    losses = rnnt_loss_from_logits(logits, symbols, end_frame - begin_frame, label_lengths, termination_symbol, "none",
                                   topology=_TOPOLOGIES[rnnt_type], delay_penalty=delay_penalty)  # fmt: skip
    if begins and delay_penalty:  # ours is around the middle of the part, and every path says all of its labels
        losses = losses + delay_penalty / 2 * (begin_frame * label_lengths).to(losses)
    return reduced(losses, label_lengths, reduction, zero_infinity=False)


def _from_its_begin(logits: Tensor, symbols: Tensor, boundary: Tensor) -> "tuple[Tensor, Tensor]":
    """Both turned so that each utterance's part begins at 0."""
    B, T, U1, _ = logits.shape
    boundary = boundary.to(logits.device)
    size = torch.tensor([U1 - 1, T], device=boundary.device)
    begin, end = boundary[:, :2], boundary[:, 2:]
    bad = ~((0 <= begin) & (begin <= end) & (end <= size)).all(1)
    if bad.any():
        b = int(bad.nonzero()[0])
        raise ValueError(
            f"boundary[{b}] must be begin_symbol, begin_frame, end_symbol, end_frame with 0 <= begin <= end <= "
            f"{U1 - 1} symbols and {T} frames, got {boundary[b].tolist()}"
        )
    utterance = torch.arange(B, device=boundary.device)[:, None]
    # All the way round, so that no two gradients meet: their order would not repeat on a GPU.
    frames, positions = (
        (begin[:, i, None] + torch.arange(n, device=boundary.device)) % n for i, n in ((1, T), (0, U1))
    )
    turned = logits[utterance[:, :, None], frames[:, :, None], positions[:, None]]
    # the symbol of position U, which there is none of, comes where a label is never read
    return turned, symbols.gather(1, positions[:, : U1 - 1].clamp(max=U1 - 2).to(symbols.device))
