"""Exact RNN-transducer loss: `rnnt_loss`, `rnnt_loss_from_logits`, `rnnt_loss_packed` with `pack_rows` and
`unpack_rows`, `RNNTLoss`; `ops` is the native namespace."""

from . import autograd  # noqa: F401  registers fakes and formulas
from ._ops import ops
from .loss import RNNTLoss, rnnt_loss, rnnt_loss_from_logits
from .packed import pack_rows, rnnt_loss_packed, unpack_rows

__all__ = ["RNNTLoss", "ops", "pack_rows", "rnnt_loss", "rnnt_loss_from_logits", "rnnt_loss_packed", "unpack_rows"]
