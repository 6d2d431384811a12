"""Properties of any batch: random shapes, lengths, dtypes, strides and blanks (hypothesis, with fixed examples)."""

from typing import NamedTuple

import pytest
import torch
from batches import INF, Batch, random_batch
from cases import DTYPES
from compare import assert_same_bits, assert_within_budget
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from reference import Twin

fixed = settings(
    derandomize=True, deadline=None, max_examples=150, database=None, suppress_health_check=[HealthCheck.too_slow]
)


class Draw(NamedTuple):
    """How to make a batch, short enough to be printed where a property fails."""

    shape: tuple[int, int, int, int]
    blank: int
    scale: float
    ragged: bool
    holes: bool  # some entries are -inf, but no row of logits is all so
    seed: int
    dtype: torch.dtype
    from_logits: bool
    topology: str

    @property
    def batch(self) -> Batch:
        batch = random_batch(*self.shape, self.seed, self.scale, self.blank, self.ragged)
        if self.holes:
            holes = torch.rand(batch.x.shape, generator=torch.Generator().manual_seed(self.seed)) < 0.1
            holes[..., self.seed % self.shape[3]] = False
            batch.x[holes] = -INF
        return batch.front(self.from_logits).to(self.dtype)


@st.composite
def draws(draw, dtypes=DTYPES, front_ends=(True, False), holes=True) -> Draw:
    B, T, U = (draw(st.integers(low, high)) for low, high in ((1, 5), (1, 12), (0, 9)))
    V = draw(st.integers(2 if U else 1, 40))
    return Draw(
        shape=(B, T, U, V),
        blank=draw(st.integers(-V, V - 1)),
        scale=draw(st.sampled_from([0.0, 1.0, 8.0, 60.0])),
        ragged=draw(st.booleans()),
        holes=holes and draw(st.booleans()),
        seed=draw(st.integers(0, 2**31 - 1)),
        dtype=draw(st.sampled_from(dtypes)),
        from_logits=draw(st.sampled_from(front_ends)),
        topology=draw(st.sampled_from(["standard", "modified"])),
    )


def result(backend, drawn: Draw, batch: Batch | None = None, poisoned: bool = True):
    batch = drawn.batch if batch is None else batch
    return backend.loss_and_grad(batch, drawn.from_logits, poisoned, topology=drawn.topology)


def assert_same(got, wanted):
    for name, a, b in zip(("loss", "gradient"), got, wanted):
        assert_same_bits(name, a, b)


@fixed
@given(draws())
def test_agrees_with_the_twin(backend, drawn):
    batch, from_logits, topology = drawn.batch, drawn.from_logits, drawn.topology
    acc_t = torch.float64 if batch.x.dtype == torch.float64 else torch.float32
    truth, twin = Twin(batch, from_logits, topology), Twin(batch, from_logits, topology, acc_t)
    loss, grad = result(backend, drawn)
    assert_within_budget("loss", loss, truth.loss, twin.loss)
    assert_within_budget("gradient", grad, truth.grad, twin.grad.to(batch.x.dtype))


@fixed
@given(draws(), st.randoms(use_true_random=False))
def test_the_order_of_a_batch_does_not_matter(backend, drawn, random):
    order = random.sample(range(drawn.shape[0]), drawn.shape[0])
    loss, grad = result(backend, drawn)
    assert_same(result(backend, drawn, drawn.batch.take(order)), (loss[order], grad[order]))


@fixed
@given(draws(), st.integers(0, 20), st.integers(0, 20))
def test_padding_does_not_matter(backend, drawn, more_T, more_U):
    _, T, U, _ = drawn.shape
    loss, grad = result(backend, drawn, drawn.batch.poisoned((more_T, more_U)))
    assert_same((loss, grad[:, :T, : U + 1]), result(backend, drawn))


