"""Exact transducer losses: RNN-T and its variants, packed rows, TDT, multi-blank; `ops` is the native namespace."""

from . import alignment, autograd, compat, layers  # noqa: F401  autograd registers fakes and formulas
from ._ops import ops
from .loss import RNNTLoss, rnnt_loss, rnnt_loss_from_logits
from .packed import pack_rows, rnnt_loss_packed, unpack_rows
from .tdt import TDTLoss, multiblank_rnnt_loss, tdt_loss, tdt_loss_from_joint_logits

__all__ = [
    "RNNTLoss",
    "TDTLoss",
    "alignment",
    "compat",
    "layers",
    "multiblank_rnnt_loss",
    "ops",
    "pack_rows",
    "rnnt_loss",
    "rnnt_loss_from_logits",
    "rnnt_loss_packed",
    "tdt_loss",
    "tdt_loss_from_joint_logits",
    "unpack_rows",
]
