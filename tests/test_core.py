"""rnnt_loss/core and dtype.h on their own: compiled without torch, called through ctypes."""

import ctypes
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

TESTS = Path(__file__).parent
X1 = [
    [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1], [0.1, 0.1, 0.2, 0.8, 0.1]],
    [[0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]],
]
X3 = [X1[0], X1[1], X1[0]]
INF = math.inf


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    library = tmp_path_factory.mktemp("core") / "libcore.so"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]
    compiler = os.environ.get("CXX", "g++")
    driver = str(TESTS / "core_driver.cpp")
    subprocess.run([compiler, *flags, "-fPIC", "-shared", driver, "-o", str(library)], check=True)
    core = ctypes.CDLL(str(library))
    core.run_lattice.restype = core.add_in_nats.restype = ctypes.c_double
    return core


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def add(core, a, b, wide):
    shares = ctypes.c_double(), ctypes.c_double()
    total = core.add_in_nats(ctypes.c_double(a), ctypes.c_double(b), wide, *map(ctypes.byref, shares))
    return total, *(share.value for share in shares)


def arc_scores(logits, labels=(1, 2), blank=0):
    """Two [T, U + 1] arrays of nats; the label's last column belongs to nobody and is NaN."""
    log_probs = torch.tensor(logits, dtype=torch.float64).log_softmax(-1).numpy()
    label = np.stack([log_probs[:, u, y] for u, y in enumerate(labels)] + [np.full(len(log_probs), np.nan)], 1)
    return np.ascontiguousarray(log_probs[:, :, blank]), np.ascontiguousarray(label)


def run(core, blank, label, modified=False, best_path=False, wide=True):
    T, U1 = blank.shape
    outputs = [np.full((T, U1), np.nan) for _ in range(4)]
    log_z = core.run_lattice(
        ctypes.c_int64(T), ctypes.c_int64(U1 - 1), modified, best_path, wide,
        *map(pointer, [blank, label, *outputs]),
    )  # fmt: skip
    return log_z, *outputs


@pytest.mark.parametrize("wide, tolerance", [(False, 2e-7), (True, 1e-14)])
@pytest.mark.parametrize(
    "a, b",
    [(0, 0), (-1, -3), (-0.5, -700.25), (-5000, -5003), (-1e6, -1e6 - 1), (300, -300), (-INF, -2.5), (-87.3, -INF)],
)
def test_a_sum_is_exact_at_any_size(core, a, b, wide, tolerance):
    got, *shares = add(core, a, b, wide)
    wanted = np.logaddexp(a, b)
    assert abs(got - wanted) <= tolerance + 1e-15 * abs(wanted)
    for share, arrived in zip(shares, (a, b)):  # the smaller one is exact too
        assert share == pytest.approx(math.exp(arrived - wanted), rel=2 * tolerance + 2e-15 * abs(wanted), abs=1e-30)


@pytest.mark.parametrize("wide", [False, True])
def test_nothing_and_nothing_is_nothing(core, wide):
    assert add(core, -INF, -INF, wide)[0] == -INF


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_nan_and_infinity_are_never_a_number(core, bad, wide):
    for a, b in [(bad, -1.0), (-1.0, bad), (bad, -INF)]:
        assert math.isnan(add(core, a, b, wide)[0])


@pytest.mark.parametrize(
    "logits, modified, loss",
    [(X1, False, 4.495666773770733), (X3, False, 5.7367250428101615),
     (X1, True, 2.761683127353663), (X3, True, 3.167828306204979)],
)  # fmt: skip
@pytest.mark.parametrize("wide, tolerance", [(False, 1e-6), (True, 1e-13)])
def test_log_z_and_posteriors(core, logits, modified, loss, wide, tolerance):
    blank, label = arc_scores(logits)
    log_z, blank_posterior, label_posterior, alpha, beta = run(core, blank, label, modified, wide=wide)
    assert abs(log_z + loss) < tolerance
    assert abs(beta[0, 0] + loss) < tolerance
    # Every path crosses each frame by one arc that ends it, and says each label once.
    ends = blank_posterior.sum(1) + (label_posterior.sum(1) if modified else 0)
    np.testing.assert_allclose(ends, 1, atol=tolerance)
    np.testing.assert_allclose(label_posterior[:, :2].sum(0), 1, atol=tolerance)
    assert (label_posterior[:, 2] == 0).all()
    with np.errstate(invalid="ignore"):
        occupancy = np.exp(alpha + beta - log_z)
    np.testing.assert_allclose(blank_posterior + label_posterior, occupancy, atol=10 * tolerance)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("logits, score", [(X1, -5.4538116572), (X3, -7.2651978600)])
def test_the_larger_arrival_gives_the_best_path(core, logits, score, wide):
    log_z, blank_posterior, label_posterior, *_ = run(core, *arc_scores(logits), best_path=True, wide=wide)
    assert abs(log_z - score) < 1e-6
    assert set(np.unique(np.stack([blank_posterior, label_posterior]))) == {0.0, 1.0}
    assert label_posterior[0, 0] == label_posterior[0, 1] == 1  # both labels on frame 0


@pytest.mark.parametrize("best_path", [False, True])
@pytest.mark.parametrize("modified", [False, True])
def test_a_nan_in_any_cell_reaches_log_z(core, modified, best_path):
    for t, u in np.ndindex(3, 3):
        for arc in range(2 if u < 2 else 1):
            scores = arc_scores(X3)
            scores[arc][t, u] = math.nan
            assert math.isnan(run(core, *scores, modified, best_path, wide=False)[0]), (t, u, arc)


