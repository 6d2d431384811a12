"""The device check, rehearsed as far as a machine without a GPU allows: its steps, its benchmark, its page."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import device  # noqa: E402
import device_check  # noqa: E402
import device_report  # noqa: E402
import model  # noqa: E402
import sass  # noqa: E402
import timeline  # noqa: E402


def recorded_row(shape, dtype, **changed):
    B, T, U, V = map(int, shape.split(","))
    floor = model.predict((B, T, U, V), dtype)["floor"]
    row = {
        "shape": shape,
        "dtype": dtype,
        "logits_bytes": B * T * (U + 1) * V * model.ELEMENT_BYTES[dtype],
        "sets": 4,
        "gradient_error": 3e-6,
        "agrees": True,
        "extra_memory": 1.02,
        "kernels_us": {"logits_kernel": 0.35 * floor, "gradient_kernel": 0.7 * floor},
        "us": {
            "eager": 2 * floor + 150,
            "graph": 1.1 * floor + 30,
            "log_probs": floor,
            "log_probs_forward": 0.5 * floor,
        }
        | {"fill": 0.45 * floor, "forward": 0.5 * floor, "lattice": 80.0},
        "floor_us": floor,
        "predicted_us": model.predict((B, T, U, V), dtype) | {"lattice": model.lattice_us((B, T, U, V))},
    }
    if dtype == "float32":
        row["us"]["torchaudio"], row["torchaudio_gradient_error"] = 30 * floor + 2000, 2e-3
    row |= changed
    return row | device_report.derived(row)


@pytest.fixture
def recorded():
    about = {"device": "NVIDIA H200", "driver": "580.159.04", "torch": "2.11.0+cu130", "copy_TB_per_s": 4.3}
    rows = [recorded_row(shape, dtype) for shape in device_report.SHAPES for dtype in model.ELEMENT_BYTES]
    return {"about": about, "notes": device.NOTES, "rows": rows}


# ---- the page


def test_the_page_fits_and_ends_with_the_table(recorded):
    steps = [{"step": "build", "result": "passed", "seconds": 41.0, "output": ["built"]}]
    steps += [{"step": "memcheck", "result": "FAILED (3)", "seconds": 9.0, "output": "an invalid read\n" * 500}]
    failed = [f"test_loss::test_{i}[cuda]" for i in range(300)]
    tests = {
        "graphs": {"passed": 11, "skipped": 1, "failed": []},
        "suite": {"passed": 9, "skipped": 2, "failed": failed},
    }
    results = json.loads(json.dumps({"steps": steps, "tests": tests, "benchmark": recorded}))
    page = device_check.page(results)
    assert len(page) < 12000 and page.endswith(device_report.table(recorded))
    assert "| memcheck | FAILED (3) | 9 |" in page and "suite: 9 passed, 2 skipped, 300 failed" in page
    assert "an invalid read" in page and "NVIDIA H200" in page
    assert "an invalid read" in device_check.page({**results, "benchmark": None})


def test_the_table_shows_what_was_measured_beside_what_was_predicted(recorded):
    lines = device_report.table(recorded).splitlines()
    assert len(lines) == 2 + 2 * len(device_report.SHAPES) and len({line.count("|") for line in lines}) == 1
    cells = dict(zip(lines[0].split(" | "), lines[2].split(" | ")))
    row = recorded["rows"][0]
    assert cells["graph us"] == f"{row['us']['graph']:.1f}" and cells["floor"] == f"{row['floor_us']:.1f}"
    assert cells["x floor"] == f"{row['us']['graph'] / row['floor_us']:.2f}"
    assert cells["lattice"] == "80.0"
    assert cells["torchaudio / eager"] == f"{row['us']['torchaudio'] / row['us']['eager']:.1f}"


def test_goals_are_met_missed_or_not_measured(recorded):
    assert set(device_report.goals(recorded).values()) == {True}
    for changed, goal in [
        ({"agrees": False}, "agrees with float64"),
        ({"floor_us": 1.0}, "at most 1.3 x the floor on the larger shapes"),
        ({"gradient_error": 2e-5}, "gradient error at most 1e-5 on T = 1500"),
    ]:
        other = copy.deepcopy(recorded)
        other["rows"][4] = recorded_row("1,1500,200,500", "float32", **changed)
        assert [name for name, met in device_report.goals(other).items() if not met] == [goal]
    for row in recorded["rows"]:
        row["us"].pop("torchaudio", None), row["us"].pop("graph")
        row |= device_report.derived(row)
    unmeasured = [name for name, met in device_report.goals(recorded).items() if met is None]
    assert any("torchaudio" in name for name in unmeasured) and any("graph" in name for name in unmeasured)


def test_a_row_without_a_measurement_is_said_to_be(recorded):
    recorded["rows"][0] = {"shape": "8,100,20,128", "dtype": "float32", "error": "too little memory"}
    recorded["rows"][1] |= {"agrees": False}
    report = device_report.report(recorded)
    assert "too little memory" in report and "DISAGREES" in report


# ---- the benchmark


class Rehearsal(device.Device):
    """The CPU by a clock of its own: a pass takes a millisecond."""

    def __init__(self):
        super().__init__("cpu")
        self.cache_bytes = 4096
        self.clock = lambda work, repeats: work() or 1.0


@pytest.fixture(scope="module")
def ours():
    return device.load_ours("cpu")


def as_torchaudio(logits, *ids):
    assert all(tensor.dtype == torch.int32 for tensor in ids)
    return device.load_ours("cpu")["logits"](logits, *ids)


@pytest.mark.parametrize("dtype", model.ELEMENT_BYTES)
def test_a_row_is_measured(ours, dtype):
    row = device.measure("2,9,4,8", dtype, Rehearsal(), ours, as_torchaudio, copy=1e9, rounds=2)
    assert row["agrees"] and row["gradient_error"] < device.GRADIENT_BOUNDS[dtype]
    assert row["sets"] == -(-2 * 4096 // row["logits_bytes"]) > 1
    names = {"eager", "forward", "log_probs", "log_probs_forward", "fill", "lattice"}
    assert set(row["us"]) == names | ({"torchaudio"} if dtype == "float32" else set())
    assert set(row["us"].values()) == {1000 / row["sets"]}
    assert row["floor_us"] == pytest.approx(3 * row["logits_bytes"] / 1e9 * 1e6)
    assert row["over_floor"] == row["us"]["eager"] / row["floor_us"]
    json.dumps(row, allow_nan=False)


def test_what_disagrees_is_not_timed(ours):
    wrong = {"logits": lambda *inputs: ours["logits"](*inputs) * 1.01, "log_probs": ours["log_probs"]}
    row = device.measure("2,9,4,8", "float32", Rehearsal(), wrong, None, copy=1e9, rounds=1)
    assert not row["agrees"] and row["us"] == {} and row["over_floor"] is None


def test_a_peer_that_fails_is_recorded(ours):
    def broken(*inputs):
        raise RuntimeError("no kernel for this\nsecond line")

    row = device.measure("2,9,4,8", "float32", Rehearsal(), ours, broken, copy=1e9, rounds=1)
    assert row["torchaudio_error"] == "no kernel for this" and row["torchaudio_over_eager"] is None


def without_kernels(*command):
    """Runs a program of this repository where there is no `kernels` package."""
    code = f"import runpy, sys; sys.modules['kernels'] = None; sys.argv = {list(map(str, command))!r}\n"
    code += f"sys.path.insert(0, {str(Path(command[0]).parent)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_benchmark_runs_without_the_kernels_package(tmp_path):
    output = tmp_path / "results.json"
    done = without_kernels(ROOT / "benchmarks" / "device.py", "--device", "cpu", "--shapes", "2,9,4,8", "1,30,12,40",
                           "--rounds", "1", "--copy-bytes", "1000000", "--json", output)  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text())
    assert done.stdout.strip().endswith(device_report.table(results))
    assert [(row["shape"], row["dtype"]) for row in results["rows"]] == [
        (shape, dtype) for shape in ("2,9,4,8", "1,30,12,40") for dtype in model.ELEMENT_BYTES
    ]
    assert all(row["agrees"] and row["us"]["eager"] > 0 for row in results["rows"])


def test_the_small_steps_run_without_the_kernels_package():
    done = without_kernels(ROOT / "tools" / "small_steps.py", "--device", "cpu")
    assert done.returncode == 0 and "small steps done" in done.stdout, done.stderr


# ---- the steps


def test_a_failure_is_recorded_and_so_is_running_out_of_time():
    def run(code, **keywords):
        step = device_check.Step("step", 5, [sys.executable, "-c", code], **keywords)
        return device_check.run(step, 5 if "sleep" not in code else 0.5, {"PATH": "/nowhere"})

    assert run("print('built')") == {
        "step": "step",
        "result": "passed",
        "seconds": pytest.approx(1, abs=5),
        "output": ["built"],
    }
    failed = run(f"print('{ROOT}/tools/x.py is wrong'); raise SystemExit(3)")
    assert failed["result"] == "FAILED (3)" and failed["output"] == "tools/x.py is wrong\n"
    slow = run("import time; print('begun', flush=True); time.sleep(60)")
    assert slow["result"].startswith("OUT OF TIME") and slow["output"] == "begun\n" and slow["seconds"] < 30
    assert run("", needs="no-such-program")["result"] == "skipped: no no-such-program"
    assert run("import os; print(os.environ['MORE'])", environment={"MORE": "yes"})["output"] == ["yes"]


def test_a_whole_run_leaves_a_file_and_ends_with_the_page(tmp_path, monkeypatch, capsys, recorded):
    def steps(work):
        write = (
            f"import json; open('{work}/benchmark.json', 'w').write(json.dumps({json.loads(json.dumps(recorded))!r}))"
        )
        return [
            device_check.Step("build", 5, [sys.executable, "-c", "print('built')"]),
            device_check.Step("benchmark", 5, [sys.executable, "-c", write]),
            device_check.Step("memcheck", 5, [sys.executable, "-c", "raise SystemExit(3)"]),
        ]

    monkeypatch.setattr(device_check, "gpu", lambda: ("NVIDIA H200", "9.0"))
    monkeypatch.setattr(device_check, "steps", steps)
    monkeypatch.setattr(sys, "argv", ["device_check.py"])
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    with pytest.raises(SystemExit):
        device_check.main()
    results = json.loads((tmp_path / "out" / "nvidia-h200.json").read_text())
    assert [step["result"] for step in results["steps"]] == ["passed", "passed", "FAILED (3)"]
    assert results["benchmark"] == json.loads(json.dumps(recorded)) and str(tmp_path) not in json.dumps(results)
    assert capsys.readouterr().out.strip().endswith(device_report.table(recorded))


def test_without_the_variant_there_is_nothing_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(device_check, "gpu", lambda: ("NVIDIA H200", "9.0"))
    step = device_check.Step("build", 5, [sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(device_check, "steps", lambda work: [step, step])
    monkeypatch.setattr(sys, "argv", ["device_check.py"])
    monkeypatch.setenv("OUT", str(tmp_path))
    with pytest.raises(SystemExit):
        device_check.main()
    assert len(json.loads((tmp_path / "nvidia-h200.json").read_text())["steps"]) == 1


def test_every_step_names_what_exists(tmp_path):
    steps = device_check.steps(tmp_path)
    assert sum(step.seconds for step in steps) < 8 * 60
    named = {part.split("=")[-1] for step in steps for part in step.command if part.endswith(".py")}
    assert named and all((ROOT / name).exists() for name in named)


def test_pytests_result_is_read(tmp_path):
    assert device_check.read_junit(tmp_path / "none.xml") == {}
    path = tmp_path / "suite.xml"
    path.write_text(
        "<testsuites><testsuite><testcase classname='test_loss' name='a[cuda]'/>"
        "<testcase classname='test_loss' name='b[cuda]'><failure message='x'/></testcase>"
        "<testcase classname='test_loss' name='c[cuda]'><skipped/></testcase></testsuite></testsuites>"
    )
    assert device_check.read_junit(path) == {"passed": 1, "skipped": 1, "failed": ["test_loss::b[cuda]"]}


def test_the_build_is_for_the_gpu_that_is_there(monkeypatch):
    try:
        variant = sass.variant()
    except SystemExit as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("RNNT_CUDA_CAPABILITIES", "9.0")
    (source,) = [source for source in sass.sources() if source.stem == "forward"]
    command = " ".join(variant.command(source))
    assert variant.capabilities() == ["9.0"] and command.count("-gencode") == 1 and "code=sm_90" in command


# ---- the model


def test_the_models_rows_are_bytes_or_instructions():
    machine = model.Machine(bandwidth=1e12, clock=1e9, multiprocessors=1)
    slim, busy = (model.Rows({"float32": n, "bfloat16": n}, n and 100, 16) for n in (0, 1e6))
    assert model.rows_us(1000, 128, "float32", 2, slim, machine) == pytest.approx(1000 * (2 * 512 + 16) * 1e-6)
    # 4 threads a row, 8 pieces each
    assert model.rows_us(1000, 128, "float32", 2, busy, machine) == pytest.approx(1000 / 8 * (8e6 + 100) / 4e3)
    # 4 threads, which go round twice; then a block, which does too
    assert model.rows_us(1000, 512, "bfloat16", 1, busy, machine) == pytest.approx(1000 / 8 * (16e6 + 100) / 4e3)
    assert model.rows_us(10, 20000, "bfloat16", 1, busy, machine) == pytest.approx(10 * 8 * (16e6 + 100) / 4e3)


def test_the_models_sweeps_are_steps():
    machine = model.Machine(clock=1e9)
    sweep = model.Sweep(cycles=50, instructions=1, slot_bytes=1)
    assert model.sweep_us(10, 4, 2, sweep, machine) == pytest.approx(14 * 50e-3)
    assert model.sweep_us(10, 32, 1, sweep, machine) == pytest.approx((42 + model.HAND_OVER) * 50e-3)  # a second strip
    assert model.sweep_us(10, 256, 1, sweep, machine) == pytest.approx(
        2 * (266 + model.HAND_OVER * 7) * 50e-3
    )  # a second panel
    assert model.sweep_us(10, 4, 133, sweep, machine) == pytest.approx(2 * 14 * 50e-3)  # more blocks than fit at once
    busy = model.Sweep(cycles=50, instructions=40, slot_bytes=1)
    assert model.sweep_us(10, 32 * 8 - 1, 1, busy, machine) == pytest.approx(
        (265 + model.HAND_OVER * 7) * 80e-3
    )  # two warps a scheduler


@pytest.mark.parametrize("dtype", model.ELEMENT_BYTES)
@pytest.mark.parametrize("shape", model.SHAPES)
def test_rows_and_sweeps_overlap_but_forward_in_large_batches(shape, dtype):
    B, T, U, V = map(int, shape.split(","))
    many = (40, T, U, V)
    parts = model.predict((B, T, U, V), dtype)
    assert parts["step"] == pytest.approx(parts["forward"] + parts["backward"] + parts["launches"])
    assert max(parts["score"], parts["alpha"]) < parts["forward"] < parts["score"] + parts["alpha"]
    assert max(parts["gradient"], parts["flow"]) < parts["backward"] < parts["gradient"] + parts["flow"]
    parts = model.predict(many, dtype)
    assert parts["forward"] == parts["score"] + parts["alpha"]
    assert max(parts["gradient"], parts["flow"]) < parts["backward"] < parts["gradient"] + parts["flow"]
    assert parts["floor"] < parts["score"] + parts["gradient"] < parts["step"]


def test_the_models_numbers_are_those_of_tuning_and_of_the_machine_code():
    tuning = sass.tuning()
    assert (model.THREADS, model.BLOCKS) == (tuning["kThreads"], tuning["kBlocks"])
    assert model.HAND_OVER == 2 * tuning["kAhead"]
    assert model.STRIPS == tuning["kThreads"] // model.STRIP
    assert model.VECTORS == tuning["kVectorsElse"]
    assert model.BLOCK_ROW == tuning["kBlockRow"]
    assert (model.FRAMES, model.TOLD_EVERY) == (tuning["kFrames"], tuning["kToldEvery"])
    assert model.SWEEPS_OF_PLACES == tuning["kSweepsOfPlaces"]
    try:
        sass.variant()
    except SystemExit as missing:
        pytest.skip(str(missing))
    kernels = {kernel.name: kernel for source in sass.sources() for kernel in sass.inspect(source, "9.0")}
    for name, sweep in (("logits_kernel<float>", model.ALPHA), ("gradient_kernel<float, float, true>", model.FLOW)):
        (work,) = timeline.sweeps(kernels[name])
        assert (sweep.cycles, sweep.instructions) == pytest.approx((work.cycles, work.instructions), rel=0.1), name
    for dtype, names in {
        "float32": ("logits_kernel<float>", "gradient_kernel<float, float, true>"),
        "bfloat16": ("logits_kernel<bfloat16>", "gradient_kernel<bfloat16, float, true>"),
    }.items():
        for name, rows in zip(names, (model.SCORE, model.GRADIENT)):
            # Of the loops that take exponentials the longer one is for clamped gradients.
            least = min(w.instructions for w in timeline.rows(kernels[name]) if any(i.is_a("MUFU") for i in w.code))
            assert rows.piece[dtype] == pytest.approx(least, rel=0.1), name
