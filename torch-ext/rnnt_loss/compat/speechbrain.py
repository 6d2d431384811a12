"""speechbrain.nnet.losses.transducer_loss, as of SpeechBrain 1.0, and of 1.1 which has no use_torchaudio."""

import torch
from torch import Tensor

from ..checks import check_one_of
from ..loss import rnnt_loss_from_logits
from ._arguments import cast, check_tensor


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    input_lens: Tensor,
    target_lens: Tensor,
    blank_index: int,
    reduction: str = "mean",
    use_torchaudio: bool = True,
) -> Tensor:
    """speechbrain.nnet.losses.transducer_loss.

    Lengths are relative: input_lens of the frames of logits, target_lens of the columns of targets, rounded to the
    nearest count. Targets of any dtype are cast to integers.

    Differs: counts are found in float64; SpeechBrain's of bfloat16 or float16 lengths have that dtype, and may be some
    frames too few or too many. use_torchaudio changes nothing, since both ways of SpeechBrain have one result; without
    it and in 1.1, SpeechBrain runs on a GPU alone. "batchmean", which its docstring names and neither way takes, is an
    error.

    Raises: TypeError for lengths that are integers, and so not relative.

    Example:
        >>> logits = torch.randn(2, 50, 11, 30, requires_grad=True)          # [B, T, U + 1, V]
        >>> targets = torch.randint(1, 30, (2, 10))                          # [B, U]
        >>> relative = torch.tensor([1.0, 0.8]), torch.tensor([1.0, 0.7])
        >>> compat.speechbrain.transducer_loss(logits, targets, *relative, blank_index=0).backward()
    """
    check_one_of("reduction", reduction, ("none", "mean", "sum"))
    check_tensor("logits", logits, ["B", "T", "U + 1", "V"])
    check_tensor("targets", targets, ["B", "U"])
    lengths = []
    for name, relative, longest in (
        ("input_lens", input_lens, logits.shape[1]),
        ("target_lens", target_lens, targets.shape[1]),
    ):
        check_tensor(name, relative, ["B"])
        if not relative.is_floating_point():
            raise TypeError(f"{name} must be floating point, lengths relative to {longest}, got {relative.dtype}")
        lengths.append((relative.double() * longest).round().to(torch.int64))
    return rnnt_loss_from_logits(logits, *cast(targets=targets), *lengths, blank_index, reduction)
