"""Train transformers' Parakeet with this package's loss, first as RNN-T, then as TDT: a tiny random model, one batch.

    python examples/finetune_parakeet.py             # some seconds; needs transformers >= 5.24, and no torchaudio

A checkpoint, `ParakeetForTDT.from_pretrained(...)`, gets its loss in the same way: get_kernel, then loss_function.
"""

import argparse
import sys

import torch
from kernels import get_kernel

# transformers imports torchaudio wherever it finds one, for its own RNN-T loss too, and fails where that does not fit
# the torch beside it. Nothing here needs it.
sys.modules["torchaudio"] = None

from transformers import (  # noqa: E402
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)

LABELS, BLANK, MELS = 8, 8, 16  # the blank is the last class, and pads
ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "num_mel_bins": MELS,
    "subsampling_conv_channels": 8, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "layerdrop": 0.0,
}  # fmt: skip
OPTIONS = {
    "vocab_size": LABELS + 1, "blank_token_id": BLANK, "pad_token_id": BLANK, "decoder_hidden_size": 32,
    "num_decoder_layers": 1, "encoder_config": ENCODER,
}  # fmt: skip


def tiny_rnnt(layers) -> ParakeetForRNNT:
    model, loss = ParakeetForRNNT(ParakeetRNNTConfig(**OPTIONS)), layers.RNNTLoss()

    # A function: a module set as loss_function becomes a submodule, which the model's property of that name hides.
    def loss_function(logits, labels, logit_lengths, label_lengths, blank_token_id, **_):
        return loss(logits, labels, logit_lengths, label_lengths, blank_token_id)

    model.loss_function = loss_function
    return model


def tiny_tdt(layers) -> ParakeetForTDT:
    model, loss = ParakeetForTDT(ParakeetTDTConfig(**OPTIONS)), layers.TDTLoss()

    def loss_function(
        token_logits, duration_logits, labels, logit_lengths, label_lengths, blank_token_id, durations, **_
    ):
        return loss(token_logits, duration_logits, labels, logit_lengths, label_lengths, blank_token_id, durations)

    model.loss_function = loss_function
    return model


def random_speech(size: int, spectra: torch.Tensor) -> dict[str, torch.Tensor]:
    """Utterances of 2 to 5 labels, each of which sounds as its spectrum, a little noisy, for 16 frames."""
    lengths = torch.randint(2, 6, (size, 1))
    within = torch.arange(5) < lengths
    labels = torch.randint(0, LABELS, (size, 5)).masked_fill(~within, BLANK)
    features = spectra[labels].repeat_interleave(16, 1)
    return {
        "input_features": features + 0.1 * torch.randn_like(features),
        "attention_mask": within.repeat_interleave(16, 1),
        "decoder_input_ids": torch.nn.functional.pad(labels, (1, 0), value=BLANK),
        "labels": labels,
    }


def train(name: str, model: torch.nn.Module, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = random_speech(8, torch.randn(LABELS + 1, MELS))
    for step in range(steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"{name} step {step:3d}: {loss.item():.3f} nats per label", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of so small a model, threads cost more than they give
    layers = get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True).layers
    train("RNN-T", tiny_rnnt(layers), steps)
    train("TDT", tiny_tdt(layers), steps)


if __name__ == "__main__":
    main()
