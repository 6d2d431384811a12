"""A few small training steps on a GPU, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck python tools/small_steps.py
    compute-sanitizer --tool racecheck python tools/small_steps.py --one-strip

racecheck does not know that a flag in shared memory can order what two warps do, so it is for lattices of one warp; the
emulator (tests/emulator) checks chained ones. Values are the test suite's business, here they only have to be finite.
"""

from __future__ import annotations

import argparse
from types import ModuleType

import torch
from load_variant import folder_of, load

# B, T, U, V: one frame, an empty transcript, one class, rows of no multiple of 16 bytes, a block a row; then
# several strips, three panels
ONE_STRIP = [(2, 1, 0, 5), (2, 3, 0, 1), (2, 1, 3, 2), (2, 9, 0, 33), (3, 7, 5, 31), (2, 20, 31, 64), (1, 2, 2, 5000)]
CHAINED = [(2, 12, 32, 8), (1, 5, 200, 7), (1, 3, 600, 4)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def inputs(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """Ragged; the first utterance is full."""
    B, T, U, V = shape
    x = torch.randn(B, T, U + 1, V, device=device).to(dtype)
    labels = torch.randint(min(1, V - 1), V, (B, U), device=device)
    T_b, U_b = torch.arange(T, T - B, -1).clamp(min=1), torch.arange(U, U - B, -1).clamp(min=0)
    return x, labels, T_b.to(device), U_b.to(device)


def step(rnnt: ModuleType, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    x, *ids = inputs(shape, dtype, device)
    for function in (rnnt.rnnt_loss_from_logits, rnnt.rnnt_loss):
        for topology in ("standard", "modified"):
            for rows in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
                leaf = rows.detach().requires_grad_()
                loss = function(leaf, *ids, 0, "sum", zero_infinity=True, topology=topology)
                (grad,) = torch.autograd.grad(loss, leaf)
                assert loss.isfinite() and grad.isfinite().all(), (shape, dtype, function.__name__, topology)
    logits = x.detach().requires_grad_()
    rnnt.rnnt_loss_from_logits(logits * 1, *ids, 0, "sum", inplace_grad=True).backward()
    log_probs = x.detach().log_softmax(-1).requires_grad_()
    rnnt.ops.rnnt_forward(log_probs, *ids, 0)[0].sum().backward()
    assert logits.grad.isfinite().all() and log_probs.grad.isfinite().all(), (shape, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-strip", action="store_true", help="lattices of one warp only")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    rnnt = load(folder_of(args.device))
    shapes = ONE_STRIP if args.one_strip else ONE_STRIP + CHAINED
    for shape in shapes:
        for dtype in DTYPES:
            step(rnnt, shape, dtype, args.device)
    if args.device == "cuda":
        torch.cuda.synchronize()
    print(f"{len(shapes) * len(DTYPES)} small steps done")


if __name__ == "__main__":
    main()
