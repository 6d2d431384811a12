"""The small batches that mutants are tried on, and what is seen of a built package there."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from arc_oracles import ARC_SETS, Oracle, recursion, row_scores, tdt_arcs, without_a_last_label  # noqa: E402
from batches import INF, NAN, Batch, edit, inside, random_batch  # noqa: E402
from compare import assert_within_budget  # noqa: E402
from conftest import Backend, surrounded  # noqa: E402
from load_variant import load  # noqa: E402
from reference import Arc, Twin, hat, lattice  # noqa: E402

RANDOM, REVERSE = 2, 1
ORDERS = [(RANDOM, 1, 0, 32), (RANDOM, 2, 10, 6), (REVERSE, 3, 0, 8)]  # order, seed, preemption, resident blocks
FLOAT, DOUBLE, HALF, BFLOAT = torch.float32, torch.float64, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """Random utterances of mixed lengths, and what the twin says of them."""

    name: str
    shape: tuple[int, int, int, int]  # B, T, U, V
    dtype: torch.dtype = FLOAT
    from_logits: bool = True
    change: Callable[[Batch], Batch] = lambda batch: batch
    layout: Callable[[torch.Tensor], torch.Tensor] = surrounded
    keywords: dict = field(default_factory=dict)
    padding: tuple[int, int] = (1, 1)  # frames and labels

    @cached_property
    def batch(self) -> Batch:
        original = random_batch(*self.shape, seed=len(self.name), scale=2.0, ragged=True, blank=self.shape[3] // 2)
        return self.change(original.front(self.from_logits)).to(self.dtype)

    @cached_property
    def upstream(self) -> torch.Tensor:
        return torch.linspace(1, -0.5, self.shape[0], dtype=DOUBLE if self.dtype == DOUBLE else FLOAT)

    @cached_property
    def truth(self) -> tuple[Twin, Twin]:
        """In float64, and as it is computed."""
        options = {k: v for k, v in self.keywords.items() if k in ("topology", "normalizer", "fastemit_lambda")}
        return tuple(
            Twin(self.batch, self.from_logits, dtype=dtype, **options) for dtype in (DOUBLE, self.upstream.dtype)
        )

    def gradient(self, twin: Twin) -> torch.Tensor:
        bound, upstream = self.keywords.get("clamp", INF), self.upstream[:, None, None, None]
        return twin.grad.clamp(-bound, bound) * upstream.to(twin.grad.dtype)

    def try_on(self, backend: Backend) -> None:
        padded, (T, W) = self.batch.poisoned(self.padding), self.batch.x.shape[1:3]
        x = self.layout(padded.x).detach().requires_grad_()
        logits = x * 1 if "inplace_grad" in self.keywords else x
        loss = backend.loss(padded._replace(x=logits), self.from_logits, reduction="none", **self.keywords)
        (grad,) = torch.autograd.grad(loss, x, self.upstream)
        self.compare(loss.detach(), grad[:, :T, :W])
        assert (grad[~padded.cells] == 0).all(), "gradient of padding"

    def compare(self, loss: torch.Tensor, grad: torch.Tensor) -> None:
        truth, twin = self.truth
        assert_within_budget("loss", loss, truth.loss, twin.loss)
        assert_within_budget("gradient", grad, self.gradient(truth), self.gradient(twin).to(self.dtype))


class AlphaBeta(Case):
    """The native ops."""

    def try_on(self, backend: Backend) -> None:
        padded, (T, W), truth = self.batch.poisoned(self.padding), self.batch.x.shape[1:3], self.truth[0]
        ops, arguments = backend.rnnt.ops, (surrounded(padded.x), *padded[1:4], padded.blank)
        loss, alpha, beta = ops.rnnt_forward(*arguments)
        grad = ops.rnnt_backward(self.upstream, *arguments[:4], alpha, beta, padded.blank)
        for name, got in {"alpha": alpha, "beta": beta}.items():
            assert_within_budget(name, got[:, :T, :W], getattr(truth.lattice, name))
        self.compare(loss, grad[:, :T, :W])


class Packed(Case):
    """The same with packed rows."""

    def try_on(self, backend: Backend) -> None:
        x, labels, *lengths, blank = self.batch
        rows = self.layout(backend.rnnt.pack_rows(x, *lengths)).detach().requires_grad_()
        loss = backend.rnnt.rnnt_loss_packed(
            rows, labels, *lengths, blank, "none", from_logits=self.from_logits, max_input_length=x.shape[1] + 1
        )
        (grad,) = torch.autograd.grad(loss, rows, self.upstream)
        self.compare(loss.detach(), backend.rnnt.unpack_rows(grad, *lengths, x.shape[1], x.shape[2] - 1))


class BadPackedLengths(Case):
    """A frame too many, a frame too few, none where the other's rows are all there are: nobody has a loss."""

    def try_on(self, backend: Backend) -> None:
        x, labels, _, U_b, blank = full(self.batch)
        T = x.shape[1]
        for in_rows, in_lengths, most in (
            ([T, T], [T - 1, T + 1], T),
            ([T, T], [T - 1, T], T + 1),
            ([T, 0], [T, 0], T),
        ):
            rows = surrounded(backend.rnnt.pack_rows(x, torch.tensor(in_rows), U_b)).requires_grad_()
            lengths = torch.tensor(in_lengths)
            options = {"max_input_length": most, **self.keywords}
            loss = backend.rnnt.rnnt_loss_packed(rows, labels, lengths, U_b, blank, "none", **options)
            (grad,) = torch.autograd.grad(loss.sum(), rows)
            assert loss.isnan().all() and grad.isnan().all(), f"loss: {loss.tolist()}"


