"""Exact transducer losses: RNN-T and its variants, TDT, multi-blank; `ops` is the native namespace."""

from . import autograd, layers  # noqa: F401  autograd registers fakes and formulas
from ._ops import ops
from .loss import RNNTLoss, rnnt_loss, rnnt_loss_from_logits
from .tdt import TDTLoss, multiblank_rnnt_loss, tdt_loss, tdt_loss_from_joint_logits

__all__ = [
    "RNNTLoss",
    "TDTLoss",
    "layers",
    "multiblank_rnnt_loss",
    "ops",
    "rnnt_loss",
    "rnnt_loss_from_logits",
    "tdt_loss",
    "tdt_loss_from_joint_logits",
]
