"""What functions have in common to check of their arguments: metadata. Of data, the binding checks what it can see."""

import math
import operator

import torch
from torch import Tensor

from .lattice import ARCS

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
REDUCTIONS = ("none", "sum", "mean", "mean_volume")
NORMALIZERS = ("softmax", "hat", "none")
LARGEST = torch.finfo(torch.float64).max
MOST_ARCS = 32  # rnnt_loss/core/topology.h
LONGEST_ARC = 1 << 20  # torch-ext/arc_ops.h


def check_one_of(name, value, options) -> None:
    if not isinstance(value, (str, type(None))) or value not in tuple(options):
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}")


def check_options(reduction, normalizer, clamp, fastemit_lambda, topology, **flags) -> None:
    check_one_of("reduction", reduction, REDUCTIONS)
    check_one_of("topology", topology, ARCS)
    check_one_of("normalizer", normalizer, NORMALIZERS)
    number_of("fastemit_lambda", fastemit_lambda, 0.0)
    clamp_of(clamp)
    check_flags(**flags)


def check_flags(**flags) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool) and not (name == "validate" and flag is None):
            raise TypeError(f"{name} must be a bool{' or None' * (name == 'validate')}, got {type(flag).__name__}")


def normalizer_of(from_logits, normalizer) -> str:
    """What rows need: none, if they hold log-probabilities."""
    if not isinstance(from_logits, bool):
        raise TypeError(f"from_logits must be a bool, got {type(from_logits).__name__}")
    check_one_of("normalizer", normalizer, NORMALIZERS)
    if normalizer == "hat" and not from_logits:
        raise ValueError("normalizer must be softmax or none without from_logits, got 'hat'")
    return normalizer if from_logits else "none"


def check_dense(name, tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got {'a nested one' if tensor.is_nested else tensor.layout}")


def check_numbers(name, tensor) -> None:
    check_dense(name, tensor)
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} must be float32, float64, float16 or bfloat16, got {tensor.dtype}")


def check_lengths(name, lengths, shape) -> None:
    check_dense(name, lengths)
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {lengths.dtype}")
    if tuple(lengths.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(lengths.shape)}")


def check_tensors(name, x, labels, input_lengths, label_lengths, packed=False) -> None:
    integers = {"labels": labels, "input_lengths": input_lengths, "label_lengths": label_lengths}
    for key, tensor in integers.items():
        check_dense(key, tensor)
    check_numbers(name, x)
    if packed:
        if x.dim() != 2 or x.shape[1] < 1:
            raise ValueError(f"{name} must have shape [sum of T_b (U_b + 1), V] with V >= 1, got {list(x.shape)}")
        if labels.dim() != 2:
            raise ValueError(f"labels must have shape [B, U], got {list(labels.shape)}")
        sized, (B, U) = "labels", labels.shape
    else:
        if x.dim() != 4 or x.shape[2] < 1 or x.shape[3] < 1:
            raise ValueError(f"{name} must have shape [B, T, U + 1, V] with U >= 0 and V >= 1, got {list(x.shape)}")
        sized, (B, U) = name, (x.shape[0], x.shape[2] - 1)
    wanted = {"labels": (B, U), "input_lengths": (B,), "label_lengths": (B,)}
    for key, tensor in integers.items():
        if tensor.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{key} must be int32 or int64, got {tensor.dtype}")
        if tuple(tensor.shape) != wanted[key]:
            raise ValueError(
                f"{key} must have shape {list(wanted[key])} for {sized} of shape "
                f"{list((labels if packed else x).shape)}, got {list(tensor.shape)}"
            )
        if tensor.device != x.device and tensor.device.type != "cpu":
            raise ValueError(f"{key} must be on {x.device}, where {name} is, or on the CPU, got {tensor.device}")


def check_variant(device, cells, windows, blank_bias, label_bias) -> None:
    if windows is not None:
        if not isinstance(windows, Tensor) or windows.dtype not in (torch.int32, torch.int64):
            kind = windows.dtype if isinstance(windows, Tensor) else type(windows).__name__
            raise TypeError(f"windows must be an int32 or int64 tensor, got {kind}")
        wanted = [cells[0], cells[2] - 1, 2]
        if list(windows.shape) != wanted:
            raise ValueError(f"windows must have shape {wanted}, got {list(windows.shape)}")
    for name, bias in (("blank_bias", blank_bias), ("label_bias", label_bias)):
        if bias is None:
            continue
        check_numbers(name, bias)
        if tuple(bias.shape) != tuple(cells) or bias.device != device:
            raise ValueError(f"{name} must have shape {list(cells)} on {device}, got {list(bias.shape)} on "
                             f"{bias.device}")  # fmt: skip