class BadIds(Case):
    """The first utterances have a bad length or label each, and lose their losses; the last one is as it was."""

    def try_on(self, backend: Backend) -> None:
        B, T, U, V = self.shape
        x, labels, T_b, U_b, blank = self.batch
        labels, T_b, U_b = labels.clone(), torch.full((B,), T), torch.full((B,), U)
        T_b[0], U_b[1], labels[2, 0], labels[3, 1], labels[4, 0] = T + 1, U + 1, V, blank, -3
        ids = [labels, T_b, U_b]
        x = surrounded(x).requires_grad_()
        loss = backend.loss(Batch(x, *ids, blank), self.from_logits, reduction="none", **self.keywords)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        assert loss.isnan().tolist() == [True] * (B - 1) + [False], f"loss: {loss.tolist()}"
        assert grad[:-1].isnan().all(), "gradient of a bad utterance"
        last = Batch(x.detach(), *ids, blank).take([B - 1])
        truth = Twin(last, self.from_logits, **self.keywords)
        assert_within_budget("gradient", grad[-1:], truth.grad, floor=1e-5)


class Durations(Case):
    """Rows of classes with three durations behind them; a bad length costs its own utterance its loss."""

    def try_on(self, backend: Backend) -> None:
        durations, batch = [2, 0, 1], self.batch
        V = self.shape[3] - len(durations)
        batch = batch._replace(labels=batch.labels.clamp(max=batch.blank - 1))  # within what is left of classes
        padded, (T, W) = batch.poisoned(self.padding), batch.x.shape[1:3]
        x, ids = self.layout(padded.x).detach().requires_grad_(), list(padded[1:4])
        tdt = partial(backend.rnnt.tdt_loss_from_joint_logits, durations=durations, blank=batch.blank, reduction="none")
        loss = tdt(x, *ids)
        (grad,) = torch.autograd.grad(loss, x, self.upstream)
        logits = batch.x.double().requires_grad_()
        arcs = tdt_arcs(batch, durations, *logits.split([V, len(durations)], -1))
        wanted, surrogate = recursion(arcs, batch, ends_by_blank=True)
        wanted_grad = torch.autograd.grad(surrogate, logits)[0] * self.upstream[:, None, None, None]
        assert_within_budget("loss", loss.detach(), wanted)
        assert_within_budget("gradient", grad[:, :T, :W], wanted_grad, floor=1e-5)
        assert (grad[~padded.cells] == 0).all(), "gradient of padding"
        ids[1] = ids[1].clone()
        ids[1][0] = padded.x.shape[1] + 1
        loss = tdt(x, *ids)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        assert loss.isnan().tolist() == [True] + [False] * (len(loss) - 1), f"loss: {loss.tolist()}"
        assert grad[0].isnan().all(), "gradient of a bad utterance"


