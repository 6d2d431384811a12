"""The loss against torchaudio, or against plain PyTorch where torchaudio does not import, in the hub's format:

    kernels benchmark .          # in a checkout with a build/

Each shape is a workload twice: `forward`, the loss alone, and `training`, the loss and the gradient of the logits.
RNNT_BENCHMARK_SHAPES="B,T,U,V;B,T,U,V" replaces the shapes. One file: the runner loads it without its siblings.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from functools import cache, partialmethod

import torch
import torch.nn.functional as F

try:
    from kernels.benchmark import Benchmark
except ImportError:  # without the runner the functions below still serve the other benchmarks
    Benchmark = object

CPU_SHAPES = "8,100,20,128;16,200,40,256;2,500,80,256;8,1000,200,4"
CUDA_SHAPES = "8,100,20,128;16,200,40,256;16,400,80,512;8,300,50,2048;8,1000,200,4"


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """ "B,T,U,V" with U labels, so logits are [B, T, U + 1, V]."""
    shape = tuple(int(size) for size in text.split(","))
    if len(shape) != 4 or min(shape) < 1 or shape[3] < 2:
        raise ValueError(f"a shape must be B,T,U,V with V > 1, got {text}")
    return shape


def random_inputs(shape: tuple[int, int, int, int], device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Logits [B, T, U + 1, V], labels [B, U] without the blank (0), and full lengths [B], [B]."""
    B, T, U, V = shape
    lengths = (torch.full((B,), size, dtype=torch.int32, device=device) for size in (T, U))
    labels = torch.randint(1, V, (B, U), dtype=torch.int32, device=device)
    return torch.randn(B, T, U + 1, V, device=device), labels, *lengths


def lattice_loss(blank, label, input_lengths, label_lengths) -> torch.Tensor:
    """-log Z [B] of the arc scores blank [B, T, U + 1] and label [B, T, U], one logcumsumexp per frame.

    With shift(t,u) the sum of label(t,v) over v < u, alpha(t,u) - shift(t,u) is the log-sum-exp over v <= u of
    alpha(t-1,v) + blank(t-1,v) - shift(t,v).
    """
    shift = F.pad(label.cumsum(2), (1, 0))
    step = (blank[:, :-1] - shift[:, 1:]).unbind(1)
    alpha, *rest = shift.unbind(1)
    rows = [alpha]
    for arrive, shift_t in zip(step, rest):
        alpha = torch.logcumsumexp(alpha + arrive, 1) + shift_t
        rows.append(alpha)
    last = torch.arange(len(blank), device=blank.device), input_lengths.long() - 1, label_lengths.long()
    return -(torch.stack(rows, 1)[last] + blank[last])


def plain_loss(logits, labels, input_lengths, label_lengths) -> torch.Tensor:
    """The loss [B] of a transducer in plain PyTorch; blank is 0."""
    log_probs = logits.log_softmax(-1)
    index = labels.long()[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
    label = log_probs[:, :, :-1].gather(3, index).squeeze(3)
    return lattice_loss(log_probs[..., 0], label, input_lengths, label_lengths)


@cache
def reference_loss() -> Callable[..., torch.Tensor]:
    try:
        from torchaudio.functional import rnnt_loss
    except (ImportError, OSError):  # OSError: a torchaudio built for another torch
        print("  Reference: plain PyTorch (no torchaudio here)", file=sys.stderr)
        return plain_loss
    print("  Reference: torchaudio.functional.rnnt_loss", file=sys.stderr)
    return lambda *inputs: rnnt_loss(*inputs, blank=0, reduction="none")


class RnntLoss(Benchmark):
    seed = 0

    def prepare(self, shape: tuple[int, int, int, int], training: bool) -> None:
        _, T, U, V = shape
        self.typical = (T + U) * math.log(V)  # the loss of equal logits, but for the number of paths
        self.inputs = random_inputs(shape, self.device)
        self.inputs[0].requires_grad_(training)

    def kernel_loss(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.kernel.rnnt_loss_from_logits(*inputs, reduction="none")

    def compute(self, loss: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Forward: the loss as a percentage of the typical one. Training: a gradient that carries the loss as well.

        The runner compares one tensor, to 0.01 absolute. The gradient is that of half the square of the loss, so the
        upstream gradient of an utterance is its own loss over the typical one, about 1, at no cost in time; an arc's
        posterior, at most 1, is then compared to 0.01, which is what float32 recursions like torchaudio's allow.
        """
        logits = self.inputs[0]
        if not logits.requires_grad:
            return loss(*self.inputs) * (100 / self.typical)
        logits.grad = None
        (loss(*self.inputs).square().sum() / (2 * self.typical)).backward()
        return logits.grad

    def run(self) -> None:
        self.out = None  # a training loop drops the last gradient before it makes the next
        self.out = self.compute(self.kernel_loss)

    def verify(self) -> torch.Tensor:
        return self.compute(reference_loss())


shapes = os.environ.get("RNNT_BENCHMARK_SHAPES") or (CUDA_SHAPES if torch.cuda.is_available() else CPU_SHAPES)
for text in shapes.split(";"):
    for kind in ("forward", "training"):
        workload = f"{kind}_{text.strip().replace(',', 'x')}"
        prepare = partialmethod(RnntLoss.prepare, parse_shape(text), kind == "training")
        setattr(RnntLoss, "setup_" + workload, prepare)
        setattr(RnntLoss, "benchmark_" + workload, RnntLoss.run)
        setattr(RnntLoss, "verify_" + workload, RnntLoss.verify)
