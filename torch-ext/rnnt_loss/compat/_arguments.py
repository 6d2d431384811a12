"""What the drop-ins check of arguments before those become the package's own."""

from torch import Tensor


def check_tensor(name, value, shape=None) -> None:
    """shape: for each dimension its size, or the name of any size. None is any shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if shape is None:
        return
    wanted = [size if isinstance(want, str) else want for size, want in zip(value.shape, shape)]
    if value.dim() != len(shape) or list(value.shape) != wanted:
        raise ValueError(f"{name} must have shape [{', '.join(map(str, shape))}], got {list(value.shape)}")


def cast(**ids) -> "list[Tensor]":
    """Ids and lengths of any dtype as int64, where a library casts them too."""
    for name, value in ids.items():
        check_tensor(name, value)
    return [value.long() for value in ids.values()]


def clamp_of(clamp):
    """Ours of a bound that is none where it is not above 0."""
    return None if clamp <= 0 else clamp
