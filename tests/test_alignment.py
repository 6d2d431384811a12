"""What the lattice knows besides the loss, against all paths of small lattices."""

import math

import pytest
import torch
from arc_oracles import ARC_SETS, PAIRS, VARIANTS, Oracle, options_of, variant_arcs
from batches import INF, JUNK_LABEL, NAN, Batch, batch, collate, edit, random_batch
from cases import FRONT_ENDS, NO_LABEL_1, X1, X1_BLANK, X1_LABEL, X3, probabilities
from compare import assert_opcheck, assert_same_bits, assert_within_budget
from torch import Tensor
from torch.nn.functional import pad

TOPOLOGIES = pytest.mark.parametrize("topology", ["standard", "modified", "constrained"])
ARCS = pytest.mark.parametrize("arcs", ARC_SETS.values(), ids=ARC_SETS.keys())


def ragged_scores(arcs, seed: int, draw=torch.randn) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in NaN padding and lengths of 6 utterances, of which at least the first is full."""
    g = torch.Generator().manual_seed(seed)
    T_b, U_b = torch.randint(1, 6, (6,), generator=g), torch.randint(0, 4, (6,), generator=g)
    T_b[0], U_b[0] = 5, 3
    scores = draw(6, 7, 5, len(arcs[0]), generator=g, dtype=torch.float64)
    t, u = torch.arange(7)[:, None], torch.arange(5)
    padding = (t >= T_b[:, None, None]) | (u > U_b[:, None, None])
    return scores.masked_fill(padding[..., None], NAN), T_b, U_b


def arcs_of(backend, scores: Tensor, *lengths: Tensor) -> list[Tensor]:
    """On the device, arc by arc: [K, B, T, U + 1]."""
    return [x.to(backend.device) for x in (scores.movedim(-1, 0), *lengths)]


def assert_answers(backend, scores: Tensor, arcs, T_b: Tensor, U_b: Tensor) -> Oracle:
    arc_functions, wanted = backend.rnnt.arcs, Oracle(scores, arcs, T_b, U_b)
    given = arcs_of(backend, scores, T_b, U_b)
    arcs = backend.rnnt.lattice.Arcs(*arcs)
    for got, of in zip(arc_functions.posteriors_of_arcs(*given, arcs), (0, 1), strict=True):
        assert_within_budget("posteriors", got.movedim(0, -1), wanted.of(of))
    assert_within_budget("expected", arc_functions.expected_frames_of_arcs(*given, arcs), wanted.expected, floor=1e-11)
    assert_within_budget("entropy", arc_functions.entropy_of_arcs(*given, arcs), wanted.entropy, floor=1e-11)
    frames, path_arcs, score = (x.cpu() for x in arc_functions.align_of_arcs(*given, arcs))
    assert_same_bits("frames", frames, wanted.frames)
    assert_same_bits("durations", torch.tensor([*arcs.dt, -1])[path_arcs], wanted.durations)
    assert_same_bits("score", score, wanted.score)
    return wanted


# ---- any arcs


@ARCS
@pytest.mark.parametrize("seed", range(4))
def test_all_paths(backend, arcs, seed):
    scores, *lengths = ragged_scores(arcs, seed)
    assert_answers(backend, scores, arcs, *lengths)


@ARCS
def test_ties(backend, arcs):
    """Few different scores, whose sums are exact: the labels come as early as they can, then take the least time."""

    def draw(*shape, generator, dtype):
        return torch.randint(-1, 1, shape, generator=generator).to(dtype)

    ties = 0
    for seed in range(6):
        scores, *lengths = ragged_scores(arcs, seed, draw)
        wanted = assert_answers(backend, scores, arcs, *lengths)
        of_paths = [[path.score for path in paths] for paths in wanted.paths if paths]
        ties += sum(of.count(max(of)) > 1 for of in of_paths)
    assert ties >= 5


@ARCS
def test_forbidden_arcs(backend, arcs):
    scores, *lengths = ragged_scores(arcs, 5)
    forbidden = torch.rand(scores.shape, generator=torch.Generator().manual_seed(6)) < 0.3
    assert_answers(backend, scores.masked_fill(forbidden & ~scores.isnan(), -INF), arcs, *lengths)


@ARCS
def test_equal_scores(backend, arcs):
    assert_answers(backend, torch.full((1, 5, 3, len(arcs[0])), -1.5).double(), arcs, *torch.tensor([[5], [2]]))


@pytest.mark.parametrize("arcs", [ARC_SETS["standard"], ARC_SETS["tdt"]], ids=["standard", "tdt"])
def test_samples_have_the_distribution_of_paths(backend, arcs):
    n, (scores, T_b, U_b) = 4000, ragged_scores(arcs, 1)
    wanted = Oracle(scores, arcs, T_b, U_b)
    given = arcs_of(backend, scores, T_b, U_b)
    arcs = backend.rnnt.lattice.Arcs(*arcs)
    draw = lambda: backend.rnnt.arcs.sample_of_arcs(  # noqa: E731
        *given, arcs, n, torch.Generator().manual_seed(3)
    )
    frames, path_arcs = (x.cpu() for x in draw())
    assert_same_bits("the same seed", draw()[0].cpu(), frames)
    durations = torch.tensor([*arcs.dt, -1])[path_arcs]
    for b, paths in enumerate(wanted.paths):
        U = int(U_b[b])
        assert (frames[:, b, U:] == -1).all() and (path_arcs[:, b, U:] == -1).all()
        p = {}
        for path in paths:
            key = path.frames, path.durations
            p[key] = p.get(key, 0.0) + math.exp(float(path.score) - wanted.log_z[b])
        drawn = list(zip(map(tuple, frames[:, b, :U].tolist()), map(tuple, durations[:, b, :U].tolist()), strict=True))
        if not paths:
            assert (frames[:, b] == -1).all()
            continue
        assert set(drawn) <= set(p)
        chi = sum((drawn.count(key) - n * q) ** 2 / (n * q) for key, q in p.items())
        assert chi <= len(p) + 5 * math.sqrt(2 * len(p)), (b, chi, len(p))


def test_samples_at_the_ends_of_a_uniform(backend):
    """0 and the number below 1 are drawn too, and no impossible arc with them."""
    scores = torch.tensor([[-INF, 0.0], [0.0, -INF]]).view(1, 1, 2, 2).double()
    for uniform in (0.0, 1 - 2.0**-53):
        given = [
            *arcs_of(backend, scores, *torch.tensor([[1], [1]])),
            torch.full((1, 1, 3), uniform, dtype=torch.float64),
        ]
        frames, arcs, score = backend.rnnt.ops.paths(*given[:3], [1, 0], [0, 1], False, given[3].to(backend.device))
        assert frames.item() == 0 and arcs.item() == 1 and score.item() == 0


def test_wide_lattices(backend):
    """More labels than a block has threads; equal scores, so that the first labels come at once."""
    T, U = 3, 700
    scores = torch.zeros(2, 2, T, U + 1, device=backend.device)
    lengths = torch.tensor([3, 2]), torch.tensor([700, 650])
    standard = backend.rnnt.lattice.ARCS["standard"]
    frames, _, score = backend.rnnt.arcs.align_of_arcs(scores, *lengths, standard)
    assert (frames[0] == 0).all() and (frames[1, :650] == 0).all() and (frames[1, 650:] == -1).all()
    assert (score == 0).all()
    entropy = backend.rnnt.arcs.entropy_of_arcs(scores, *lengths, standard)
    wanted = [math.log(math.comb(T_b + U_b - 1, U_b)) for T_b, U_b in ((3, 700), (2, 650))]
    assert_within_budget("entropy", entropy, torch.tensor(wanted, dtype=torch.float64))


# ---- the functions


def call(backend, name: str, given: Batch, **keywords):
    function = getattr(backend.rnnt.alignment, name)
    return function(*(x.to(backend.device) for x in given[:4]), given.blank, **keywords)


def scores_of(given: Batch, topology: str = "standard", **variant) -> Tensor:
    return torch.stack([arc.score for arc in variant_arcs(given, given.x, topology, **variant)], -1)


BIASES = "blank_bias", "label_bias"
OF_SCORES = [names for names in [(), *((name,) for name in VARIANTS), *PAIRS] if "fastemit_lambda" not in names]


@pytest.mark.parametrize(
    "from_logits, variants",
    [(logits, names) for logits in (True, False) for names in OF_SCORES if logits or "hat" not in names],
)
def test_variants(backend, from_logits, variants):
    given = random_batch(4, 5, 3, 6, seed=3, ragged=True, blank=2)
    keywords = options_of(variants, given)
    topology = keywords["topology"]
    arcs = ARC_SETS["standard" if topology == "standard" else "modified"]
    wanted = Oracle(scores_of(given, **keywords), arcs, *given[2:4])
    on_device = {k: x.to(backend.device) if isinstance(x, Tensor) else x for k, x in keywords.items()}
    keywords = {"from_logits": from_logits, **on_device}
    given = given.front(from_logits)
    blank, label = call(backend, "posteriors", given, **keywords)
    assert_within_budget("blank", blank, wanted.posteriors[..., 0], floor=1e-11)
    assert_within_budget("label", label, wanted.posteriors[..., 1], floor=1e-11)
    assert_within_budget("expected", call(backend, "expected_frames", given, **keywords), wanted.expected, floor=1e-11)
    assert_within_budget("entropy", call(backend, "entropy", given, **keywords), wanted.entropy, floor=1e-11)
    frames, score = call(backend, "align", given, **keywords)
    assert_same_bits("frames", frames.cpu(), wanted.frames)
    assert_within_budget("score", score, wanted.score)
    samples = call(backend, "sample_paths", given, n=5, **keywords).cpu()
    for b, paths in enumerate(wanted.paths):
        possible = {path.frames for path in paths} or {(-1,) * int(given.label_lengths[b])}
        assert {tuple(frames) for frames in samples[:, b, : int(given.label_lengths[b])].tolist()} <= possible


@pytest.mark.kernels_ci
@FRONT_ENDS
def test_known_values(backend, from_logits):
    given = collate(X1, X3).front(from_logits)
    blank, label = call(backend, "posteriors", given, from_logits=from_logits)
    assert (blank[0, :2].cpu() - torch.tensor(X1_BLANK)).abs().max() < 1e-6
    assert (label[0, :2].cpu() - torch.tensor(X1_LABEL)).abs().max() < 1e-6
    assert_within_budget("frames of blanks", blank.sum((1, 2)), torch.tensor([2.0, 3.0]).double())
    assert_within_budget("labels", label.sum(1)[:, :2], torch.ones(2, 2).double())
    expected = call(backend, "expected_frames", given, from_logits=from_logits).cpu()
    assert (expected - torch.tensor([[0.308198, 0.616396], [0.594493, 1.217793]])).abs().max() < 1e-6
    frames, score = call(backend, "align", given, from_logits=from_logits)
    assert (frames == 0).all()
    assert (score.cpu() - torch.tensor([-5.4538116572, -7.2651978600], dtype=torch.float64)).abs().max() < 1e-9


@pytest.mark.parametrize(
    "topology, frames, arcs",
    [("standard", [1, 1], [0.6, 0.4, 0.4, 0.8, 0.7, 0.8]), ("modified", [1, 2], [0.6, 0.4, 0.4, 0.8])],
)
def test_best_path_of_probabilities(backend, topology, frames, arcs):
    found, score = call(backend, "align", probabilities(), topology=topology)
    assert found.tolist() == [frames] and abs(score.item() - math.log(math.prod(arcs))) < 1e-12


@pytest.mark.parametrize("T, U", [(3, 2), (1, 5), (60, 40)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_equal_logits(backend, T, U, dtype):
    """E frame of label u = u (T - 1) / (U + 1), entropy = ln of the number of paths, all labels at once the best."""
    given = batch(torch.zeros(1, T, U + 1, 4), torch.ones(1, U)).to(dtype)
    paths = math.comb(T + U - 1, U)
    expected = torch.arange(1, U + 1).double() * (T - 1) / (U + 1)
    acc_t = torch.float64 if dtype == torch.float64 else torch.float32
    got = {name: call(backend, name, given, from_logits=True) for name in ("expected_frames", "entropy", "posteriors")}
    assert got["expected_frames"].dtype == got["entropy"].dtype == got["posteriors"][0].dtype == acc_t
    floor = 1e-11 if acc_t == torch.float64 else 3e-6
    assert_within_budget("expected", got["expected_frames"], expected[None], floor=floor)
    assert_within_budget("entropy", got["entropy"], torch.tensor([math.log(paths)], dtype=torch.float64), floor=floor)
    frames, score = call(backend, "align", given, from_logits=True)
    assert (frames == 0).all() and abs(score.item() + (T + U) * math.log(4)) < 1e-6 * (T + U)
    assert score.dtype == torch.float64 and frames.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_best_path_of_narrow_log_probs_is_exact(backend, dtype):
    """Sums of what the rows hold, in double: bit for bit on every device."""
    given = random_batch(3, 6, 3, 5, seed=8, ragged=True).front(False).to(dtype)
    wanted = Oracle(scores_of(given, normalizer="none"), ARC_SETS["standard"], *given[2:4])
    frames, score = call(backend, "align", given)
    assert_same_bits("frames", frames.cpu(), wanted.frames)
    assert_same_bits("score", score.cpu(), wanted.score)


NAMES = ("posteriors", "expected_frames", "entropy", "align", "sample_paths")


ANSWERS = ("blank", "label", "expected", "entropy", "frames", "score")  # samples take other random numbers


def compare(name: str, got: Tensor, wanted: Tensor):
    """To the bit, but what torch sums in an order of its own."""
    (assert_within_budget if name in ("expected", "entropy") else assert_same_bits)(name, got, wanted)


def answers(backend, given: Batch, from_logits: bool, **keywords) -> list[Tensor]:
    """Of every function, utterances first."""
    got = []
    for name in NAMES:
        more = {"n": 3, "generator": torch.Generator().manual_seed(1)} if name == "sample_paths" else {}
        found = call(backend, name, given, from_logits=from_logits, **keywords, **more)
        got += [found.transpose(0, 1)] if more else [found] if isinstance(found, Tensor) else found
    return [x.cpu() for x in got]


@TOPOLOGIES
@FRONT_ENDS
def test_padding_is_not_read(backend, topology, from_logits):
    given = random_batch(4, 5, 3, 6, seed=9, ragged=True).front(from_logits)
    biases = {name: x.masked_fill(~given.cells, NAN) for name, x in options_of(BIASES, given).items() if name in BIASES}
    window = pad(torch.tensor([[0, 4]]).expand(4, 3, 2), (0, 0, 0, 1), value=JUNK_LABEL)
    keywords = {name: pad(x, (0, 1, 0, 1), value=NAN).to(backend.device) for name, x in biases.items()}
    got = answers(backend, given.poisoned(), from_logits, topology=topology, windows=window.to(backend.device),
                  **keywords)  # fmt: skip
    clean = {name: x.nan_to_num(0).to(backend.device) for name, x in biases.items()}
    wanted = answers(backend, given, from_logits, topology=topology, **clean)
    for name, padded, plain in zip(ANSWERS, got, wanted):
        compare(name, padded[(slice(None), *map(slice, plain.shape[1:]))], plain)
        outer = padded.clone()
        outer[(slice(None), *map(slice, plain.shape[1:]))] = 0
        assert ((outer == 0) | (outer == -1)).all()


@FRONT_ENDS
def test_impossible_and_nan_utterances(backend, from_logits):
    """They have the values documented, and the others are what they are alone."""
    given = collate(X1, NO_LABEL_1, X3, edit(X1, NAN, (0, 0, 1, 0)), batch(X3.x[0, :, :1], []))
    given = given._replace(x=given.x.masked_fill(~given.cells[..., None], NAN)).front(from_logits)
    got = answers(backend, given, from_logits)
    for b in (0, 2, 4):
        for name, x, alone in zip(ANSWERS, got, answers(backend, given.take([b]), from_logits)):
            compare(name, x[b : b + 1], alone)
    blank, label, expected, entropy, frames, score, samples = got
    assert (blank[1] == 0).all() and (label[1] == 0).all() and (expected[1] == -1).all() and entropy[1] == 0
    assert (frames[[1, 3]] == -1).all() and score[1] == -INF and (samples[[1, 3]] == -1).all()
    cells = given.cells[3]
    assert blank[3][cells].isnan().all() and (blank[3][~cells] == 0).all() and expected[3].isnan().all()
    assert entropy[3].isnan() and score[3].isnan()
    assert (frames[4] == -1).all() and (expected[4] == -1).all() and entropy[4].abs() < 1e-12 and score[4] > -INF


def test_empty_batches(backend):
    blank, label, expected, entropy, frames, score, samples = answers(backend, X1.take([]), True)
    assert blank.shape == label.shape == (0, 2, 3) and expected.shape == frames.shape == (0, 2)
    assert entropy.shape == score.shape == (0,) and samples.shape == (0, 3, 2)
    assert call(backend, "sample_paths", X1, n=0).shape == (0, 1, 2)


# ---- derivatives


@TOPOLOGIES
@FRONT_ENDS
@pytest.mark.parametrize("name", ["posteriors", "expected_frames", "entropy"])
def test_gradcheck(backend, name, topology, from_logits):
    given = random_batch(3, 4, 2, 4, seed=2, ragged=True).front(from_logits)
    given = given._replace(input_lengths=given.input_lengths.clamp(min=2))  # with a path in every topology
    biases = [options_of(BIASES, given)[name] for name in BIASES]
    inputs = [x.to(backend.device).requires_grad_() for x in (given.x, *biases)]

    def function(x, blank_bias, label_bias):
        return call(backend, name, given._replace(x=x), from_logits=from_logits, topology=topology,
                    delay_penalty=0.3, blank_bias=blank_bias, label_bias=label_bias)  # fmt: skip

    assert torch.autograd.gradcheck(function, inputs)


def test_gradcheck_where_posteriors_change_against_each_other(backend):
    """Of the first cell one posterior grows as the other shrinks: their sum, 1, has no gradient, and they have."""
    for scale in (0.0, 1.0):
        given = random_batch(1, 3, 2, 4, scale=scale)
        x = given.x.to(backend.device).requires_grad_()
        function = lambda x: call(backend, "posteriors", given._replace(x=x), from_logits=True)  # noqa: B023, E731
        assert torch.autograd.gradcheck(function, [x])


def test_hat(backend):
    """Of logits as of the log-probabilities that they mean, and with a derivative."""
    given = random_batch(2, 4, 2, 5, ragged=True, blank=1)
    blank, labels = given.x[..., 1:2], edit(given, -INF, (..., 1)).x.log_softmax(-1)
    log_probs = given._replace(x=labels + torch.nn.functional.logsigmoid(-blank))
    log_probs.x[..., 1:2] = torch.nn.functional.logsigmoid(blank)
    for name in ("posteriors", "expected_frames", "entropy", "align"):
        got = call(backend, name, given, from_logits=True, normalizer="hat")
        wanted = call(backend, name, log_probs)
        for x, y in [(got, wanted)] if isinstance(got, Tensor) else zip(got, wanted, strict=True):
            assert_within_budget(name, x, y, floor=1e-11)
    x = given.x.to(backend.device).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: call(backend, "posteriors", given._replace(x=x), from_logits=True, normalizer="hat"), [x]
    )


@pytest.mark.parametrize("arcs", [ARC_SETS["tdt"], ARC_SETS["multiblank"]], ids=["tdt", "multiblank"])
def test_gradcheck_of_arcs(backend, arcs):
    scores, T_b, U_b = ragged_scores(arcs, 2)
    scores, *lengths = arcs_of(backend, scores[:2, :5, :4], T_b[:2], U_b[:2])
    scores = scores.nan_to_num(0).requires_grad_()
    arcs = backend.rnnt.lattice.Arcs(*arcs)
    for name in ("posteriors_of_arcs", "expected_frames_of_arcs", "entropy_of_arcs"):
        function = getattr(backend.rnnt.arcs, name)
        assert torch.autograd.gradcheck(lambda x, function=function: function(x, *lengths, arcs), [scores])


@FRONT_ENDS
@pytest.mark.parametrize("name", ["posteriors", "expected_frames", "entropy"])
def test_gradients_of_special_utterances(backend, name, from_logits):
    """Exactly 0 where there is no path and in padding, NaN in an utterance of NaN, and no trace of it in others."""
    given = collate(X1, NO_LABEL_1, edit(X1, NAN, (0, 0, 1, 0)), X3).front(from_logits).poisoned()
    x = given.x.to(backend.device).requires_grad_()
    found = call(backend, name, given._replace(x=x), from_logits=from_logits)
    found = found if isinstance(found, Tensor) else torch.cat([y.flatten(1) for y in found], 1)
    weights = torch.arange(1.0, found[0].numel() + 1, device=found.device).double().view(found[0].shape)
    (grad,) = torch.autograd.grad((found * weights).nansum(), x)
    grad = grad.cpu()
    assert (grad[~given.cells] == 0).all() and (grad[1] == 0).all() and grad[[0, 3]].isfinite().all()
    assert (grad[0] != 0).any() and (grad[3] != 0).any()


def test_gradients_of_narrow_types(backend):
    given = random_batch(2, 8, 3, 6, ragged=True)
    for dtype in (torch.float32, torch.bfloat16):
        narrow = given.to(dtype)
        grads = []
        for b in (narrow.to(torch.float64), narrow):
            x = b.x.to(backend.device).requires_grad_()
            grads += torch.autograd.grad(call(backend, "entropy", b._replace(x=x), from_logits=True).sum(), x)
        assert grads[1].dtype == dtype
        assert_within_budget("gradient", grads[1].float(), grads[0], floor=1e-5 if dtype == torch.float32 else 1e-2)


def test_a_second_derivative_is_refused(backend):
    x = X1.x.to(backend.device).requires_grad_()
    for name in ("expected_frames", "entropy"):
        (grad,) = torch.autograd.grad(call(backend, name, X1._replace(x=x), from_logits=True).sum(), x,
                                      create_graph=True)  # fmt: skip
        with pytest.raises(RuntimeError, match="have one derivative"):
            grad.sum().backward()
    (grad,) = torch.autograd.grad(backend.loss(X1._replace(x=x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_posteriors_are_the_losss_gradient(backend):
    given = random_batch(3, 6, 4, 5, ragged=True).front(False)
    loss, grad = backend.loss_and_grad(given, False)
    blank, label = call(backend, "posteriors", given)
    assert_within_budget("blank", blank, -grad[..., 0])
    ids = pad(given.labels, (0, 1))[:, None, :, None].expand(-1, 6, -1, -1)
    has_label = (torch.arange(5) < given.label_lengths[:, None])[:, None]
    assert_within_budget("label", label, (-grad.gather(3, ids)[..., 0]).masked_fill(~has_label, 0))


# ---- arguments, data, the ops


def test_frames_to_seconds(backend):
    seconds = backend.rnnt.alignment.frames_to_seconds
    got = seconds(torch.tensor([[0, 7], [3, -1]]), 0.04)
    assert got.dtype == torch.float64 and torch.allclose(
        got, torch.tensor([[0, 0.28], [0.12, NAN]]).double(), equal_nan=True
    )
    assert seconds(torch.tensor([1.5]), 0.5).dtype == torch.float32


def test_frames_to_seconds_refuses(backend):
    for frames, shift, words in [
        ([1, 2], 0.04, "frames must be a tensor of integers or floating point numbers, got list"),
        (torch.zeros(2).cfloat(), 0.04, "frames must be .*, got torch.complex64"),
        (torch.zeros(2), None, "frame_shift must be a finite float, got NoneType"),
    ]:
        with pytest.raises(TypeError, match=words):
            backend.rnnt.alignment.frames_to_seconds(frames, shift)


@pytest.mark.parametrize("mask", [-1e9, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_masks_that_every_path_has_to_take(backend, mask, dtype):
    """Finite ones are beyond what float32 counts exactly: no answer is right, but each is an answer."""
    T, U = 60, 7
    given = random_batch(1, T, U, 5, seed=4)
    x = given.front(False).x.clone()
    x[:, :, 1, given.labels[0, 1]] = mask
    given = given._replace(x=x.to(dtype))
    blank, label, expected, entropy, frames, *_ = answers(backend, given, False)
    total = blank + label
    assert (total >= 0).all() and (total <= 1 + 1e-4).all() and (total[0, 0, 0] - 1).abs() < 1e-4
    assert (expected >= 0).all() and (expected <= T - 1).all() and (frames >= 0).all()
    assert 0 <= entropy.item() <= math.log(math.comb(T + U - 1, U)) + 1e-3


@pytest.mark.parametrize("T", [3, 5000])
def test_what_has_no_choice_is_certain(backend, T):
    """To the bit, however long: no part of a path is lost on its way."""
    g = torch.Generator().manual_seed(T)
    given = batch(torch.randn(1, T, 1, 2, generator=g), torch.zeros(1, 0)).to(torch.float32)
    blank, _ = call(backend, "posteriors", given)
    assert (blank == 1).all()
    x = given.x.to(backend.device).requires_grad_()
    loss = backend.loss(given._replace(x=x), False, sigma=0.05, reduction="sum")
    assert (torch.autograd.grad(loss, x)[0][..., 0] == -1).all()


def test_a_sure_model_keeps_its_frames_on_long_audio(backend):
    T, U = 3000, 60
    backend.needs(1, T, U + 1, 3)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, T, U + 1, 3, generator=g, dtype=torch.float64)
    x[..., 0] += 5
    given = batch(x[0], torch.ones(U)).front(False)._replace(labels=torch.ones(1, U, dtype=torch.int64))
    _, exact = call(backend, "posteriors", given)
    _, label = call(backend, "posteriors", given.to(torch.float32))
    assert (label.double() - exact).abs().max() < 1e-5 * exact.max()
    assert (label.sum(1)[:, :U] - 1).abs().max() < 1e-5


@pytest.mark.parametrize("score", [1.3e9, 1210061056.0, -1561502066671616.0, 1e37, -1e37])
@pytest.mark.parametrize("T", [1, 2])
def test_scores_of_absurd_size(backend, score, T):
    given = batch(torch.full((1, T, 1, 2), score), torch.zeros(1, 0)).to(torch.float32)
    blank, _ = call(backend, "posteriors", given)
    assert (blank == 1).all()
    loss = backend.loss(given, False, sigma=0.5, reduction="sum").item()
    assert loss == pytest.approx(-T * score, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_arguments(backend, name):
    for change, error, words in [
        ({"topology": "ctc"}, ValueError, "topology must be one of standard, modified, constrained"),
        ({"normalizer": "hat"}, ValueError, "normalizer must be softmax or none without from_logits"),
        ({"from_logits": 1}, TypeError, "from_logits must be a bool"),
        ({"sigma": "0"}, TypeError, "sigma must be a finite float"),
        ({"delay_penalty": NAN}, ValueError, "delay_penalty must be a finite float"),
        ({"windows": torch.zeros(1, 2)}, TypeError, "windows must be an int32 or int64 tensor"),
        ({"blank_bias": torch.zeros(1, 2)}, ValueError, "blank_bias must have shape"),
    ]:
        with pytest.raises(error, match=words):
            call(backend, name, X1, **change)
    with pytest.raises(ValueError, match="blank must be in"):
        call(backend, name, X1._replace(blank=5))
    with pytest.raises(TypeError, match="labels must be int32 or int64"):
        call(backend, name, X1._replace(labels=X1.labels.double()))
    for n, error in [(-1, ValueError), (10**30, ValueError), (1.5, TypeError), (True, TypeError)]:
        with pytest.raises(error, match="n must be "):
            call(backend, "sample_paths", X1, n=n)


@pytest.mark.parametrize("name, value", [("input_lengths", 3), ("label_lengths", 3), ("labels", 5)])
def test_data(backend, name, value):
    tensor = getattr(X1, name).clone()
    tensor.view(-1)[0] = value
    given = collate(X1, X1)._replace(**{name: torch.cat([tensor, getattr(X1, name)])})
    if backend.data_errors == "raise":
        for function in NAMES:
            with pytest.raises(RuntimeError, match=rf"{name}\[0"):
                call(backend, function, given)
        return
    _, _, expected, entropy, frames, score, samples = answers(backend, given, False)
    assert expected[0].isnan().all() and entropy[0].isnan() and score[0].isnan()
    assert (frames[0] == -1).all() and (samples[0] == -1).all()
    posteriors = answers(backend, given, False)[:2]
    assert all(of_arc[0].isnan().any() and not of_arc[1].isnan().any() for of_arc in posteriors)
    assert expected[1].isfinite().all() and score[1].isfinite() and (frames[1] >= 0).all()


@TOPOLOGIES
@pytest.mark.parametrize("T, U, V", [(5, 3, 5), (40, 12, 5), (60, 20, 7), (300, 50, 28)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ties_do_not_depend_on_the_order_of_a_sum(backend, topology, T, U, V, dtype):
    """Of equal logits all paths of as many arcs tie, however their equal scores are added up."""
    x = torch.zeros(1, T, U + 1, V, dtype=dtype, device=backend.device)
    ids = [torch.tensor(values, device=backend.device) for values in ([[1 + u % (V - 1) for u in range(U)]], [T], [U])]
    frames, _ = backend.rnnt.alignment.align(x, *ids, from_logits=True, topology=topology)
    wanted = [0] * U if topology == "standard" else list(range(U))
    assert frames[0].tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("B, U", [(2, 3), (1, 0), (0, 2)])
def test_opcheck(backend, dtype, B, U):
    given = random_batch(max(B, 1), 4, U, 5, ragged=True).to(dtype).take(range(B))
    x, *ids = (tensor.to(backend.device) for tensor in given[:4])
    ops, arcs = backend.rnnt.ops, ([1, 0], [0, 1], False)

    for normalizer in ("softmax", "hat", "none"):
        assert_opcheck(ops.score, x.detach().requires_grad_(), *ids, 0, normalizer, False)
    scores, *_ = ops.score(x.detach(), *ids, 0, "softmax", False)
    for keep in (True, False):
        assert_opcheck(ops.lattice, scores.requires_grad_(keep), *ids[1:], *arcs, keep, False)
    scores = scores.detach()
    assert_opcheck(ops.paths, scores, *ids[1:], *arcs, None)
    assert_opcheck(
        ops.paths, scores, *ids[1:], *arcs, torch.rand(3, B, 5 + U, dtype=torch.float64, device=backend.device)
    )
    with pytest.raises(RuntimeError, match="uniforms must have shape"):
        ops.paths(scores, *ids[1:], *arcs, torch.rand(3, B, 4 + U, dtype=torch.float64, device=backend.device))
    with pytest.raises(RuntimeError, match="uniforms must be Double"):
        ops.paths(scores, *ids[1:], *arcs, torch.rand(3, B, 5 + U, device=backend.device))
