"""Train a small streaming transducer on recorded speech with this package's loss, then read the speech back."""
# ruff: noqa: E402

import os

# Read when torch is loaded. Threads that wait shall sleep: where another program has a core, spinning costs tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from prompts_data import (
    BLANK,
    Collator,
    Prompt,
    SetupError,
    debian_transcripts,
    fetch_debian_prompts,
    group,
    load_prompts,
    own_transcripts,
    split_by_text,
)
from prompts_model import Transducer, greedy
from prompts_progress import Progress, Stopwatch

HELP = """\
The speech is Debian's asterisk-core-sounds-en-wav (568 prompts of one voice, Allison Smith; CC-BY-SA 3.0), fetched
with apt-get into XDG_CACHE_HOME or ~/.cache. With --data DIR it is your own:

  DIR/transcripts.tsv   a line per recording: its file, a tab, its text    (hello.wav<TAB>hello world)
  DIR/*.wav             PCM, one channel, 16 bits, all of one sample rate

Texts are taken in lower case and otherwise as they stand; every character in them becomes a label. A tenth of the
texts is held out with all recordings of them: never trained on, only read back at the end.

Ctrl-C keeps the last whole epoch, for --resume and --decode. The same seed and number of threads give the same
losses, resumed or not."""

SHORT = 25  # characters of the longest text, unless --full
EPOCHS = {"short": 80, "full": 30}
BATCH = {"size": 16, "nodes": 60_000}  # padded lattice nodes bound the memory of the long prompts
LEARNING_RATE = 2e-3
EXAMPLES = 8  # texts printed of each group; the file has them all


@dataclass
class Run:
    """A training run: all that a checkpoint holds."""

    settings: dict  # full, data, seed, epochs
    collator: Collator
    model: Transducer
    optimizer: torch.optim.Optimizer
    history: list[tuple[float, float]]  # of every epoch, the mean loss of a prompt: trained, held out

    @classmethod
    def start(cls, settings: dict, collator: Collator) -> "Run":
        torch.manual_seed(settings["seed"])
        model = Transducer(classes=1 + len(collator.alphabet))
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
        return cls(settings, collator, model, optimizer, [])

    @classmethod
    def load(cls, file: Path) -> "Run":
        state = torch.load(file)
        run = cls.start(state["settings"], Collator(**state["collator"]))
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.history = state["history"]
        torch.set_rng_state(state["random"])
        return run

    def save(self, file: Path) -> None:
        state = {
            "settings": self.settings,
            "collator": vars(self.collator),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
            "random": torch.get_rng_state(),
        }
        # Written beside the old one and then put in its place: Ctrl-C at any moment leaves a whole file.
        unfinished = file.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(file)


def load_kernel():
    """The package with the loss: this repository's own build where there is one, else the kernel on the hub."""
    build = Path(__file__).resolve().parents[1] / "build"
    if any(build.glob("torch-*")):
        os.environ.setdefault("LOCAL_KERNELS", f"phanerozoic/rnnt-loss={build}")
    from kernels import get_kernel

    try:
        return get_kernel("phanerozoic/rnnt-loss", version=1, trust_remote_code=True)
    except Exception as error:  # of many kinds: no network, no variant for this torch, a broken library
        command = "make build-cuda" if torch.version.cuda else "make build"
        raise SetupError(f"The kernel phanerozoic/rnnt-loss does not load; {command} makes one. {error}") from error


def load_corpus(settings: dict) -> tuple[list[Prompt], list[Prompt]]:
    """(trained, held out)"""
    own = settings["data"]
    transcripts = own_transcripts(Path(own)) if own else debian_transcripts(fetch_debian_prompts())
    return split_by_text(load_prompts(transcripts, None if settings["full"] else SHORT), settings["seed"])


def train(rnnt, run: Run, trained: list[Prompt], held_out: list[Prompt], file: Path, clock: Stopwatch) -> None:
    """Train the epochs that are left, with a checkpoint after each."""
    epochs = run.settings["epochs"]
    progress = Progress("epoch", epochs, len(run.history))
    try:
        while len(run.history) < epochs:
            loss = train_epoch(rnnt, run, trained, clock, progress)
            with clock("held-out loss"):
                run.history.append((loss, held_out_loss(rnnt, run, held_out)))
            with clock("checkpoints"):
                run.save(file)
            progress.show(len(run.history), "loss {:7.3f}  held out {:7.3f}  ".format(*run.history[-1]))
    except KeyboardInterrupt:
        if not run.history:
            sys.exit("\nstopped in the first epoch: nothing of this run is saved")
        sys.exit(f"\nstopped after {len(run.history)} of {epochs} epochs; {file} is good for --resume and --decode")


def train_epoch(rnnt, run: Run, trained: list[Prompt], clock: Stopwatch, progress: Progress) -> float:
    """The mean loss of a prompt in this epoch, in nats."""
    run.model.train()
    loss_sum, seen = 0.0, 0
    batches = group(trained, **BATCH, shuffle=True)
    for i, prompts in enumerate(batches):
        done = len(run.history) + (i + 0.5) / len(batches)
        share = done / run.settings["epochs"]
        for parameters in run.optimizer.param_groups:  # warm-up over the first twentieth, then half a cosine
            parameters["lr"] = LEARNING_RATE * min(1, 20 * share) * 0.5 * (1 + math.cos(math.pi * share))

        with clock("model"):
            features, input_lengths, labels, label_lengths = run.collator.batch(prompts, augment=True)
            logits = run.model(features, labels)  # [B, T, U+1, V]
        # Backward is cut at the logits only to time the loss alone; loss.backward() on uncut logits does the same.
        cut = logits.detach().requires_grad_()
        with clock("loss"):
            loss = rnnt.rnnt_loss_from_logits(cut, labels, input_lengths, label_lengths, BLANK)
            loss.backward()
        with clock("model"):
            run.optimizer.zero_grad()
            logits.backward(cut.grad)
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 5.0)
            run.optimizer.step()

        clock.logits += logits.numel()
        loss_sum += loss.item() * len(prompts)
        seen += len(prompts)
        if progress.terminal:
            progress.show(done, f"loss {loss_sum / seen:7.3f}  ")
    return loss_sum / seen


