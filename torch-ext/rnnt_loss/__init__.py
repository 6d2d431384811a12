"""Exact transducer losses: RNN-T and its variants, TDT, multi-blank; `ops` is the native namespace."""

from . import alignment, autograd  # noqa: F401  the latter registers fakes and formulas
from ._ops import ops
from .loss import RNNTLoss, rnnt_loss, rnnt_loss_from_logits
from .tdt import TDTLoss, multiblank_rnnt_loss, tdt_loss, tdt_loss_from_joint_logits

__all__ = [
    "RNNTLoss",
    "TDTLoss",
    "alignment",
    "multiblank_rnnt_loss",
    "ops",
    "rnnt_loss",
    "rnnt_loss_from_logits",
    "tdt_loss",
    "tdt_loss_from_joint_logits",
]