class HatScores(Case):
    """Of cells, and a row's gradient from all that comes back to them: also to labels that are none."""

    def try_on(self, backend: Backend) -> None:
        padded, (T, W), (_, _, T_b, U_b, blank) = self.batch.poisoned(self.padding), self.batch.x.shape[1:3], self.batch
        x, logits = self.layout(padded.x).detach().requires_grad_(), self.batch.x.double().requires_grad_()
        scores, *_ = backend.rnnt.ops.score(x, *padded[1:4], blank, "hat", False)
        upstream = torch.linspace(-1, 0.5, scores.numel(), dtype=scores.dtype).view(scores.shape)
        (grad,) = torch.autograd.grad(scores, x, upstream)
        exists = torch.stack([self.batch.cells, inside(T, W, T_b, U_b - 1)])
        wanted = torch.stack(row_scores(self.batch, hat(logits, blank))).masked_fill(~exists, 0)
        (wanted_grad,) = torch.autograd.grad(wanted, logits, upstream[:, :, :T, :W].double())
        assert_within_budget("scores", scores[:, :, :T, :W].detach(), wanted.detach())
        assert_within_budget("gradient", grad[:, :T, :W], wanted_grad)
        assert (scores[:, ~padded.cells] == 0).all() and (grad[~padded.cells] == 0).all(), "padding"


class ArcPosteriors(Case):
    """Of arcs with durations, a class each, and how they change; a bad length costs its own utterance both."""

    def try_on(self, backend: Backend) -> None:
        padded, (T, W), T_b, U_b = self.batch.poisoned(self.padding), self.batch.x.shape[1:3], *self.batch[2:4]
        dt, du, ends_by_blank = ARC_SETS["tdt_without_0"]
        scores = padded.x.movedim(-1, 0).contiguous().requires_grad_()
        tangent, small = torch.linspace(-1, 2, scores.numel(), dtype=DOUBLE).sin().view(scores.shape), 1e-5

        def found(T_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            _, posteriors = backend.rnnt.ops.lattice(scores, T_b, U_b, dt, du, ends_by_blank, True, False)
            return posteriors.detach(), torch.autograd.grad(posteriors, scores, tangent)[0]

        def wanted(further: float) -> torch.Tensor:
            moved = (scores.detach() + further * tangent)[:, :, :T, :W]
            arcs = without_a_last_label([Arc(*arc) for arc in zip(dt, du, moved, strict=True)], T_b)
            return torch.stack(lattice(arcs, T_b, U_b).posteriors)

        posteriors, change = found(T_b)
        assert_within_budget("posteriors", posteriors[:, :, :T, :W], wanted(0))
        wanted_change = (wanted(small) - wanted(-small)) / (2 * small)
        assert_within_budget("change", change[:, :, :T, :W], wanted_change, floor=1e-8)
        assert (posteriors[:, ~padded.cells] == 0).all() and (change[:, ~padded.cells] == 0).all(), "padding"
        T_b = T_b.clone()
        T_b[0] = scores.shape[2] + 1
        for of_bad in found(T_b):
            assert of_bad[:, 0].isnan().all() and of_bad[:, 1:].isfinite().all(), "posteriors of a bad length"


class BestPath(Case):
    """Of arc scores; a bad length costs its own utterance its score."""

    def try_on(self, backend: Backend) -> None:
        scores, T_b, U_b = torch.stack(row_scores(self.batch, self.batch.x)), *self.batch[2:4]
        wanted, arcs = Oracle(scores.movedim(0, -1), ARC_SETS["standard"], T_b, U_b), backend.rnnt.lattice.ARCS
        frames, _, score = backend.rnnt.arcs.align_of_arcs(scores, T_b, U_b, arcs["standard"])
        assert torch.equal(frames, wanted.frames), "frames"
        assert_within_budget("score", score, wanted.score)
        T_b = T_b.clone()
        T_b[0] = scores.shape[2] + 1
        *_, score = backend.rnnt.arcs.align_of_arcs(scores, T_b, U_b, arcs["standard"])
        assert score.isnan().tolist() == [True] + [False] * (len(score) - 1), f"score: {score.tolist()}"


class FarApart(Case):
    """Offsets of more than 31 bits."""

    def try_on(self, backend: Backend) -> None:
        # numpy's are not filled
        room = torch.from_numpy(np.empty(2**31 + 2**12, dtype=np.int16)).view(self.dtype)
        x = room.as_strided(self.batch.x.shape, (2**31, 64, 16, 1)).copy_(self.batch.x).requires_grad_()
        loss = backend.loss(self.batch._replace(x=x), self.from_logits, reduction="none")
        self.compare(loss.detach(), torch.autograd.grad(loss, x, self.upstream)[0])


def off_by_an_element(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_full((1,), NAN), x.flatten()])[1:].view(x.shape)


