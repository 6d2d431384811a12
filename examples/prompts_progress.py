"""What train_prompts.py shows of its progress: a bar with the time left, and where the time went."""

import math
import sys
import time
from collections import Counter
from contextlib import contextmanager


class Progress:
    """A bar on a terminal; elsewhere about twenty plain lines."""

    def __init__(self, name: str, total: int, done: int = 0):
        self.name, self.total, self.first, self.start = name, total, done, time.monotonic()
        self.terminal = sys.stdout.isatty()

    def show(self, done: float, note: str = "") -> None:
        """done: how much of the total; a fraction moves only the bar. note: shown between that and the time left"""
        left = round((time.monotonic() - self.start) / (done - self.first) * (self.total - done))
        line = f"{self.name} {int(done):{len(str(self.total))}}/{self.total}  {note}{left // 60}:{left % 60:02} left"
        if self.terminal:
            bar = "█" * int(24 * done / self.total)
            print(f"\r\033[K{bar:░<24} {line}", end="\n" if done == self.total else "", flush=True)
        elif done == self.total or done % math.ceil(self.total / 20) == 0:
            print(line, flush=True)


class Stopwatch:
    """Seconds spent on each part of the work."""

    def __init__(self):
        self.start = time.perf_counter()
        self.seconds: Counter[str] = Counter()
        self.logits = 0  # that went through the loss

    @contextmanager
    def __call__(self, part: str):
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def report(self) -> None:
        total = time.perf_counter() - self.start
        self.seconds["the rest"] = total - sum(self.seconds.values())
        print(f"\nseconds, {total:.1f} in all")
        for part, seconds in self.seconds.items():
            note = f"  ({1e9 * seconds / self.logits:.1f} ns per logit, forward and backward)" if part == "loss" else ""
            print(f"  {part:15} {seconds:6.1f}{note}")
