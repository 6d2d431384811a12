"""The emulator of CUDA on kernels of its own: the right ones pass and each fault is found, in any order of threads."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SELFTEST = sorted((ROOT / "tests" / "emulator" / "selftest").glob("*.cu"))
sys.path.insert(0, str(ROOT / "tools"))

from build_variant import VARIANTS  # noqa: E402

FORWARD, REVERSE, RANDOM = range(3)
RESIDENT = 33  # blocks
ORDERS = [
    *[(FORWARD, 1, 0), (REVERSE, 1, 0), *[(RANDOM, seed, 0) for seed in range(5)]],
    *[(RANDOM, 5, 3), (RANDOM, 6, 20)],  # with threads interrupted at one of so many accesses
]
RIGHT = {
    "aligned_pieces",
    "barrier",
    "blocks_that_count",
    "blocks_that_tell",
    "chain_of_blocks",
    "phases",
    "ring",
    "scratch_that_the_host_completed",
    "scratch_that_was_written",
    "shuffles_and_votes",
    "warp_barrier",
}
FAULTS = {
    "another_blocks_shared": "read of unwritten memory: shared memory",
    "blocks_without_a_place": "deadlock: .* 33 blocks are resident, 1 more have no place",
    "completed_too_early": "race",
    "count_not_waited_for": "race|read of unwritten memory",
    "deadlock_of_a_phase": "deadlock: block 0: 1 threads poll a flag, 127 threads wait in __syncthreads",
    "deadlock_of_barriers": "deadlock: block 0: 64 threads wait in __syncthreads .*, 64 threads wait in __syncwarp",
    "element_left_out": "output not written: out, 4 bytes of 512, the first at byte 308",
    "exited_lanes": "exited lanes: __shfl_up_sync",
    "exited_threads": "exited threads: __syncthreads",
    "half_a_warp_barrier": "race",
    "mask_without_its_caller": "mask without its caller",
    "misaligned_pieces": "misaligned access",
    "missing_barrier": "race",
    "missing_warp_barrier": "race",
    "no_blocks": "invalid launch of 0 x 1 x 1 blocks",
    "phase_not_waited_for": "race|read of unwritten memory",
    "read_before_the_start": "out-of-bounds read: 4 bytes before in",
    "read_behind_the_end": "out-of-bounds read: 0 bytes behind the end of in",
    "room_not_waited_for": "race|skipped phase",
    "scratch_that_was_not_written": "read of unwritten memory: scratch",
    "shuffle_from_outside_the_mask": "shuffle from a lane that takes no part: lane 15 from 16",
    "signed_overflow": "integer overflow",
    "told_too_early": "race|read of unwritten memory",
    "too_large_a_block": "invalid launch of .* blocks of 1056 x 1 x 1 threads",
    "two_blocks_one_output": "race \\(write after write\\): out",
    "unwritten_shared": "read of unwritten memory: shared memory",
    "write_before_the_start": "out-of-bounds write: 4 bytes before out",
    "write_behind_the_end": "out-of-bounds write: 0 bytes behind the end of out",
    "write_to_an_input": "write to an input: in",
}
SEEN_BY_RESULTS = {"missing_barrier", "missing_warp_barrier"}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    def build(kind):
        variant = VARIANTS[kind](kind)
        variant.objects.mkdir(parents=True, exist_ok=True)
        folder = tmp_path_factory.mktemp(kind)
        objects = [variant.compile(source) for source in variant.emulator_sources()]  # mostly there already
        for source in SELFTEST:
            objects.append(folder / f"{source.stem}.o")
            subprocess.run([*variant.command(source), "-c", source, "-o", objects[-1]], check=True)
        library = folder / "libselftest.so"
        subprocess.run([variant.cxx()[0], "-shared", "-Wl,-z,defs", *objects, "-o", library], check=True)
        return ctypes.CDLL(str(library))

    return build


@pytest.fixture(scope="module")
def checked(build):
    return build("emulated-check")


@pytest.fixture(scope="module")
def plain(build):
    return build("emulated")


def report(library, name, order):
    library.emulator_configure(*order, RESIDENT)
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return function().decode()


def test_every_kernel_of_the_selftest_is_judged():
    exported = re.findall(r"^EXPORT const char\* (\w+)\(", "".join(path.read_text() for path in SELFTEST), re.M)
    assert sorted(exported) == sorted(RIGHT | FAULTS.keys())


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_what_is_right_passes(checked, plain, name, order):
    assert report(plain, name, order) == ""
    assert report(checked, name, order) == ""


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(checked, name, order):
    found = report(checked, name, order)
    assert re.search(FAULTS[name], found), found


def test_a_report_says_how_to_repeat_it(checked):
    found = report(checked, "missing_barrier", (RANDOM, 1234, 0))
    assert found == report(checked, "missing_barrier", (RANDOM, 1234, 0))
    assert "random order, seed 1234" in found
    assert re.search(r"ordering\.cu:\d+, by thread \d+ of block 0; the other at ordering\.cu:\d+", found), found


@pytest.mark.parametrize("name", sorted(SEEN_BY_RESULTS))
def test_a_missing_barrier_shows_in_the_results_of_every_random_order(plain, name):
    for seed in range(50):
        assert report(plain, name, (RANDOM, seed, 0)) == "wrong result: mirror"


def test_orders_differ_from_seed_to_seed(checked):
    first = {report(checked, "write_to_an_input", (RANDOM, seed, 0)).split(", by ")[1] for seed in range(20)}
    assert len(first) > 10
