"""Data-parallel training whose gradients are those of one process: torchrun, two processes, a tiny joint network.

    torchrun --standalone --nproc-per-node 2 examples/distributed.py       # on the CPU, by gloo; some seconds

DistributedDataParallel averages gradients over processes. Where these have different numbers of utterances or labels,
the average of means is not the mean. So each process divides its sum of losses by the labels of all, and multiplies it
by the number of processes, which the average divides by.
"""

import torch
import torch.distributed as dist
from kernels import get_kernel
from torch.nn.parallel import DistributedDataParallel

rnnt = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)
T, U, V, HIDDEN = 30, 6, 20, 16


class Joint(torch.nn.Module):
    """Logits [B, T, U + 1, V] of encoder frames [B, T, HIDDEN] and transcripts [B, U]."""

    def __init__(self):
        super().__init__()
        self.predictor = torch.nn.Embedding(V, HIDDEN)
        self.output = torch.nn.Linear(HIDDEN, V)

    def forward(self, frames: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        previous = self.predictor(torch.nn.functional.pad(labels, (1, 0)))  # the blank, 0, begins
        return self.output(torch.tanh(frames[:, :, None] + previous[:, None]))


def random_batch(size: int) -> "tuple[torch.Tensor, ...]":
    """Frames, labels and both lengths, the same in every process."""
    random = torch.Generator().manual_seed(0)
    frames = torch.randn(size, T, HIDDEN, generator=random)
    labels = torch.randint(1, V, (size, U), generator=random)
    label_lengths = torch.randint(1, U + 1, (size,), generator=random)
    return frames, labels, torch.randint(T // 2, T + 1, (size,), generator=random), label_lengths


def summed_loss(model: torch.nn.Module, frames, labels, input_lengths, label_lengths) -> torch.Tensor:
    return rnnt.rnnt_loss_from_logits(model(frames, labels), labels, input_lengths, label_lengths, reduction="sum")


def gradients(model: torch.nn.Module) -> "dict[str, torch.Tensor]":
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main() -> None:
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Joint()
    alone = Joint()
    alone.load_state_dict(model.state_dict())

    whole = random_batch(4 * processes + 1)  # one more than can be shared out evenly
    own = [tensor[rank::processes] for tensor in whole]

    labels_of_all = own[3].sum()
    dist.all_reduce(labels_of_all)
    parallel = DistributedDataParallel(model)
    (summed_loss(parallel, *own) * processes / labels_of_all).backward()

    (summed_loss(alone, *whole) / whole[3].sum()).backward()  # reduction="mean_volume"
    for name, wanted in gradients(alone).items():
        torch.testing.assert_close(gradients(model)[name], wanted, rtol=1e-5, atol=1e-6)
    if rank == 0:
        print(f"{processes} processes, {len(whole[0])} utterances: the gradients are those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