def number_of(name, value, least=-math.inf) -> float:
    wanted = "a finite float" + f" >= {least:g}" * (least > -math.inf)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    if not (abs(value) <= LARGEST and value >= least):
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return float(value)


def clamp_of(clamp) -> "float | None":
    if clamp is None:
        return None
    if isinstance(clamp, bool) or not isinstance(clamp, (int, float)):
        raise TypeError(f"clamp must be None or a float > 0, got {type(clamp).__name__}")
    if not clamp > 0:
        raise ValueError(f"clamp must be None or a float > 0, got {clamp!r}")
    return float(clamp) if clamp <= LARGEST else math.inf


def check_generator(generator) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")


def frames_of(name, x, input_lengths, max_input_length) -> int:
    """T of a packed batch: max_input_length, or the longest, which is read from where it is."""
    if max_input_length is not None:
        if isinstance(max_input_length, bool) or not isinstance(max_input_length, (int, torch.SymInt)):
            raise TypeError(f"max_input_length must be None or an int >= 0, got {type(max_input_length).__name__}")
        if not 0 <= max_input_length < 1 << 31:
            raise ValueError(f"max_input_length must be None or an int >= 0 and < 2^31, got {max_input_length}")
        return max_input_length
    longest = max(1, int(input_lengths.max())) if len(input_lengths) else 0
    if longest > len(x):
        raise ValueError(f"{name} must have at least a row for each of {longest} frames (input_lengths), got {len(x)}")
    return longest


def integer_of(name, value) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got bool")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None


def class_of(blank, V) -> int:
    index = integer_of("blank", blank)
    if not -V <= index < V:
        raise ValueError(f"blank must be in [-{V}, {V}), got {index}")
    return index + V if index < 0 else index


def check_overwritable(name, x) -> None:
    if x.is_leaf or (x._base is not None and x._base.is_leaf):
        raise ValueError(f"{name} must not be a leaf or a view of one with inplace_grad: its values would be lost")
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"{name} must have contiguous rows with inplace_grad, got strides {list(x.stride())}")
    covered = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape) if size > 1):
        if stride < covered:
            raise ValueError(
                f"{name} must not be expanded or overlapping with inplace_grad, got shape {list(x.shape)} "
                f"with strides {list(x.stride())}"
            )
        covered = stride * (size - 1) + covered


def integers_of(name, values, least, most_of_them) -> "tuple[int, ...]":
    try:
        if isinstance(values, (set, frozenset, dict, bytes, bytearray)):
            raise TypeError("no sequence of numbers")
        values = tuple(values)
        found = tuple(operator.index(value) for value in values)
        if any(isinstance(value, bool) for value in values):
            raise TypeError("no number")
    except TypeError:
        raise TypeError(f"{name} must be a sequence of ints, got {values!r}") from None
    if not all(least <= value < LONGEST_ARC for value in found) or len(set(found)) < len(found):
        raise ValueError(
            f"{name} must be different and at least {least} and less than {LONGEST_ARC}, got {list(found)}"
        )
    if len(found) > most_of_them:
        raise ValueError(f"{name} must be at most {most_of_them}, got {len(found)}")
    return found


def durations_of(values) -> "tuple[int, ...]":
    durations = integers_of("durations", values, 0, MOST_ARCS // 2)
    if max(durations, default=0) < 1:
        raise ValueError(f"durations must be 1 to {MOST_ARCS // 2}, one of them above 0, got {list(durations)}")
    return durations


def check_duration_logits(duration_logits, token_logits, durations) -> None:
    wanted = (*token_logits.shape[:3], len(durations))
    check_numbers("duration_logits", duration_logits)
    if duration_logits.shape != wanted:
        raise ValueError(f"duration_logits must have shape {list(wanted)}, got {list(duration_logits.shape)}")
    if duration_logits.device != token_logits.device:
        raise ValueError(f"duration_logits must be on {token_logits.device}, got {duration_logits.device}")


def chance_of(omega) -> float:
    if number_of("omega", omega, 0.0) > 1:
        raise ValueError(f"omega must be in [0, 1], got {omega!r}")
    return float(omega)
