"""fast_rnnt.rnnt_loss, as of fast_rnnt 1.3."""

from typing import Optional

from torch import Tensor

from . import k2


def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Optional[Tensor] = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: Optional[str] = "mean",
    return_grad: bool = False,
) -> Tensor:
    """fast_rnnt.rnnt_loss: `k2.rnnt_loss`, and what is said there holds here.

    Differs: an empty transcript is fine.

    Raises: NotImplementedError for return_grad, the posteriors of the arcs: see `alignment.posteriors`.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> symbols = torch.randint(1, 30, (2, 10))                          # [B, U]
        >>> compat.fast_rnnt.rnnt_loss(logits, symbols, termination_symbol=0).backward()
    """
    if return_grad:
        raise NotImplementedError("return_grad: the posteriors of the arcs are those of alignment.posteriors")
    return k2.rnnt_loss(logits, symbols, termination_symbol, boundary, rnnt_type, delay_penalty, reduction)
