"""The workflows are valid, and each of their commands is run here, or held against what it is a command of."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = {f"{name}: {key}": job for name, workflow in WORKFLOWS.items() for key, job in workflow["jobs"].items()}
STEPS = {f"{name} {i}": (job, step) for name, job in JOBS.items() for i, step in enumerate(job["steps"])}
RUNS = {name: (job, step["run"]) for name, (job, step) in STEPS.items() if "run" in step}
PINS = dict(line.split("==") for line in (ROOT / "requirements-dev.txt").read_text().splitlines() if "==" in line)
BUILD_TOML = tomllib.loads((ROOT / "build.toml").read_text())

# kernel-builder can't run here. Its outputs for a kernel and its commands' options are those of this commit: after
# `nix flake update`, look them up again (nix-builder/lib/gen-flake-outputs.nix, kernel-builder/src/main.rs).
KERNEL_BUILDER = "8ac69fc542a4306eade0759ef7c45b4f2ae57df0"
OUTPUTS = r"bundle|ci-test|ciTests\.torch213-cxx11-(cpu|cu126|cu130|cu132)-(x86_64|aarch64)-linux"
OPTIONS = {"check-abi": {"--torch-stable-abi"}, "check-builds": set(), "upload": set()}


def run(*command, cwd=ROOT):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def matrices(job) -> list[dict]:
    """The jobs that a matrix stands for."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    include, jobs = matrix.pop("include", []), [{}]
    for key, values in matrix.items():
        jobs = [{**one, key: value} for one in jobs for value in values]
    for more in include:  # into the jobs that it contradicts in none of the matrix's keys, else a job of its own
        into = [one for one in jobs if one and all(one.get(key) == more[key] for key in matrix if key in more)]
        for one in into:
            one.update(more)
        jobs += [] if into else [dict(more)]
    return [one for one in jobs if one] or [{}]


def filled(text, values) -> str:
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: str(values[match[1]]), text)


def commands(job, text) -> list[list[str]]:
    """Each command for each job of the matrix, without the loops around them."""
    lines = [line for values in matrices(job) for line in filled(text, values).splitlines()]
    found = [shlex.split(line) for line in lines if not re.match(r"\s*(for .*; do|done)$", line)]
    return [command for i, command in enumerate(found) if command and command not in found[:i]]


def test_the_schema_of_github_takes_them():
    check = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    done = run(*check, *(ROOT / ".github" / "workflows" / name for name in WORKFLOWS))
    assert done.returncode == 0 and set(WORKFLOWS) == {"release.yml", "tests.yml"}, done.stdout + done.stderr


@pytest.mark.parametrize("name", STEPS)
def test_actions_are_pinned_and_what_they_are_given_is_there(name):
    job, step = STEPS[name]
    assert ("uses" in step) != ("run" in step)
    if "uses" in step:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
    for key in re.findall(r"\$\{\{ matrix\.(\w+) \}\}", str(step)):
        assert all(key in values for values in matrices(job)), key


@pytest.mark.parametrize("name", JOBS)
def test_a_job_may_do_no_more_than_it_needs(name):
    workflow = WORKFLOWS[name.partition(":")[0]]
    permissions, job = workflow["permissions"] | JOBS[name].get("permissions", {}), JOBS[name]
    publishes = "secrets." in str(job)
    assert permissions["contents"] == "read" and ("id-token" in permissions) == publishes
    assert set(job.get("needs", [])) <= set(workflow["jobs"]) and job["timeout-minutes"] <= 360
    if publishes:
        assert job["if"] == "github.ref_type == 'tag'" and set(job["needs"]) == {"build", "try", "check"}
        assert job["environment"]


def test_the_tag_is_that_of_a_release():
    (pattern,) = WORKFLOWS["release.yml"][True]["push"]["tags"]  # yaml takes the key `on` for true
    assert re.fullmatch(pattern, "v1.0") and re.fullmatch(pattern, "v10.12") and not re.fullmatch(pattern, "v1")


def test_the_oldest_and_the_newest_torch_are_tried():
    tried = {values["torch"] for values in matrices(JOBS["release.yml: try"])}
    assert tried == {f"{BUILD_TOML['torch']['stable-abi']}.0", PINS["torch"]}
    machines = [(one["system"], one["runner"].endswith("-arm")) for one in matrices(JOBS["release.yml: try"])]
    assert sorted(machines) == sorted(2 * [("x86_64-linux", False), ("aarch64-linux", True)])