@fixed
@given(draws(), st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_strides_do_not_matter(backend, drawn, order, before, after, step):
    batch = drawn.batch
    inverse = torch.tensor(order).argsort().tolist()
    strided = batch.x.permute(order)
    room = strided.new_full((*strided.shape[:3], before + step * strided.shape[3] + after), float("nan"))
    view = room[..., before : before + step * strided.shape[3] : step]
    view.copy_(strided)
    got = result(backend, drawn, batch._replace(x=view.permute(inverse)), poisoned=False)
    assert_same(got, result(backend, drawn, batch, poisoned=False))


@fixed
@given(draws(dtypes=(torch.float64, torch.float32)), st.randoms(use_true_random=False))
def test_the_names_of_the_classes_do_not_matter(backend, drawn, random):
    """Class k becomes name[k], the blank too."""
    x, labels, T_b, U_b, blank = drawn.batch
    V = x.shape[3]
    name = torch.tensor(random.sample(range(V), V))
    renamed = Batch(x[..., name.argsort()], name[labels], T_b, U_b, int(name[blank]))
    loss, grad = result(backend, drawn, renamed)
    wanted, wanted_grad = result(backend, drawn)
    # the sum of a row runs in another order
    floor = 1e-11 if x.dtype == torch.float64 else 1e-5
    assert_within_budget("loss", loss, wanted.double(), floor=floor)
    assert_within_budget("gradient", grad[..., name], wanted_grad.double(), floor=floor)


@fixed
@given(draws(dtypes=(torch.float64, torch.float32), front_ends=(True,)), st.floats(-100, 100))
def test_a_constant_added_to_rows_does_not_matter(backend, drawn, constant):
    batch, topology = drawn.batch, drawn.topology
    shift = constant * torch.randn(
        *batch.x.shape[:3], 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    shifted = batch._replace(x=(batch.x.double() + shift).to(batch.x.dtype))
    truth = Twin(batch, True, topology)
    loss, grad = result(backend, drawn, shifted)
    # the sum is rounded to the dtype of x before the loss sees it, on every one of up to T + U arcs
    rounding = torch.finfo(batch.x.dtype).eps * (shifted.x.masked_fill(shifted.x == -INF, 0).abs().max().item() + 1)
    floor = 2 * rounding * (batch.x.shape[1] + batch.x.shape[2])
    assert_within_budget("loss", loss, truth.loss, floor=floor)
    assert_within_budget("gradient", grad, truth.grad, floor=2 * floor)


@fixed
@given(draws(dtypes=(torch.float64, torch.float32), holes=False))
def test_the_posteriors_of_a_possible_utterance_count_its_arcs(backend, drawn):
    batch, from_logits, topology = drawn.batch, drawn.from_logits, drawn.topology
    loss, grad = result(backend, drawn)
    assume(loss.isfinite().any())
    tolerance = 100 * torch.finfo(grad.dtype).eps
    blank = batch.blank % batch.x.shape[3]
    for b, (T, U) in enumerate(zip(batch.input_lengths.tolist(), batch.label_lengths.tolist())):
        cells = grad[b, :T, : U + 1].double()
        if not loss[b].isfinite():
            assert topology == "modified" and T < U and loss[b] == INF and (cells == 0).all()
        elif from_logits:
            assert cells.sum(-1).abs().max() <= tolerance
        else:
            assert -cells[..., blank].sum().item() == pytest.approx(
                T if topology == "standard" else T - U, abs=tolerance * T
            )
            for u in range(U):
                assert -cells[:, u, batch.labels[b, u]].sum().item() == pytest.approx(1, abs=tolerance)


@fixed
@given(draws(dtypes=(torch.float64,)), st.floats(1e-6, 1), st.floats(-10, 10))
def test_clamp_then_upstream(backend, drawn, clamp, upstream):
    batch, from_logits, topology = drawn.batch, drawn.from_logits, drawn.topology
    got = backend.loss_and_grad(batch, from_logits, upstream=upstream, clamp=clamp, topology=topology)[1]
    assert_within_budget("gradient", got, result(backend, drawn)[1].clamp(-clamp, clamp) * upstream)