@torch.no_grad()
def held_out_loss(rnnt, run: Run, held_out: list[Prompt]) -> float:
    run.model.eval()
    loss_sum = 0.0
    for prompts in group(held_out, **BATCH, shuffle=False):
        features, input_lengths, labels, label_lengths = run.collator.batch(prompts)
        logits = run.model(features, labels)
        loss_sum += rnnt.rnnt_loss_from_logits(logits, labels, input_lengths, label_lengths, BLANK, "sum").item()
    return loss_sum / len(held_out)


def read_back(run: Run, groups: dict[str, list[Prompt]], file: Path, clock: Stopwatch) -> None:
    """Decode every prompt; print some and the character error rate of each group, write all to the file."""
    run.model.eval()
    progress = Progress("read", sum(map(len, groups.values())))
    read: dict[str, list[str]] = {name: [] for name in groups}
    for name, prompts in groups.items():
        for prompt in prompts:
            with clock("decoding"):
                read[name].append(run.collator.text(greedy(run.model, run.collator.features(prompt))))
            if progress.terminal:
                progress.show(sum(map(len, read.values())))

    with file.open("w", encoding="utf-8") as table:
        table.write("group\trecording\tsaid\tread\n")
        for name, prompts in groups.items():
            pairs = list(zip(prompts, read[name]))
            table.writelines(f"{name}\t{prompt.name}\t{prompt.text}\t{text}\n" for prompt, text in pairs)
            errors = sum(edit_distance(prompt.text, text) for prompt, text in pairs)
            rate = errors / sum(len(prompt.text) for prompt in prompts)
            print(f"\n{name}, {len(prompts)} prompts: character error rate {rate:.2%}")
            for prompt, text in pairs[:: math.ceil(len(pairs) / EXAMPLES)]:
                print(f"  said  {prompt.text}\n  read  {text}")


def edit_distance(a: str, b: str) -> int:
    """The fewest insertions, deletions and substitutions that make b of a."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def draw(rnnt, run: Run, prompts: list[Prompt], out: Path) -> None:
    from prompts_plots import plot_lattice, plot_loss  # here, because matplotlib is slow to import

    plot_loss(run.history, out / "loss.png")
    prompt = min(prompts, key=lambda prompt: (abs(len(prompt.text) - 20), prompt.name))  # fits on a page
    features, _, labels, _ = run.collator.batch([prompt])
    with torch.no_grad():
        logits = run.model.eval()(features, labels)
    plot_lattice(rnnt, logits[0], labels[0], features[0], prompt.text, out / "lattice.png")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    def positive(text: str) -> int:
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
        return number

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=HELP, formatter_class=raw)
    parser.add_argument("--full", action="store_true", help=f"all prompts, not only those of up to {SHORT} characters")
    parser.add_argument("--data", metavar="DIR", help="your own recordings and texts, see below")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs"), help="for all results (default: runs)")
    parser.add_argument("--seed", type=int, help="of the split, the weights and the order (default: 0)")
    parser.add_argument("--epochs", type=positive, help="default: {short}, or {full} with --full".format(**EPOCHS))
    parser.add_argument("--threads", type=positive, default=2, help="that torch uses (default: 2)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with OUT/checkpoint.pt, with its settings")
    again.add_argument("--decode", action="store_true", help="only read back with OUT/checkpoint.pt, no training")
    args = parser.parse_args(arguments)
    if (args.resume or args.decode) and (args.full or args.data or args.epochs or args.seed is not None):
        parser.error("--resume and --decode take --full, --data, --seed and --epochs from the checkpoint")
    return args


def main(args: argparse.Namespace) -> None:
    clock = Stopwatch()
    torch.set_num_threads(args.threads)
    checkpoint = args.out / "checkpoint.pt"
    run = None
    if args.resume or args.decode:
        if not checkpoint.is_file():
            raise SetupError(f"There is no {checkpoint}: the first whole epoch of a run writes it.")
        run = Run.load(checkpoint)
    settings = run.settings if run else {
        "full": args.full,
        "data": args.data and os.path.abspath(args.data),
        "seed": args.seed or 0,
        "epochs": args.epochs or EPOCHS["full" if args.full else "short"],
    }  # fmt: skip
    with clock("corpus"):
        trained, held_out = load_corpus(settings)
        run = run or Run.start(settings, Collator.of_corpus(trained, held_out))
    print(f"{len(trained)} prompts to train on, {len(held_out)} held out, {len(run.collator.alphabet)} characters")

    rnnt = load_kernel()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.decode:
        train(rnnt, run, trained, held_out, checkpoint, clock)
    read_back(run, {"trained": trained, "held out": held_out}, args.out / "read_back.tsv", clock)
    with clock("pictures"):
        draw(rnnt, run, trained, args.out)
    clock.report()
    print(f"\nin {args.out}: checkpoint.pt, loss.png, lattice.png, read_back.tsv")


if __name__ == "__main__":
    try:
        main(parse_arguments())
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nstopped")