@pytest.mark.parametrize("name", RUNS)
def test_the_commands(name, tmp_path):
    """No command but those that a function below knows how to hold against something."""
    job, text = RUNS[name]
    assert run("bash", "-n", "-c", text).returncode == 0
    for command in commands(job, text):
        words = " ".join(command)
        (check,) = [check for start, check in CHECKS.items() if words.startswith(start)] or [None]
        assert check is not None, f"nothing here checks {words!r}"
        check(command, tmp_path)


def make(command, folder):
    done = run("make", "--dry-run", "--old-file=.venv/ready", *command[1:])
    assert done.returncode == 0 and done.stdout, done.stderr


def pytest_selects(command, folder):
    """Tests are selected in the files that have the marker: those without take long to import."""
    tests, marker = command[3], command[command.index("-m", 3) + 1]
    marked = [path for path in (ROOT / tests).glob("test_*.py") if f"mark.{marker}" in path.read_text()]
    assert marked, f"no test in {tests} is marked {marker}"
    done = run(sys.executable, "-m", "pytest", *marked, *command[4:], "--collect-only", "-q", "-p", "no:cacheprovider")
    selected = re.findall(r"^tests/test_\w+\.py: (\d+)$", done.stdout, re.M)
    assert done.returncode == 0 and sum(map(int, selected)) > 500, done.stdout + done.stderr


def pip(command, folder):
    for requirement in command[4:]:
        package, _, version = requirement.partition("==")
        assert metadata.version(package)
        if package != "torch":  # the releases that users have
            assert version in ("", PINS.get(package, metadata.version(package)))


def sigstore(command, folder):
    usage = run(sys.executable, *command[1:4], "--help")
    assert usage.returncode == 0 and all(word in usage.stdout for word in command if word.startswith("--"))


def nix(command, folder):
    (target,) = [word for word in command if "#" in word]
    if command[1] == "run" and target == "kernel-builder#kernel-builder":
        assert command[2:4] == ["--inputs-from", "."] and KERNEL_BUILDER in (ROOT / "flake.lock").read_text()
        subcommand, *rest = command[command.index("--") + 1 :]
        assert {word for word in rest if word.startswith("--")} == OPTIONS[subcommand] and rest[-1] == "."
        if subcommand == "check-abi":
            assert rest[1] == BUILD_TOML["torch"]["stable-abi"]
    else:
        assert re.fullmatch(rf"\.#({OUTPUTS})", target), target


def copies_a_result(command, folder):
    store = folder / "store" / "torch-cpu"
    store.mkdir(parents=True)
    (store / "metadata.json").write_text("{}")
    (store / "metadata.json").chmod(0o444)
    (folder / "result").symlink_to(store.parent)
    assert run(*command, cwd=folder).returncode == 0
    copy = folder / "build" / "torch-cpu" / "metadata.json"
    assert copy.read_text() == "{}" and copy.stat().st_mode & 0o200 and not copy.parent.is_symlink()


def apt(command, folder):
    if shutil.which("apt-cache") is not None:
        assert all(run("apt-cache", "show", package).stdout for package in command[4:])


CHECKS = {
    "make ": make,
    ".venv/bin/python -m pytest ": pytest_selects,
    "python -m pytest ": pytest_selects,
    "python -m pip install ": pip,
    "python -m sigstore sign ": sigstore,
    "nix build ": nix,
    "nix run ": nix,
    "cp ": copies_a_result,
    "sudo apt-get install --yes ": apt,
}


@pytest.mark.parametrize(
    "command",
    [
        "make nothing",
        "python -m pytest tests -m slow",
        "python -m pytest test -m kernels_ci",
        "python -m pip install kernels==0.1",
        "python -m sigstore sign --bundles",
        "nix build .#bundles",
        "nix run --inputs-from . kernel-builder#kernel-builder -- check-abi --torch-stable-abi 2.10 .",
        "nix run --inputs-from . kernel-builder#kernel-builder -- upload --quietly .",
        "cp --recursive --dereference result build",
    ],
)
def test_a_wrong_command_is_found(command, tmp_path):
    (check,) = [check for start, check in CHECKS.items() if command.startswith(start)]
    with pytest.raises((AssertionError, KeyError)):
        check(command.split(), tmp_path)
