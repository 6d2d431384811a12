"""examples/train_prompts.py on a corpus of tones: it learns, stops, resumes, repeats itself, and says what it lacks."""

import math
import os
import re
import signal
import subprocess
import sys
import wave
from array import array
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="the demo draws with it")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import prompts_data as data  # noqa: E402
import prompts_model  # noqa: E402
import train_prompts  # noqa: E402
from prompts_plots import best_path  # noqa: E402

TEXTS = "ab ba aab abb bab baa abc cab bca acb cc b".split()
EPOCHS = 40  # every other one is printed


def write_wav(file: Path, text: str, rate: int = 8000) -> None:
    """80 ms of a tone per character."""
    sample = (
        20000 * math.sin(2 * math.pi * 300 * (ord(c) - 95) * i / rate) for c in text for i in range(rate * 8 // 100)
    )
    with wave.open(str(file), "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        out.writeframes(array("h", map(int, sample)).tobytes())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tones")
    for text in TEXTS:
        write_wav(folder / f"{text}.wav", text)
    (folder / "transcripts.tsv").write_text("".join(f"{text}.wav\t{text.upper()}\n" for text in TEXTS))
    return folder


def demo(*arguments, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-u", EXAMPLES / "train_prompts.py", "--threads", "1", *arguments]
    return subprocess.Popen(
        list(map(str, command)),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in a shell's background starts with Ctrl-C ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def here(capsys, *arguments) -> str:
    """What the demo prints, run in this process."""
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    try:
        train_prompts.main(train_prompts.parse_arguments(["--threads", "1", *map(str, arguments)]))
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random)
    return capsys.readouterr().out


def curve(printed: str) -> list[str]:
    """The lines of the epochs without the time left: epoch, loss, loss of the held-out prompts."""
    return re.findall(r"^epoch .*?(?=  \d+:\d\d left)", printed, re.M)


def rates(printed: str) -> list[float]:
    return [float(rate) for rate in re.findall(r"character error rate ([\d.]+)%", printed)]


def test_it_learns_and_repeats_itself_even_after_ctrl_c(corpus, tmp_path, capsys):
    pytest.importorskip("kernels", reason="the demo loads with it")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    start = ("--data", corpus, "--epochs", EPOCHS, "--seed", 1, "--out")
    first, second = demo(*start, whole), demo(*start, stopped)

    for line in second.stdout:
        if line.startswith("epoch"):
            second.send_signal(signal.SIGINT)
            break
    rest, message = second.communicate()
    assert second.returncode == 1 and "--resume" in message and "Traceback" not in message, message
    before = curve(line + rest)
    printed, errors = first.communicate()
    assert first.returncode == 0, errors

    losses = [float(re.search(r"loss +([\d.]+)", line)[1]) for line in curve(printed)]
    assert len(losses) == 20 and losses[-1] < 0.5 * losses[0], losses
    trained, held_out = rates(printed)
    assert trained < 50
    for picture in ("loss.png", "lattice.png"):
        assert (whole / picture).read_bytes().startswith(b"\x89PNG\r\n"), picture

    # These two in this process: importing torch takes longer than their work.
    resumed = here(capsys, "--resume", "--out", stopped)
    assert curve(resumed) and before + curve(resumed) == curve(printed)
    decoded = here(capsys, "--decode", "--out", whole)
    assert curve(decoded) == [] and rates(decoded) == rates(resumed) == [trained, held_out]


def test_it_says_so_where_there_is_no_apt(tmp_path):
    process = demo("--out", tmp_path / "out", PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    _, message = process.communicate()
    assert process.returncode == 1
    assert "no apt-get on this machine" in message and "--data DIR" in message and "Traceback" not in message
    assert not (tmp_path / "cache").exists()


def fake_tools(folder: Path, monkeypatch, apt_get: str) -> None:
    for name, script in (("apt-get", apt_get), ("dpkg", 'mkdir -p "$3/usr"')):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def test_a_failed_download_leaves_nothing(tmp_path, monkeypatch):
    fake_tools(tmp_path, monkeypatch, "echo E: no network >&2; exit 100")
    with pytest.raises(data.SetupError, match="E: no network(.|\n)*--data DIR"):
        data.fetch_debian_prompts()
    assert list((tmp_path / "cache/rnnt-loss").iterdir()) == []


def test_the_download_is_done_once(tmp_path, monkeypatch):
    fake_tools(tmp_path, monkeypatch, f"touch one.deb; echo $1 >> {tmp_path}/calls")
    for _ in range(2):
        assert (data.fetch_debian_prompts() / "usr").is_dir()
    assert (tmp_path / "calls").read_text() == "download\n"


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "must be a folder with a transcripts.tsv"),
        ("a.wav no tab\n", "line 1: must be a wav file beside it, a tab and a text, got 'a.wav no tab'"),
        ("a.wav\ta\n\nb.wav\tb\n", "line 3: .* got 'b.wav"),
        ("notes.txt\ta\n", "notes.txt: must be a PCM wav file"),
        ("a.wav\ta\nfast.wav\tb\n", r"the same sample rate, got \[8000, 16000\] Hz"),
        ("a.wav\ta\n", "at least two texts"),
    ],
)
def test_unusable_data_is_named(tmp_path, content, message):
    write_wav(tmp_path / "a.wav", "a")
    write_wav(tmp_path / "fast.wav", "a", rate=16000)
    (tmp_path / "notes.txt").write_text("not sound")
    if content is not None:
        (tmp_path / "transcripts.tsv").write_text(content)
    with pytest.raises(data.SetupError, match=message):
        data.split_by_text(data.load_prompts(data.own_transcripts(tmp_path), None), seed=0)


