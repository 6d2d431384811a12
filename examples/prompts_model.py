"""The model of train_prompts.py: a small streaming RNN transducer, and greedy search over it."""

import torch
from prompts_data import BANDS, BLANK, STACK
from torch import Tensor, nn
from torch.nn import functional as F

LOOK_AHEAD = 2  # frames of 40 ms that the encoder sees past the present one


class CausalBlock(nn.Module):
    """A gated convolution over this frame and the four before it, added to its input."""

    KERNEL = 5

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.convolution = nn.Conv1d(width, width, self.KERNEL, groups=width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width] to the same
        y = F.glu(self.gate(self.norm(x)))
        y = F.pad(y.mT, (self.KERNEL - 1, 0))  # on the left alone: no frame sees a later one
        y = F.silu(self.convolution(y)).mT
        return x + self.dropout(self.out(y))


class Transducer(nn.Module):
    """Encoder over frames, prediction network over the labels so far, joint network over every pair of the two."""

    def __init__(self, classes: int, width: int = 256, joint: int = 128, dropout: float = 0.1):
        super().__init__()
        self.front = nn.Linear((1 + LOOK_AHEAD) * STACK * BANDS, width)
        self.front_norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(CausalBlock(width, dropout) for _ in range(3)))
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.encoder_out = nn.Linear(width, joint)
        self.embedding = nn.Embedding(classes, joint)
        self.predictor = nn.LSTM(joint, joint, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.joint_out = nn.Linear(joint, classes)

    def encode(self, features: Tensor) -> Tensor:  # [B, T, STACK * BANDS] to [B, T, joint]
        frames = features.shape[1]
        ahead = F.pad(features, (0, 0, 0, LOOK_AHEAD))
        x = torch.cat([ahead[:, i : i + frames] for i in range(1 + LOOK_AHEAD)], dim=2)
        x = self.blocks(F.silu(self.front_norm(self.front(x))))  # [B, T, width]
        x = x + self.dropout(self.memory(x)[0])
        return self.encoder_out(x)

    def predict(self, labels: Tensor, state=None):  # [B, U] to [B, U, joint], and the state to go on from
        return self.predictor(self.dropout(self.embedding(labels)), state)

    def join(self, encoded: Tensor, predicted: Tensor) -> Tensor:  # [..., joint] each to logits [..., V]
        return self.joint_out((encoded + predicted).tanh_())  # in place: the largest tensor of all

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:  # to the logits of the lattice, [B, T, U+1, V]
        predicted, _ = self.predict(F.pad(labels, (1, 0), value=BLANK))  # blank stands for the start: U + 1 columns
        return self.join(self.encode(features)[:, :, None], predicted[:, None])


@torch.inference_mode()
def greedy(model: Transducer, features: Tensor, labels_per_frame: int = 5) -> list[int]:
    """The labels of one utterance, [T, STACK * BANDS]: at every node the likeliest arc is taken.

    Frames are used up one by one, as in a stream. The cap on labels per frame is there for a model that never says
    blank.
    """
    labels = []
    predicted, state = model.predict(torch.tensor([[BLANK]]))
    for encoded in model.encode(features[None])[0]:
        for _ in range(labels_per_frame):
            label = int(model.join(encoded, predicted[0, 0]).argmax())
            if label == BLANK:
                break
            labels.append(label)
            predicted, state = model.predict(torch.tensor([[label]]), state)
    return labels
