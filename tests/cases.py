"""The catalogue of corner cases: what every backend, front end, topology and dtype has to get right."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from batches import INF, Batch, batch, collate, edit, random_batch

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WIDE = (torch.float64, torch.float32, torch.bfloat16)  # wide exponents
BIG = 1e30

FRONT_ENDS = pytest.mark.parametrize("from_logits", [True, False], ids=["logits", "log_probs"])
NORMALIZERS = pytest.mark.parametrize("normalizer", ["softmax", "hat", "none"])
TOPOLOGIES = pytest.mark.parametrize("topology", ["standard", "modified"])


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Batch]  # float64
    standard: list[float] | None = None  # losses in nats, where known beforehand
    modified: list[float] | None = None
    rows: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)  # d/dlogits at (b, t, u), standard
    scores: bool = False  # x holds log-probs, or scores in their place, that are not meant for a softmax
    dtypes: tuple[torch.dtype, ...] = DTYPES
    rel: float = 1e-12  # to which the losses are known
    floor: float = 1e-12  # to which float64 log-probs determine the gradient
    large: bool = False  # a second of reference: not in every combination

    def known(self, topology: str) -> list[float] | None:
        return {"standard": self.standard, "modified": self.modified}[topology]

    def batch(self, from_logits: bool, dtype: torch.dtype = torch.float64) -> Batch:
        original = self.build()
        return original.front(from_logits or self.scores).to(dtype)

    @property
    def front_ends(self) -> tuple[bool, ...]:
        """Values of from_logits."""
        return (False,) if self.scores else (True,) if self.large else (True, False)

    @property
    def topologies(self) -> tuple[str, ...]:
        return ("standard",) if self.large else ("standard", "modified")


# T = 2, U = 2, V = 5
X1 = batch(
    [
        [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1], [0.1, 0.1, 0.2, 0.8, 0.1]],
        [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]],
    ],
    [1, 2],
)
X1_DURATIONS = torch.tensor(  # logits of durations 0, 1, 2
    [[[[0.3, 0.1, 0.2], [0.0, 0.5, 0.1], [0.2, 0.2, 0.2]], [[0.1, 0.4, 0.0], [0.6, 0.1, 0.3], [0.2, 0.7, 0.1]]]],
    dtype=torch.float64,
)
X3 = X1._replace(x=X1.x[:, [0, 1, 0]], input_lengths=torch.tensor([3]))
X1_LOSS, X3_LOSS = 4.495666773770733, 5.7367250428101615
X1_MODIFIED, X3_MODIFIED = 2.761683127353663, 3.167828306204979
X1_ROWS = {
    (0, 0, 0): [-0.131167, -0.399927, 0.177031, 0.177031, 0.177031],
    (0, 0, 1): [-0.185728, 0.122471, -0.181684, 0.122471, 0.122471],
    (0, 0, 2): [-0.320912, 0.062691, 0.069285, 0.126245, 0.062691],
    (0, 1, 0): [0.054561, -0.218243, 0.054561, 0.054561, 0.054561],
    (0, 1, 1): [0.120740, 0.120740, -0.482958, 0.120740, 0.120740],
    (0, 1, 2): [-0.692588, 0.168711, 0.186455, 0.168711, 0.168711],
}
# minus d/dlog_probs of X1, [T, U+1]
X1_BLANK = [[0.308198, 0.308198, 0.383604], [0.0, 0.0, 1.0]]
X1_LABEL = [[0.691802, 0.383604, 0.0], [0.308198, 0.616396, 0.0]]


def equal(T: int, U: int, V: int, standard: float) -> Case:
    """Equal logits, as at the start of training: the number of paths times V ** -(arcs of a path)."""
    modified = T * math.log(V) - math.log(math.comb(T, U)) if T >= U else INF
    logits = lambda: batch(torch.zeros(1, T, U + 1, V), torch.ones(1, U))  # noqa: E731
    return Case(f"equal_{T}_{U}_{V}", logits, [standard], [modified], large=(T + U) * U + T * U * V > 1e6)


def weights() -> Batch:
    """Probabilities w / sum w with w = 1 + (31 t + 17 u + 7 k) mod 9."""
    t, u, k = (torch.arange(n, dtype=torch.float64) for n in (4, 4, 4))
    w = 1 + (31 * t[:, None, None] + 17 * u[:, None] + 7 * k) % 9
    return batch(w.log(), [2, 1, 3])


def numpy_batch() -> Batch:
    np.random.seed(0)
    x = np.random.rand(4, 2, 3, 5).astype(np.float32)
    return batch(x, np.random.randint(1, 5, [4, 2]), [2, 1, 1, 1], [2, 1, 1, 1])


def probabilities() -> Batch:
    p = [
        [[0.6, 0.3, 0.1], [0.7, 0.1, 0.2], [0.5, 0.1, 0.4]],
        [[0.5, 0.4, 0.1], [0.5, 0.1, 0.4], [0.8, 0.1, 0.1]],
        [[0.4, 0.3, 0.3], [0.5, 0.1, 0.4], [0.7, 0.2, 0.1]],
        [[0.8, 0.1, 0.1], [0.3, 0.1, 0.6], [0.8, 0.1, 0.1]],
    ]
    return batch(torch.tensor(p, dtype=torch.float64).log(), [1, 2])


def one_path(off: float, on: float) -> Batch:
    """T = 3, U = 2: every logit is `off` but the arcs of blank, label, label, blank, blank, which are `on`."""
    arcs = [(0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 1, 2), (0, 1, 2, 0), (0, 2, 2, 0)]
    return edit(batch(torch.full((3, 3, 4), off), [1, 2]), on, *arcs)


def one_peak_per_cell(T: int, U: int, V: int, height: float) -> Batch:
    logits = random_batch(1, T, U, V, seed=1)
    peaks = torch.randint(0, V, (1, T, U + 1, 1), generator=torch.Generator().manual_seed(2))
    return logits._replace(x=logits.x.scatter_add(-1, peaks, torch.full_like(logits.x, height)))


def very_different_lengths() -> Batch:
    shapes = [(60, 3), (1, 20), (7, 0), (1, 0), (33, 17), (2, 1)]
    return collate(*(random_batch(1, T, U, 6, seed=T) for T, U in shapes))


ONE_FRAME = batch(X1.x[0, :1], [1, 2])
ONE_FRAME_LOSS, ONE_CELL_LOSS, X3_BLANKS = 4.274244594423859, 1.7314291957733714, 5.194287587320114
LABEL_1 = (0, slice(None), 0, 1)  # in X1, the first label in every frame
NO_LABEL_1 = edit(X1, -INF, LABEL_1)
ZEROS = batch(torch.zeros(4, 3, 5), [1, 2])

EQUAL = [
    equal(2, 2, 5, 5.339139361068291),
    equal(4, 2, 3, 4.289088639014612),
    equal(5, 1, 7, 10.066022981897778),
    equal(1, 5, 4, 8.317766166719343),
    equal(150, 40, 28, 538.2185283996704),
    equal(1500, 300, 50, 6234.493511397176),
    equal(1, 1500, 5, 2415.7663065635847),
]
CASES = [
    *EQUAL,
    # values
    Case("x1", lambda: X1, [X1_LOSS], [X1_MODIFIED], X1_ROWS),
    Case("x3", lambda: X3, [X3_LOSS], [X3_MODIFIED]),
    Case("one_frame", lambda: ONE_FRAME, [ONE_FRAME_LOSS], [INF]),
    Case(
        "one_cell",
        lambda: batch(X1.x[0, :1, :1], []),
        [ONE_CELL_LOSS],
        [ONE_CELL_LOSS],
        {(0, 0, 0): [-0.822969, 0.291875, 0.177031, 0.177031, 0.177031]},
    ),
    Case("padded_beside_full", lambda: collate(X1, X3), [X1_LOSS, X3_LOSS], [X1_MODIFIED, X3_MODIFIED], X1_ROWS),
    Case("all_shorter_than_padded", lambda: X1.poisoned((3, 2)), [X1_LOSS], [X1_MODIFIED], X1_ROWS),
    Case("repeated_labels", lambda: X1._replace(labels=torch.tensor([[1, 1]]))),
    Case("weights", weights, [8.973647397], rel=1e-10),
    Case("numpy", numpy_batch, [5.258650659, 3.184883834, 2.967465046, 3.735118763], rel=1e-9),
    Case("probabilities", probabilities, [-math.log(0.246)], [-math.log(0.363)]),
    # sizes
    Case("one_class", lambda: batch(torch.ones(3, 1, 1), []), [0.0], [0.0]),
    Case("two_classes", lambda: random_batch(3, 5, 4, 2, ragged=True)),
    Case("many_classes", lambda: random_batch(1, 2, 1, 100_000)),
    Case("many_labels", lambda: random_batch(1, 4, 1100, 3), large=True),
    Case("many_frames", lambda: random_batch(2, 1500, 1, 2, ragged=True), large=True),
    Case("many_utterances", lambda: random_batch(70, 3, 2, 4, ragged=True)),
    Case("larger_than_the_cache", lambda: random_batch(3, 110, 40, 131, ragged=True)),
    Case("larger_than_the_cache_in_short_rows", lambda: random_batch(2, 110, 300, 21, ragged=True)),
    Case("very_different_lengths", very_different_lengths),
    Case("frames_as_many_as_labels", lambda: random_batch(1, 4, 4, 5)),
    Case("frames_fewer_than_labels", lambda: collate(ONE_FRAME, X3), [ONE_FRAME_LOSS, X3_LOSS], [INF, X3_MODIFIED]),
    Case("empty_target", lambda: X3._replace(label_lengths=torch.tensor([0])), [X3_BLANKS], [X3_BLANKS]),
    Case("empty_beside_full", lambda: collate(X1, batch(X3.x[0, :, :1], [])), [X1_LOSS, X3_BLANKS]),
    Case("no_labels_at_all", lambda: batch(X3.x[:, :, :1], torch.zeros(1, 0)), [X3_BLANKS], [X3_BLANKS]),
    # ids
    Case("blank_last", lambda: Batch(X1.x.roll(-1, 3), X1.labels - 1, *X1[2:4], 4), [X1_LOSS], [X1_MODIFIED]),
    Case("blank_from_the_end", lambda: Batch(X1.x.roll(-1, 3), X1.labels - 1, *X1[2:4], -1), [X1_LOSS], [X1_MODIFIED]),
    Case("blank_in_the_middle", lambda: random_batch(2, 4, 3, 7, blank=3)),
    # scale
    Case("plus_1e4", lambda: X1._replace(x=X1.x + 1e4), [X1_LOSS], [X1_MODIFIED]),
    Case("minus_1e4", lambda: X1._replace(x=X1.x - 1e4), [X1_LOSS], [X1_MODIFIED]),
    Case("times_1e3", lambda: X1._replace(x=X1.x * 1e3), [499.306852819], rel=1e-11),
    Case("times_1e8", lambda: X1._replace(x=X1.x * 1e8), dtypes=WIDE, floor=1e-7),
    Case("equal_at_1e30", lambda: ZEROS._replace(x=ZEROS.x + BIG), [math.log(5.0**6 / 10)], dtypes=WIDE),
    Case("equal_at_minus_1e30", lambda: ZEROS._replace(x=ZEROS.x - BIG), [math.log(5.0**6 / 10)], dtypes=WIDE),
    Case("peaked", lambda: random_batch(2, 20, 6, 9, scale=60.0)),
    Case("one_peak_of_300_per_cell", lambda: one_peak_per_cell(20, 6, 9, 300.0)),
    Case("one_certain_path", lambda: one_path(0.0, BIG), [0.0], dtypes=WIDE),
    Case("log_probs_of_zero", lambda: ZEROS, [-math.log(10)], [-math.log(6)], scores=True),
    Case("log_probs_above_zero", lambda: ZEROS._replace(x=ZEROS.x + 3), [-18 - math.log(10)], scores=True),
    # masks: never forced, so that they change nothing; forced, so that they add up
    Case("mask_minus_1e30", lambda: one_path(-BIG, 0.0), [0.0], dtypes=WIDE),
    Case("mask_minus_65504", lambda: one_path(-65504.0, 0.0), [0.0]),
    Case("forced_minus_65504", lambda: edit(X1, -65504.0, LABEL_1), floor=1e-10),
    # minus infinity
    Case("label_forbidden_in_one_frame", lambda: edit(X1, -INF, (0, 0, 0, 1)), [5.32754455121607]),
    Case("label_forbidden_in_every_frame", lambda: NO_LABEL_1, [INF], [INF]),
    Case("impossible_between_others", lambda: collate(X1, NO_LABEL_1, X3), [X1_LOSS, INF, X3_LOSS]),
    Case("last_blank_forbidden", lambda: edit(X1, -INF, (0, 1, 2, 0)), [INF]),
    Case("first_blank_forbidden", lambda: edit(X1, -INF, (0, 0, 0, 0))),
    Case("dead_end", lambda: edit(X3, -INF, (0, 1, 1, 0), (0, 1, 1, 2))),
    Case("unused_classes_forbidden", lambda: edit(X1, -INF, (..., [3, 4]))),
    Case("all_but_one_path_forbidden", lambda: one_path(-INF, 0.0), scores=True, standard=[0.0]),
    Case("rows_forbidden", lambda: edit(X3.front(False), -INF, (0, 0, 1), (0, 1, 2)), scores=True),
    Case("every_row_forbidden", lambda: edit(X1, -INF, ...), [INF], [INF], scores=True),
]

BY_NAME = {case.name: case for case in CASES}
COMBINATIONS = [
    pytest.param(case, from_logits, topology, id=f"{case.name}-{'logits' if from_logits else 'log_probs'}-{topology}")
    for case in CASES
    for from_logits in case.front_ends
    for topology in case.topologies
]
NARROW_COMBINATIONS = [
    pytest.param(*combination.values, dtype, id=f"{combination.id}-{dtype}".replace("torch.", ""))
    for combination in COMBINATIONS
    for dtype in combination.values[0].dtypes
    if dtype != torch.float64 and not combination.values[0].large
]
