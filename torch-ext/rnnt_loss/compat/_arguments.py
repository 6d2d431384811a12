"""What the drop-ins check of arguments before those become the package's own."""

from torch import Tensor


def check_one_of(name, value, options) -> None:
    if value not in tuple(options):
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}")


def check_tensor(name, value, shape) -> None:
    """shape: for each dimension its size, or the name of any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    wanted = [size if isinstance(want, str) else want for size, want in zip(value.shape, shape)]
    if value.dim() != len(shape) or list(value.shape) != wanted:
        raise ValueError(f"{name} must have shape [{', '.join(map(str, shape))}], got {list(value.shape)}")


def clamp_of(clamp):
    """Ours of a bound that is none where it is not above 0."""
    return None if clamp <= 0 else clamp
