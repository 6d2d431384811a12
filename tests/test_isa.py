"""The CPU kernels on every instruction set, compiled without torch: wide vectors agree in every bit."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCES = [TESTS / "isa_driver.cpp", *sorted((TESTS.parent / "rnnt_loss" / "cpu").glob("*.cpp"))]
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-Wno-psabi"]


def output(*command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """Runs the driver on an instruction set of this machine; None where it has not got that."""
    program = tmp_path_factory.mktemp("isa") / "driver"
    output(os.environ.get("CXX", "g++"), *FLAGS, *SOURCES, "-o", program)

    def run(isa):
        environment = {**os.environ, "RNNT_LOSS_ISA": isa}
        done = subprocess.run([program], env=environment, capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else None

    return run


def test_avx2_and_avx512_agree_in_every_bit_and_baseline_in_the_losses(host):
    if platform.machine() != "x86_64":
        pytest.skip("x86-64 only")
    baseline, avx2, avx512 = map(host, ["baseline", "avx2", "avx512"])
    assert baseline is not None
    if avx2 is None:
        pytest.skip("this machine has no AVX2")
    assert [line.split()[:-1] for line in baseline] == [line.split()[:-1] for line in avx2]
    if avx512 is None:
        pytest.skip("this machine has no AVX-512")
    assert avx2 == avx512


def test_neon_agrees_in_every_bit(host, tmp_path):
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)")
    wanted = host("avx2")
    if wanted is None:
        pytest.skip("this machine has no AVX2 to compare with")
    output(compiler, *FLAGS, "-static", *SOURCES, "-o", tmp_path / "driver")
    assert output(emulator, tmp_path / "driver") == wanted


def test_an_unknown_instruction_set_is_refused(host):
    assert host("sse9") is None
