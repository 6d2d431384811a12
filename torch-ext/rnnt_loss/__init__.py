"""Exact RNN-transducer loss. `rnnt_loss`, `rnnt_loss_from_logits` and `RNNTLoss`; `ops` is the native namespace."""

from . import autograd  # noqa: F401  registers fakes and formulas
from ._ops import ops
from .loss import RNNTLoss, rnnt_loss, rnnt_loss_from_logits

__all__ = ["RNNTLoss", "ops", "rnnt_loss", "rnnt_loss_from_logits"]
