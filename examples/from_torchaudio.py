"""From torchaudio's rnnt_loss to this package's in one line, and what that changes: the gradient's error.

    python examples/from_torchaudio.py             # a second; compares with torchaudio where that imports

The line:

    from torchaudio.functional import rnnt_loss                        # before
    rnnt_loss = get_kernel(...).compat.torchaudio.rnnt_loss            # after

It has torchaudio's arguments and defaults: blank=-1 is the last class, clamp=-1 is none, and fused_log_softmax. The
package's own rnnt_loss_from_logits has everything else.
"""

import torch
from kernels import get_kernel

rnnt_loss = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True).compat.torchaudio.rnnt_loss


def torchaudios_loss():
    """None where torchaudio does not import: it is not installed, or was built for another torch."""
    try:
        from torchaudio.functional import rnnt_loss
    except (ImportError, OSError) as error:
        print(f"torchaudio does not import here ({error}): nothing to compare with, which training does not need")
        return None
    return rnnt_loss


def loss_and_gradient(function, logits: torch.Tensor, *ids: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor]":
    logits = logits.detach().requires_grad_()
    loss = function(logits, *ids)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


def main() -> None:
    torch.manual_seed(0)
    B, T, U, V = 2, 400, 40, 64
    logits = torch.randn(B, T, U + 1, V)
    targets = torch.randint(0, V - 1, (B, U), dtype=torch.int32)
    ids = targets, torch.tensor([T, T - 60]).int(), torch.tensor([U, U - 9]).int()  # int64 would do here

    _, exact = loss_and_gradient(rnnt_loss, logits.double(), *ids)
    for name, function in (("rnnt-loss", rnnt_loss), ("torchaudio", torchaudios_loss())):
        if function is not None:
            loss, gradient = loss_and_gradient(function, logits, *ids)
            error = (gradient - exact).abs().max() / exact.abs().max()
            print(f"{name:10}  loss {loss.item():.4f}  gradient off by {error.item():.1e} of its largest element")


if __name__ == "__main__":
    main()