@pytest.mark.parametrize("wide", [False, True])
def test_dead_ends_and_no_path(core, wide):
    blank, label = arc_scores(X3)
    label[1:, 1] = -INF  # label 2 on frame 0 or never
    log_z, blank_posterior, label_posterior, _, beta = run(core, blank, label, wide=wide)
    assert math.isfinite(log_z) and (label_posterior[1:, 1] == 0).all() and (blank_posterior[0, :2] == 0).all()
    assert (beta[1:, :2] == -INF).all()
    label[0, 1] = -INF
    assert run(core, blank, label, wide=wide)[0] == -INF
    assert run(core, *arc_scores(X1[:1]), modified=True, wide=wide)[0] == -INF  # two labels, one frame


def test_float_stays_exact_on_long_audio(core):
    rng = np.random.default_rng(0)
    for scale in (1, 30):
        blank, label = -scale * rng.exponential(size=(2, 3000, 301))
        wanted = run(core, blank, label, wide=True)
        got = run(core, blank, label, wide=False)
        assert abs(got[0] / wanted[0] - 1) < 1e-7
        for a, b in zip(got[1:3], wanted[1:3]):
            assert np.abs(a - b).max() < 5e-6  # the usual log recursion in float is off by 1e-2 here


def test_exp_of_a_float(core):
    x = np.concatenate([np.linspace(-87, 1, 100001), [-88, -1e30, -INF, math.nan]]).astype(np.float32)
    y = np.empty_like(x)
    core.exp_floats(ctypes.c_int64(len(x)), pointer(x), pointer(y))
    np.testing.assert_allclose(y[:-4], np.exp(x[:-4].astype(np.float64)), rtol=2e-7)
    assert (y[-4:-1] == 0).all() and np.isnan(y[-1])


def test_log_of_a_sum_of_floats(core):
    """Of x and what x is too large to hold: the log1p of a rest."""
    rest = np.concatenate([[0.0], np.logspace(-37, 1.2, 100000), np.linspace(0, 15, 100000)]).astype(np.float32)
    x = (1 + rest).astype(np.float32)
    less, y = rest - (x - 1), np.empty_like(rest)
    core.log_floats(ctypes.c_int64(len(x)), pointer(x), pointer(less), pointer(y))
    np.testing.assert_allclose(y, np.log1p(rest.astype(np.float64)), rtol=2e-7)
    x, less, y = np.float32([2, 2]), np.float32([math.nan, INF]), np.empty(2, np.float32)
    core.log_floats(ctypes.c_int64(2), pointer(x), pointer(less), pointer(y))
    assert np.isnan(y).all()


@pytest.mark.parametrize("dtype, name", [(torch.float16, "halve"), (torch.bfloat16, "bfloat16")])
def test_sixteen_bit_types_are_torchs(core, dtype, name):
    every = np.arange(65536, dtype=np.uint16)
    loaded = np.empty(65536, dtype=np.float32)
    getattr(core, f"load_{name}s")(ctypes.c_int64(65536), pointer(every), pointer(loaded))
    wanted = torch.from_numpy(every.view(np.int16)).view(dtype).float()
    torch.testing.assert_close(torch.from_numpy(loaded), wanted, rtol=0, atol=0, equal_nan=True)

    rng = np.random.default_rng(0)
    near = np.nextafter(loaded[np.isfinite(loaded)], rng.choice(np.float32([-INF, INF]), np.isfinite(loaded).sum()))
    finite = loaded[np.isfinite(loaded)].astype(np.float64)
    ties = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    any_bits = rng.integers(0, 2**32, 300000, dtype=np.uint32).view(np.float32)
    numbers = np.concatenate([loaded, near, ties, any_bits, np.array([65519.996, 65520, INF], np.float32)])
    stored = np.empty(len(numbers), dtype=np.uint16)
    getattr(core, f"store_{name}s")(ctypes.c_int64(len(numbers)), pointer(numbers), pointer(stored))
    got = torch.from_numpy(stored.view(np.int16)).view(dtype)
    torch.testing.assert_close(got, torch.from_numpy(numbers).to(dtype), rtol=0, atol=0, equal_nan=True)


def test_the_core_compiles_for_cuda(tmp_path):
    """One text for host and device: nvcc takes the headers into a kernel as they are."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        assert not os.environ.get("CI"), "continuous integration has to have nvcc"
        pytest.skip("no nvcc")
    source = tmp_path / "kernel.cu"
    source.write_text(f"""
        #include "{TESTS.parent}/rnnt_loss/core/core.h"
        using namespace rnnt;
        __global__ void kernel(ArcPlanes<float> arcs, const float* logits, float* work, float16* shares, double* z) {{
          const FrontLayout layout = front_layout(kStandard, 7, 4);
          arcs.set_blank(0, Softmax<float>{{logits[0], 1}}.value(logits[1]));
          arcs.clear_outside(kStandard, layout, 7, 3);
          const auto keep = [=](int64_t f, int64_t u, Value<float>, float share) {{
            shares[layout.slot(f, u)] = store<float16>(share);
          }};
          *z = forward<Sum, float>(kStandard, layout, 7, 3, arcs, work, work + layout.stride, keep);
        }}
    """)
    subprocess.run(
        [nvcc, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-c", source, "-o", tmp_path / "o"], check=True
    )
