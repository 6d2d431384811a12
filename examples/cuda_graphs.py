"""A training step as a CUDA graph: joint network, loss, backward and optimizer, replayed for batches of any lengths.

    python examples/cuda_graphs.py                 # needs a GPU; without one it says so
    python examples/cuda_graphs.py --eager         # the same steps launched one by one, on any device

A graph has fixed shapes and fixed memory, and nothing in it may wait for the GPU. The loss keeps to that: lengths and
labels are data on the GPU, and are looked at there alone (no validate=True). So batches are padded to one of a few
shapes, copied into that shape's tensors, and one graph for each shape serves them all.
"""

import argparse

import torch
from kernels import get_kernel

SHAPE = B, T, U, V = 4, 40, 8, 32  # that all batches are padded to
HIDDEN, STEPS, WARMUP = 32, 60, 3


class Joint(torch.nn.Module):
    """Logits [B, T, U + 1, V] of features [B, T, HIDDEN] and transcripts [B, U]."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(HIDDEN, HIDDEN)
        self.predictor = torch.nn.Embedding(V, HIDDEN)
        self.output = torch.nn.Linear(HIDDEN, V)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        previous = self.predictor(torch.nn.functional.pad(labels, (1, 0)))  # the blank, 0, begins
        return self.output(torch.tanh(self.encoder(features)[:, :, None] + previous[:, None]))


class Step:
    """A training step on tensors that stay where they are: a call copies a batch into them and returns its loss.

    With a graph, the first calls are launched one by one, for all that allocates memory once (the optimizer's state,
    cuBLAS's workspace), on a stream of their own as a capture is; then the step is captured, and replayed ever after.
    """

    def __init__(self, device: torch.device, with_graph: bool):
        self.loss_of = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True).rnnt_loss_from_logits
        torch.manual_seed(0)
        self.model = Joint().to(device)
        # What Adam counts its steps with has to be on the GPU to be part of a graph.
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3, capturable=device.type == "cuda")
        self.features = torch.zeros(B, T, HIDDEN, device=device)
        self.labels = torch.ones(B, U, dtype=torch.int64, device=device)
        self.input_lengths = torch.full((B,), T, device=device)
        self.label_lengths = torch.full((B,), U, device=device)
        self.graph, self.loss = None, None
        self.launches = WARMUP if with_graph else float("inf")

    def __call__(self, features, labels, input_lengths, label_lengths) -> torch.Tensor:
        for mine, given in (
            (self.features, features), (self.labels, labels),
            (self.input_lengths, input_lengths), (self.label_lengths, label_lengths),
        ):  # fmt: skip
            # Into the corner: what was there of another batch is padding now, and padding is not read.
            mine[tuple(map(slice, given.shape))].copy_(given)
        if self.launches:
            self.launches -= 1
            return self.run() if self.features.device.type == "cpu" else self.run_aside()
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.loss.clone()  # the next replay writes over it

    def run(self) -> torch.Tensor:
        self.optimizer.zero_grad()  # to None: a captured backward then makes gradients in the graph's own memory
        logits = self.model(self.features, self.labels)
        loss = self.loss_of(logits, self.labels, self.input_lengths, self.label_lengths, reduction="mean_volume")
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run_aside(self) -> torch.Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self.run()
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def capture(self) -> None:
        """Writes the step down; nothing is computed before it is replayed."""
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.run()


def random_speech(random: torch.Generator, sounds: torch.Tensor) -> "tuple[torch.Tensor, ...]":
    """A batch of its own size: each label sounds for some frames, a little noisy."""
    label_lengths = torch.randint(3, U + 1, (B,), generator=random)
    labels = torch.randint(1, V, (B, int(label_lengths.max())), generator=random)
    input_lengths = 5 * label_lengths
    features = sounds[labels].repeat_interleave(5, 1)
    return features + 0.1 * torch.randn(features.shape, generator=random), labels, input_lengths, label_lengths


def train(step: Step) -> torch.Tensor:
    """Losses [STEPS], of the same batches at every call."""
    random = torch.Generator().manual_seed(1)
    sounds = torch.randn(V, HIDDEN, generator=random)
    return torch.stack([step(*random_speech(random, sounds)) for _ in range(STEPS)]).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true", help="no graph")
    eager = parser.parse_args().eager
    if not eager and not torch.cuda.is_available():
        print("no GPU here: CUDA graphs need one, --eager does not")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    losses = train(Step(device, with_graph=not eager))
    for i in (*range(0, STEPS, 10), STEPS - 1):
        print(f"step {i:3d}: {losses[i]:.3f} nats per label")
    if not eager:
        torch.testing.assert_close(losses, train(Step(device, with_graph=False)), rtol=1e-3, atol=0)
        print("launched one by one, the steps have the same losses")


if __name__ == "__main__":
    main()