def slice_of_classes(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (3, 2), value=NAN)[..., 3:-2]


def frames_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def two_classes_left(batch: Batch) -> Batch:
    """All but the arcs of each row are -inf."""
    x = torch.full_like(batch.x, -INF)
    ids = torch.nn.functional.pad(batch.labels, (0, 1), value=batch.blank)[:, None, :, None]
    ids = torch.cat([ids, torch.full_like(ids, batch.blank)], 3).expand(-1, x.shape[1], -1, -1)
    return batch._replace(x=x.scatter(3, ids, batch.x.gather(3, ids)))


def no_path_in_the_first(batch: Batch) -> Batch:
    return edit(batch, -INF, (0, slice(None), 0, batch.labels[0, 0]))


def full(batch: Batch) -> Batch:
    B, T, W, _ = batch.x.shape
    return batch._replace(input_lengths=torch.full((B,), T), label_lengths=torch.full((B,), W - 1))


def nothing_but_blank_at_the_end(batch: Batch) -> Batch:
    """All classes but blank are -inf where no label is left."""
    batch = full(batch)
    return edit(batch, -INF, (..., -1, slice(0, batch.blank)))


def nan_on_no_path(batch: Batch) -> Batch:
    """On an arc after which there are too few frames for the labels."""
    return edit(batch, NAN, (0, -1, 0, batch.blank))