@pytest.mark.parametrize(
    "written, said",
    [
        ("Press 1 to  enter...", "press one to enter"),
        ("digits or * and #", "digits or star and pound"),
        ("A.M.", "a m"),
        ("dash [-]", "dash"),
        ("re-record o'clock", "re record o'clock"),
        ("(10 seconds of silence)", ""),
        ("<beep ascending>", ""),
        ("dial 500", ""),
    ],
)
def test_what_is_said(written, said):
    assert data.spoken(written) == said


def prompts_of(lengths: list[int]) -> list[data.Prompt]:
    return [data.Prompt(str(n), "ab" * (n // 20) + "a", torch.rand(n, data.BANDS)) for n in lengths]


def test_held_out_texts_are_never_trained():
    prompts = prompts_of([20, 40, 40, 60, 60, 80])
    for seed in range(10):
        trained, held_out = data.split_by_text(prompts, seed)
        assert trained and held_out and len(trained) + len(held_out) == len(prompts)
        assert not {p.text for p in trained} & {p.text for p in held_out}


def test_groups_are_bounded_and_complete():
    prompts = prompts_of([20, 400, 40, 60, 300, 80, 100, 25, 30])
    groups = data.group(prompts, size=3, nodes=1000, shuffle=True)
    assert sorted(p.name for batch in groups for p in batch) == sorted(p.name for p in prompts)
    collator = data.Collator("ab", 0.0, 1.0)
    for batch in groups:
        features, _, labels, _ = collator.batch(batch, augment=True)
        nodes = len(batch) * features.shape[1] * (labels.shape[1] + 1)
        assert len(batch) == 1 or (len(batch) <= 3 and nodes <= 1000)


def test_the_model_streams_and_ignores_padding():
    model = prompts_model.Transducer(classes=3).eval()
    collator = data.Collator("ab", 0.0, 1.0)
    features, input_lengths, labels, label_lengths = collator.batch(prompts_of([80, 160]))
    with torch.no_grad():
        together = model(features, labels)[0, : input_lengths[0], : label_lengths[0] + 1]
        alone = model(features[:1, : input_lengths[0]], labels[:1, : label_lengths[0]])[0]
        later = features.clone()
        later[:, 10:] += 1
        heard = (model.encode(later) != model.encode(features)).any(2).any(0)
    torch.testing.assert_close(together, alone)
    assert heard.nonzero()[0] == 10 - prompts_model.LOOK_AHEAD


class ListenerOf213:
    """Says label u of 2, 1, 3 at frame 2u, blank otherwise."""

    def encode(self, features):
        return features

    def predict(self, labels, state=-1):
        return torch.tensor([[[state + 1]]]), state + 1

    def join(self, frame, said):
        says = [2, 1, 3][int(said)] if said < 3 and frame == 2 * said else 0
        return torch.nn.functional.one_hot(torch.tensor(says), 4)


def test_greedy_search():
    assert prompts_model.greedy(ListenerOf213(), torch.arange(8)[:, None], labels_per_frame=2) == [2, 1, 3]


def test_greedy_search_ends_without_blanks():
    model = prompts_model.Transducer(classes=3).eval()
    torch.nn.init.constant_(model.joint_out.bias[1:], 1e4)
    assert len(prompts_model.greedy(model, torch.zeros(4, data.STACK * data.BANDS), labels_per_frame=2)) == 8


def test_best_path():
    """The likeliest path of two frames and two labels, both of them on frame 0; its score from another computation."""
    first = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1], [0.1, 0.1, 0.2, 0.8, 0.1]]
    last = [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]]
    for frames, expected in (([first, last], -5.4538116572), ([first, last, first], -7.26519786)):
        log_probs, labels = torch.tensor(frames, dtype=torch.double).log_softmax(-1), torch.tensor([1, 2])
        path = best_path(log_probs, labels)
        assert path == [(0, 0), (0, 1)] + [(t, 2) for t in range(len(frames))]
        label_scores = log_probs[0, 0, 1] + log_probs[0, 1, 2]
        assert float(label_scores + log_probs[:, 2, 0].sum()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("a, b, edits", [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)])
def test_edit_distance(a, b, edits):
    assert train_prompts.edit_distance(a, b) == edits
