"""The pictures of train_prompts.py: the loss while training, and the lattice of one utterance."""

from pathlib import Path

import matplotlib
import torch
from prompts_data import BANDS, BLANK, FRAME_SECONDS
from torch import Tensor

matplotlib.use("agg")  # files only, no screen
from matplotlib import pyplot as plt  # noqa: E402

STYLE = {"font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "figure.dpi": 150}


def plot_loss(history: list[tuple[float, float]], file: Path) -> None:
    """history: the mean loss of a prompt in every epoch, (trained, held out)"""
    trained, held_out = zip(*history)
    epochs = range(1, len(history) + 1)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for values, name, colour in ((held_out, "held out", "tab:orange"), (trained, "trained", "tab:blue")):
            axes.plot(epochs, values, color=colour, lw=1.8)
            axes.annotate(f" {name}, {values[-1]:.2f}", (epochs[-1], values[-1]), color=colour, va="center")
        axes.set(xlabel="epoch", ylabel="transducer loss of a prompt, nats", title="Loss while training", yscale="log")
        axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
        figure.savefig(file)
        plt.close(figure)


def best_path(log_probs: Tensor, labels: Tensor) -> list[tuple[int, int]]:
    """The nodes (t, u) of the likeliest path, by Viterbi: the recursion of alpha with max in place of log-add.

    log_probs: [T, U+1, V]; labels: [U]
    """
    frames, columns, _ = log_probs.shape
    blank = log_probs[:, :, BLANK].tolist()  # [T][U+1]
    label = log_probs[:, :-1].gather(2, labels.expand(frames, -1)[..., None])[..., 0].tolist()  # [T][U]
    score, by_label = {(0, 0): 0.0}, {}
    for t in range(frames):
        for u in range(columns):
            if (t, u) != (0, 0):
                from_blank = score[t - 1, u] + blank[t - 1][u] if t > 0 else float("-inf")
                from_label = score[t, u - 1] + label[t][u - 1] if u > 0 else float("-inf")
                score[t, u], by_label[t, u] = max(from_blank, from_label), from_label > from_blank
    path = [(frames - 1, columns - 1)]
    while path[-1] != (0, 0):
        t, u = path[-1]
        path.append((t, u - 1) if by_label[t, u] else (t - 1, u))
    return path[::-1]


def plot_lattice(rnnt, logits: Tensor, labels: Tensor, features: Tensor, text: str, file: Path) -> None:
    """What was heard; alpha, beta, and their sum with the best path on it.

    logits: [T, U+1, V]; labels: [U]; features: [T, STACK * BANDS]
    """
    log_probs = logits.double().log_softmax(-1)
    frames, columns, _ = log_probs.shape
    lengths = torch.tensor([frames]), torch.tensor([columns - 1])
    loss, alpha, beta = rnnt.ops.rnnt_forward(log_probs[None], labels[None], *lengths, BLANK)  # [1], [1, T, U+1] twice
    log_z = -loss.item()
    panels = {
        "alpha": (alpha[0], "α (t, u): the paths from the start to here"),
        "beta": (beta[0], "β (t, u): the paths from here to the end"),
        "both": (alpha[0] + beta[0] - log_z, "α + β − log Z: the paths through here, and the best of all"),
    }
    seconds = frames * FRAME_SECONDS
    depth = 40 - log_z  # nats below 0 that have a colour: alpha ends at log Z and shall stand out up to there

    with plt.rc_context(STYLE):
        figure, axes = plt.subplot_mosaic(
            [["alpha", "heard"], ["alpha", "both"], ["beta", "both"]],
            figsize=(14, 9),
            width_ratios=[1, 1.5],
            height_ratios=[1, 0.7, 2],
            layout="constrained",
        )
        spectrogram = features.reshape(-1, BANDS).T.numpy()  # [BANDS, frames of 10 ms]
        axes["heard"].imshow(spectrogram, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, BANDS))
        axes["heard"].set(yticks=[], ylabel="mel bands")
        axes["heard"].set_title(f"“{text}”", parse_math=False)

        for name, (values, title) in panels.items():
            # Node (t, u) is a cell from frame t to t + 1; in row u, u characters have been said.
            image = axes[name].imshow(
                values.T.numpy(),
                origin="lower",
                aspect="auto",
                cmap="viridis",
                vmin=-depth,
                vmax=0,
                extent=(0, seconds, -0.5, columns - 0.5),
                interpolation="nearest",
            )
            axes[name].set_facecolor(plt.get_cmap("viridis")(0.0))  # -inf has no cell of its own
            axes[name].set(xlabel="seconds", ylabel="last character said", title=title)
            axes[name].set_yticks(range(columns), ["start", *text.replace(" ", "␣")], fontsize=8)

        through = [((t + 0.5) * FRAME_SECONDS, u) for t, u in best_path(log_probs, labels)]
        axes["both"].plot(*zip(*through), color="white", lw=4)
        axes["both"].plot(*zip(*through), color="crimson", lw=1.8)
        bar = figure.colorbar(image, ax=list(axes.values()), extend="min", pad=0.01, aspect=40)
        bar.set_label(f"nats, the top {depth:.0f}")
        figure.savefig(file)
        plt.close(figure)
