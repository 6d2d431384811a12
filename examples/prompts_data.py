"""Recorded prompts for train_prompts.py: where they come from, what they say, their features, batches of them."""

import gzip
import os
import random
import re
import shutil
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

PACKAGES = ("asterisk-core-sounds-en-wav", "asterisk-core-sounds-en")
RECORDINGS = "usr/share/asterisk/sounds/en_US_f_Allison"
TRANSCRIPTS = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
NO_PROMPTS = f"""The recorded prompts are two Debian packages ({", ".join(PACKAGES)}),
fetched with apt-get and unpacked with dpkg. {{reason}}
Run this where apt-get works (Debian, Ubuntu), or train on recordings of your own: --data DIR, see --help."""

BLANK = 0
BANDS = 40
STACK = 4  # feature frames of 10 ms that make one frame of the model
FRAME_SECONDS = 0.010 * STACK
SHIFT = 8  # feature frames: augmentation delays a recording by less than this
DIGITS = "zero one two three four five six seven eight nine".split()


class SetupError(Exception):
    """Something the program needs is not there or not usable; the message is for whoever started it."""


@dataclass
class Prompt:
    name: str
    text: str
    power: Tensor  # [frames of 10 ms, BANDS]


def fetch_debian_prompts() -> Path:
    """The folder with Debian's two packages unpacked; they are downloaded the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rnnt-loss"
    corpus = cache / "asterisk-prompts"
    if corpus.is_dir():
        return corpus
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            raise SetupError(NO_PROMPTS.format(reason=f"There is no {tool} on this machine."))
    print(f"fetching {' and '.join(PACKAGES)} (18 MB) into {cache}", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    # The corpus gets its name last, so that a download cut short is never taken for a whole one.
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        download = ["apt-get", "download", *PACKAGES]
        if subprocess.run(download, cwd=scratch, capture_output=True).returncode:
            # No package lists yet, or outdated ones. Only root may renew them; the second try tells.
            subprocess.run(["apt-get", "update"], capture_output=True)
            again = subprocess.run(download, cwd=scratch, capture_output=True, text=True)
            if again.returncode:
                raise SetupError(NO_PROMPTS.format(reason=f"apt-get could not fetch them:\n{again.stderr.strip()}"))
        unpacked = Path(scratch) / "unpacked"
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, unpacked], check=True)
        unpacked.rename(corpus)
    return corpus


def spoken(written: str) -> str:
    """What is said, in lower-case words; empty where nothing is (a tone) or where it cannot be told (long numbers)."""
    text = re.sub(r"\[.*?\]|\(.*?\)|<.*?>", " ", written.lower())  # [ascending tones], (1 second of silence), <beep>
    if re.search(r"\d\d", text):  # 1234 may be "one two three four" or "twelve thirty four"
        return ""
    text = re.sub(r"\d", lambda digit: f" {DIGITS[int(digit[0])]} ", text)
    text = text.replace("*", " star ").replace("#", " pound ")
    return re.sub(r"[^a-z']+", " ", text).strip()


def debian_transcripts(corpus: Path) -> list[tuple[Path, str]]:
    """(wav file, text) of every prompt that is speech."""
    with gzip.open(corpus / TRANSCRIPTS, "rt", encoding="utf-8") as lines:
        entries = [line.split(":", 1) for line in lines if ":" in line and not line.startswith(";")]
    pairs = [(corpus / RECORDINGS / f"{name}.wav", spoken(text)) for name, text in entries]
    return [(path, text) for path, text in pairs if text and path.exists()]  # one transcript has no recording


def own_transcripts(folder: Path) -> list[tuple[Path, str]]:
    """(wav file, text) of every line "file.wav<TAB>text" of transcripts.tsv in a folder of the user's."""
    table = folder / "transcripts.tsv"
    if not table.is_file():
        raise SetupError(f"--data must be a folder with a transcripts.tsv in it, see --help; got {folder}")
    pairs = []
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        name, _, text = line.partition("\t")
        if not line.strip():
            continue
        if not (text.strip() and (folder / name).is_file()):
            raise SetupError(f"{table}, line {number}: must be a wav file beside it, a tab and a text, got {line!r}")
        pairs.append((folder / name, " ".join(text.lower().split())))
    return pairs


