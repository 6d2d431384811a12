"""A batch of utterances, and ways to make one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

INF = float("inf")
NAN = float("nan")
JUNK_LABEL = 2147480000


def inside(T: int, W: int, input_lengths: Tensor, label_lengths: Tensor) -> Tensor:
    """The valid cells of [B, T, W]."""
    t, u = torch.arange(T)[:, None], torch.arange(W)
    return (t < input_lengths[:, None, None]) & (u <= label_lengths[:, None, None])


class Batch(NamedTuple):
    """What a loss takes, in its order."""

    x: Tensor  # [B, T, U+1, V], logits or log-probs
    labels: Tensor  # [B, U]
    input_lengths: Tensor  # [B]
    label_lengths: Tensor  # [B]
    blank: int = 0

    @property
    def cells(self) -> Tensor:
        return inside(*self.x.shape[1:3], self.input_lengths, self.label_lengths)

    def to(self, dtype: torch.dtype) -> "Batch":
        return self._replace(x=self.x.to(dtype))

    def front(self, from_logits: bool) -> "Batch":
        """Itself, or with log-probs in place of its logits."""
        return self if from_logits else self._replace(x=self.x.double().log_softmax(-1).to(self.x.dtype))

    def take(self, index: Sequence[int]) -> "Batch":
        """Some utterances, in any order."""
        index = torch.as_tensor(index, dtype=torch.long)
        return Batch(*(tensor[index] for tensor in self[:4]), self.blank)

    def poisoned(self, more: tuple[int, int] = (1, 1)) -> "Batch":
        """With `more` frames and labels of padding; all padding is NaN and +inf, padded labels are junk."""
        (B, T, W, V), (more_T, more_U) = self.x.shape, more
        x = self.x.new_full((B, T + more_T, W + more_U, V), NAN)
        x[:, 1::2, ::2] = INF
        x[:, ::2, 1::2] = INF
        x[:, :T, :W] = torch.where(self.cells[..., None], self.x, x[:, :T, :W])
        labels = self.labels.new_full((B, W - 1 + more_U), JUNK_LABEL)
        used = torch.arange(W - 1) < self.label_lengths[:, None]
        labels[:, : W - 1] = torch.where(used, self.labels, JUNK_LABEL)
        return self._replace(x=x, labels=labels)


def batch(x, labels, input_lengths=None, label_lengths=None, blank: int = 0) -> Batch:
    """A batch from nested lists; full lengths unless given, one utterance if x has three dimensions."""
    x = torch.as_tensor(x, dtype=torch.float64)
    labels = torch.as_tensor(labels, dtype=torch.int64)
    if x.dim() == 3:
        x, labels = x[None], labels[None]
    B, T, W, _ = x.shape
    T_b = torch.full((B,), T) if input_lengths is None else torch.tensor(input_lengths)
    U_b = torch.full((B,), W - 1) if label_lengths is None else torch.tensor(label_lengths)
    return Batch(x, labels, T_b, U_b, blank)


def collate(*utterances: Batch) -> Batch:
    """One padded batch of several."""
    B, V = sum(u.x.shape[0] for u in utterances), utterances[0].x.shape[3]
    T, W = (max(u.x.shape[d] for u in utterances) for d in (1, 2))
    x, labels, b = torch.zeros(B, T, W, V, dtype=torch.float64), torch.zeros(B, W - 1, dtype=torch.int64), 0
    for u in utterances:
        n, t, w, _ = u.x.shape
        x[b : b + n, :t, :w], labels[b : b + n, : w - 1] = u.x, u.labels
        b += n
    T_b, U_b = (torch.cat([u[i] for u in utterances]) for i in (2, 3))
    return Batch(x, labels, T_b, U_b, utterances[0].blank)


def edit(original: Batch, value: float, *indices) -> Batch:
    """The batch with x[index] = value, for every index (b, t, u, v)."""
    x = original.x.clone()
    for index in indices:
        x[index] = value
    return original._replace(x=x)


def random_batch(B: int, T: int, U: int, V: int, seed: int = 0, scale=1.0, blank: int = 0, ragged=False) -> Batch:
    """Normal logits times `scale`; ragged: random lengths, one of them full, one target empty where B allows."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, T, U + 1, V, dtype=torch.float64, generator=g) * scale
    labels = torch.randint(0, max(1, V - 1), (B, U), generator=g)
    labels += labels >= blank % V
    T_b, U_b = torch.full((B,), T), torch.full((B,), U)
    if ragged:
        T_b, U_b = torch.randint(1, T + 1, (B,), generator=g), torch.randint(0, U + 1, (B,), generator=g)
        U_b[-1], T_b[0], U_b[0] = 0, T, U
    return Batch(x, labels, T_b, U_b, blank)