CASES = [
    Case("short rows", (3, 5, 3, 5)),
    Case("one class", (2, 3, 0, 1)),
    Case("one frame", (3, 1, 4, 3), BFLOAT),
    Case("no label", (2, 17, 0, 9), DOUBLE),
    Case("rows of half floats", (3, 4, 3, 33), BFLOAT, layout=off_by_an_element),
    Case("odd rows", (2, 4, 3, 129), layout=slice_of_classes),
    Case("rows of a warp", (2, 2, 2, 1027), layout=off_by_an_element),
    Case("rows of a block", (2, 2, 1, 5000), layout=off_by_an_element),
    Case("rows of a block, in half floats", (2, 2, 1, 5003), BFLOAT),
    Case("many utterances", (7, 16, 5, 37), HALF, layout=frames_first),
    Case("many frames", (3, 50, 40, 6)),
    Case("many frames in double", (2, 37, 33, 20), DOUBLE),
    Case("many frames, a label each", (2, 50, 35, 6), keywords={"topology": "modified"}),
    Case("a strip", (2, 9, 31, 3), from_logits=False),
    Case("two strips", (5, 7, 32, 3), DOUBLE, from_logits=False),
    Case("many hand-overs", (1, 110, 70, 3), from_logits=False),
    Case("two panels", (2, 6, 300, 3), from_logits=False),
    Case("two panels in double", (2, 3, 270, 2), DOUBLE, from_logits=False),
    Case("log-probabilities", (3, 5, 3, 40), BFLOAT, from_logits=False, layout=off_by_an_element),
    Case("in place", (3, 5, 4, 15), BFLOAT, keywords={"inplace_grad": True}),
    Case("in place, long rows", (2, 3, 2, 301), keywords={"inplace_grad": True}),
    Case("clamped", (3, 5, 3, 9), keywords={"clamp": 0.1}),
    Case("FastEmit", (3, 5, 3, 9), keywords={"fastemit_lambda": 0.5}),
    Case("HAT", (3, 5, 3, 9), keywords={"normalizer": "hat"}),
    Case("HAT, long rows", (2, 3, 2, 301), keywords={"normalizer": "hat"}),
    Case(
        "HAT, a choice of one",
        (2, 3, 2, 2),
        DOUBLE,
        change=nothing_but_blank_at_the_end,
        keywords={"normalizer": "hat"},
    ),
    Case("masked", (2, 4, 3, 150), change=two_classes_left),
    Case("no path", (2, 4, 3, 9), change=no_path_in_the_first),
    Case("not a number", (2, 45, 40, 9), change=nan_on_no_path, keywords={"topology": "modified"}),
    BadIds("bad ids", (6, 4, 3, 5)),
    BadIds("bad ids of log-probabilities", (6, 4, 3, 5), from_logits=False),
    AlphaBeta("alpha and beta", (3, 9, 40, 5), DOUBLE, from_logits=False),
    AlphaBeta("alpha and beta in two panels", (2, 3, 270, 2), DOUBLE, from_logits=False, change=full, padding=(0, 0)),
    AlphaBeta("alpha and beta in three panels", (1, 2, 520, 2), DOUBLE, from_logits=False),
    AlphaBeta("alpha and beta without a path", (2, 4, 3, 9), DOUBLE, from_logits=False, change=no_path_in_the_first),
    Packed("packed", (40, 4, 3, 9), layout=off_by_an_element),
    Packed("packed log-probabilities", (3, 5, 3, 40), BFLOAT, from_logits=False),
    BadPackedLengths("bad lengths of packed rows", (2, 4, 3, 9)),
    Case("arc scores", (3, 5, 3, 9), keywords={"topology": "constrained"}),
    Case("not a number in arc scores", (2, 45, 40, 9), change=nan_on_no_path, keywords={"topology": "constrained"}),
    BadIds("bad ids of arc scores", (6, 4, 3, 5), keywords={"topology": "constrained"}),
    BadPackedLengths("bad lengths of packed arc scores", (2, 4, 3, 9), keywords={"topology": "constrained"}),
    Case("arc scores of log-probabilities", (3, 5, 3, 9), from_logits=False, keywords={"topology": "constrained"}),
    HatScores("scores of HAT", (3, 5, 3, 9)),
    Durations("durations", (3, 5, 3, 9)),
    ArcPosteriors("posteriors of arcs", (3, 5, 3, 6), DOUBLE),
    BestPath("best path", (3, 4, 3, 5), DOUBLE, from_logits=False),
    FarApart("far apart", (2, 3, 1, 4), BFLOAT),
]


def try_all(folder: Path) -> dict | None:
    """What is seen first of the package in `folder`."""
    backend = Backend("mutant", torch.device("cpu"), load(folder), "nan")
    (library,) = folder.glob("*.so")
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory of torch.empty starts as NaN
    for case in CASES:
        for order in ORDERS:
            ctypes.CDLL(str(library)).emulator_configure(*order)
            try:
                case.try_on(backend)
            except AssertionError as error:
                return {"kinds": ["values"], "case": case.name, "detail": str(error)}
            except RuntimeError as error:
                if "emulator: " not in str(error):
                    raise
                kinds = [re.split(r"[:,]", line)[0] for line in str(error).splitlines()[:-1]] or ["invalid launch"]
                return {"kinds": list(dict.fromkeys(kinds)), "case": case.name, "detail": str(error)}
    return None