def read_wav(path: Path) -> tuple[Tensor, int]:
    """Samples in [-1, 1) and their rate, of a wav file of one channel and 16 bits."""
    try:
        with wave.open(str(path)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            content = bytearray(file.readframes(file.getnframes()))
    except (wave.Error, EOFError) as error:
        raise SetupError(f"{path}: must be a PCM wav file, got {error}") from None
    if (channels, width) != (1, 2) or not content:
        got = f"{channels} of {8 * width} and {len(content)} bytes of sound"
        raise SetupError(f"{path}: must have one channel of 16 bits, got {got}")
    return torch.frombuffer(content, dtype=torch.int16).float() / 32768, rate


def mel_filters(rate: int, n_fft: int) -> Tensor:
    """Triangles evenly spaced on the mel scale from 60 Hz to just under half the rate, [n_fft // 2 + 1, BANDS]."""
    low, high = (2595 * torch.log10(torch.tensor(1 + hertz / 700)).item() for hertz in (60, 0.4875 * rate))
    edges = 700 * (10 ** (torch.linspace(low, high, BANDS + 2) / 2595) - 1)  # [BANDS + 2]
    hertz = torch.linspace(0, rate / 2, n_fft // 2 + 1)[:, None]  # [n_fft // 2 + 1, 1]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


def mel_power(samples: Tensor, rate: int) -> Tensor:
    """Power per mel band in windows of 25 ms, one every 10 ms, [frames, BANDS]."""
    window, hop = rate * 25 // 1000, rate // 100
    n_fft = 2 ** (window - 1).bit_length()
    # A window looks back only: 25 ms of silence go in front. The 100 ms behind give the last label time to come out.
    samples = F.pad(samples, (window, rate // 10))
    spectrum = torch.stft(samples, n_fft, hop, window, torch.hann_window(window), center=False, return_complex=True)
    return spectrum.abs().square().T @ mel_filters(rate, n_fft)


def load_prompts(transcripts: list[tuple[Path, str]], longest: int | None) -> list[Prompt]:
    """The prompts whose texts have at most `longest` characters, with their mel power."""
    prompts, rates = [], set()
    for path, text in transcripts:
        if longest is None or len(text) <= longest:
            samples, rate = read_wav(path)
            prompts.append(Prompt(path.stem, text, mel_power(samples, rate)))
            rates.add(rate)
    if len(rates) > 1:
        raise SetupError(f"all recordings must have the same sample rate, got {sorted(rates)} Hz")
    return prompts


def split_by_text(prompts: list[Prompt], seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """(trained, held out), a tenth of the texts held out. Some were recorded twice: a text is on one side only."""
    texts = sorted({prompt.text for prompt in prompts})
    if len(texts) < 2:
        raise SetupError(f"there must be at least two texts (without --full, short ones), got {len(texts)}: {texts}")
    held_out = set(random.Random(seed).sample(texts, max(1, len(texts) // 10)))
    return [p for p in prompts if p.text not in held_out], [p for p in prompts if p.text in held_out]


class Collator:
    """Turns prompts into padded batches. Knows what the corpus fixes: the alphabet, the mean, the deviation."""

    def __init__(self, alphabet: str, mean: float, deviation: float):
        self.alphabet, self.mean, self.deviation = alphabet, mean, deviation

    @classmethod
    def of_corpus(cls, trained: list[Prompt], held_out: list[Prompt]) -> "Collator":
        alphabet = "".join(sorted({character for prompt in trained + held_out for character in prompt.text}))
        # One mean and deviation for all, not those of each prompt: a stream's are known only when it is over.
        log_mel = torch.cat([prompt.power for prompt in trained]).add(1e-5).log()
        return cls(alphabet, log_mel.mean().item(), log_mel.std().item())

    def text(self, labels: list[int]) -> str:
        return "".join(self.alphabet[label - 1] for label in labels)  # label 0 is blank

    def features(self, prompt: Prompt, augment: bool = False) -> Tensor:
        """Normalised log-mel, STACK feature frames in a row, [T, STACK * BANDS]."""
        power = prompt.power
        if augment:  # a delay, and a gain of up to 6 dB either way
            power = F.pad(power, (0, 0, below(SHIFT), 0)) * 10 ** (1.2 * torch.rand(()).item() - 0.6)
        log_mel = ((power + 1e-5).log() - self.mean) / self.deviation
        if augment:  # some neighbouring bands and a short moment are hidden (SpecAugment)
            band, moment = below(BANDS), below(len(log_mel))
            log_mel[:, band : band + below(9)] = 0
            log_mel[moment : moment + below(11)] = 0
        frames = len(log_mel) // STACK
        return log_mel[: frames * STACK].reshape(frames, STACK * BANDS)

    def batch(self, prompts: list[Prompt], augment: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """features [B, T, STACK * BANDS], input_lengths [B], labels [B, U], label_lengths [B]"""
        features = [self.features(prompt, augment) for prompt in prompts]
        labels = [torch.tensor([1 + self.alphabet.index(c) for c in prompt.text]) for prompt in prompts]
        input_lengths, label_lengths = (torch.tensor([len(x) for x in rows]) for rows in (features, labels))
        return pad_sequence(features, True), input_lengths, pad_sequence(labels, True), label_lengths


def below(limit: int) -> int:
    return int(torch.randint(limit, ()))


def group(prompts: list[Prompt], size: int, nodes: int, shuffle: bool) -> list[list[Prompt]]:
    """Batches of at most `size` prompts of like length and, where more than one is in it, `nodes` padded nodes."""
    # When shuffling, sorting by a length that is a little off makes other neighbours each epoch.
    off = torch.rand(len(prompts)).mul(0.2 * shuffle).add(1).tolist()
    order = sorted(range(len(prompts)), key=lambda i: off[i] * len(prompts[i].power))
    batches: list[list[Prompt]] = []
    for prompt in (prompts[i] for i in order):
        wider = [*batches[-1], prompt] if batches else []
        frames = max(((len(p.power) + SHIFT) // STACK for p in wider), default=0)
        columns = max((len(p.text) + 1 for p in wider), default=0)
        if wider and len(wider) <= size and len(wider) * frames * columns <= nodes:
            batches[-1] = wider
        else:
            batches.append([prompt])
    return [batches[i] for i in torch.randperm(len(batches))] if shuffle else batches
