"""The error budget: each element's error, against float64, within twice the plain-PyTorch twin's own plus a floor."""

import torch
from torch import Tensor

# Of gradients through scores of arcs that have the dtype's accumulation type, and of inputs rounded to it.
FLOORS = {torch.float64: None, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def assert_within_budget(name: str, got: Tensor, truth: Tensor, twin: Tensor | None = None, floor: float | None = None):
    """Every element of `got` is near `truth` (float64), and infinite or NaN exactly where it is.

    Allowed: 2 |twin - truth| + floor x scale. The twin is the plain computation, rounded to got's dtype; the floor is
    room for another order of the same operations, 1e-12 or, below float64, 5e-7, which is what a flow of 100 steps
    needs: two roundings of 6e-8 a step add up as the root of the steps, whatever the twin's own luck at that element.
    The scale of a loss is its own size, at least 1, and that of a gradient the largest of its utterance, at least 0.01.
    """
    assert got.shape == truth.shape, f"{name}: wanted shape {tuple(truth.shape)}, got {tuple(got.shape)}"
    if truth.numel() == 0:
        return
    got, truth = got.cpu(), truth.cpu()
    finite = truth.isfinite()
    values, wanted = got.double(), truth.double()
    same = torch.where(finite, values.isfinite(), (values == wanted) | values.isnan() & wanted.isnan())
    assert same.all(), worst(name, (~same).double(), values, wanted)

    size = wanted.abs().masked_fill(~finite, 0)
    if truth.dim() == 1:
        scale = size.clamp(min=1)
    else:
        scale = size.flatten(1).amax(1).clamp(min=0.01).view(-1, *[1] * (truth.dim() - 1))
    acc_t = torch.float64 if got.dtype == torch.float64 else torch.float32
    steps = truth.shape[1] + truth.shape[2] if truth.dim() > 2 else 0
    floor = floor or (1e-12 if acc_t == torch.float64 else 5e-7 * max(1, steps / 100) ** 0.5)
    allowed = floor * scale + torch.finfo(acc_t).tiny
    if twin is not None:
        allowed = allowed + 2 * (twin.double() - wanted).abs()
    error = (values - wanted).abs().masked_fill(~finite, 0)
    over = torch.where(error > 0, error / allowed, 0)
    assert over.max() <= 1, worst(name, over, values, wanted)


def worst(name: str, badness: Tensor, got: Tensor, wanted: Tensor) -> str:
    index = tuple(int(i) for i in torch.unravel_index(badness.argmax(), badness.shape))
    return (
        f"{name}{list(index)}: wanted {float(wanted[index])!r}, got {float(got[index])!r}, "
        f"{float(badness[index]):.3g} x the budget; {int((badness >= 1).sum())} elements are wrong"
    )


def assert_same_bits(name: str, got: Tensor, wanted: Tensor):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, f"{name}: {got.shape} {got.dtype}"
    same = (got == wanted) | got.isnan() & wanted.isnan()
    assert same.all(), worst(name, (~same).double(), got.double(), wanted.double())


def assert_opcheck(op, *arguments) -> None:
    """Schema, fake, autograd registration and ahead-of-time dispatch of a native op."""
    assert set(torch.library.opcheck(op.default, arguments).values()) == {"SUCCESS"}
