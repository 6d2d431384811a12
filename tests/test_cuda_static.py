"""What the compiler proves of the CUDA kernels: `make test` for one architecture, `make check-cuda` for all.

No spill, no local memory and no warning stop at the compiler (tools/sass.py); the rest is read off the machine code.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import abi  # noqa: E402
import load_variant  # noqa: E402
import sass  # noqa: E402
import timeline  # noqa: E402

CAPABILITIES = os.environ.get("RNNT_CHECK_CAPABILITIES", "9.0")  # several, or "all" of build.toml's
SHARED_BYTES = 48 * 1024
REGISTERS = 65536  # of a multiprocessor
LOGITS = {  # kernels that read rows of logits, by source
    "forward": r"logits_kernel<\w+>",
    "backward": r"gradient_kernel<\w+, \w+, true>",
}
SWEEPS = [  # source, kernels, how many sweeps each has
    ("forward", r"logits_kernel<\w+>", 1),
    ("forward", r"lattice_kernel<\w+>", 1),
    ("backward", r"gradient_kernel<(?!\w+, double, false)\w+, \w+, \w+>|gradient_kernel<double, double, false>", 1),
    ("backward", r"gradient_kernel<(?!double)\w+, double, false>", 0),  # its posteriors are from alpha and beta
    ("alpha_beta", r"alpha_beta_kernel", 2),
]


@pytest.fixture(scope="session", autouse=True)
def nvcc():
    try:
        return sass.variant().compiler
    except SystemExit as missing:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration has to check this: {missing}", pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kernels(nvcc):
    return sass.inspect_all(sass.variant().capabilities() if CAPABILITIES == "all" else CAPABILITIES.split())


def of(kernels, source, pattern):
    found = [kernel for kernel in kernels if kernel.source == source and re.fullmatch(pattern, kernel.name)]
    assert found, f"there is no {pattern} in {source}, only {sorted({kernel.name for kernel in kernels})}"
    return found


def test_the_table(kernels, capsys):
    with capsys.disabled():
        print(f"\n{sass.table(kernels)}")
    assert {kernel.source for kernel in kernels} == {source.stem for source in sass.sources()}


def test_registers_hold_everything(kernels):
    for kernel in kernels:
        assert kernel.counts["LDL"] == kernel.counts["STL"] == 0, str(kernel)
        assert kernel.usage["STACK"] == kernel.usage["LOCAL"] == 0, str(kernel)


def test_shared_memory_needs_no_opt_in(kernels):
    for kernel in kernels:
        assert kernel.usage["SHARED"] <= SHARED_BYTES, str(kernel)


@pytest.mark.parametrize("source", LOGITS)
def test_rows_are_read_sixteen_bytes_at_a_time(kernels, source):
    """As many loads as tuning.h counts on are under way before the first is waited for."""
    for kernel in of(kernels, source, LOGITS[source]):
        wanted = sass.tuning()["kVectors" if "double" in kernel.name else "kVectorsElse"]
        most = max(map(timeline.loads_under_way, timeline.rows(kernel)))
        assert most >= wanted, f"{kernel}: {most} of {wanted}"


def test_gradients_are_written_sixteen_bytes_at_a_time(kernels):
    for kernel in of(kernels, "backward", r"gradient_kernel<.*>"):
        written = [work for work in timeline.rows(kernel) if any(i.is_a("STG.E.128") for i in work.code)]
        assert len(written) == (3 if kernel.name.endswith("true>") else 1), str(kernel)  # zeros, clamped or not


@pytest.mark.parametrize("source, name", [("forward", "logits_kernel"), ("backward", "gradient_kernel")])
def test_as_many_blocks_fit_as_the_design_counts_on(kernels, source, name):
    tuning = sass.tuning()
    for kernel in of(kernels, source, rf"{name}<.*>"):
        assert kernel.usage["REG"] <= REGISTERS // (tuning["kThreads"] * tuning["kBlocks"]), str(kernel)


@pytest.mark.parametrize("source, pattern, count", SWEEPS)
def test_sweeps_are_found(kernels, source, pattern, count):
    for kernel in of(kernels, source, pattern):
        assert len(kernel.sweeps) == count, str(kernel)


def test_sweeps_go_without_block_barriers(kernels):
    for kernel in kernels:
        for sweep, work in zip(kernel.sweeps, timeline.sweeps(kernel)):
            assert sweep.count("BAR") == 0, str(kernel)
            shuffles = sum(i.is_a("SHFL") for i in work.code)
            assert shuffles and shuffles % work.units == 0, f"{kernel}: {shuffles} in {work.units} steps"


# ---- the variant: make build-cuda, against a torch without CUDA


@pytest.fixture(scope="session")
def variant(nvcc):
    """Its folder, built anew as far as sources have changed."""
    subprocess.run([sys.executable, ROOT / "tools" / "build_variant.py", "cuda"], check=True)
    return load_variant.folder_of("cuda")


@pytest.fixture(scope="session")
def library(variant):
    (found,) = variant.glob("*.abi3.so")
    return found


def test_the_variant_is_laid_out_as_the_hubs(variant):
    assert re.fullmatch(r"torch-stable-abi211-cu130-\w+-linux", variant.name)
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["backend"] == {"type": "cuda", "archs": sass.variant().capabilities()}
    assert re.fullmatch(r"_rnnt_loss_cuda_[0-9a-f]{7}(_dirty)?", metadata["id"])


def test_the_library_needs_only_the_stable_abi(library):
    assert abi.unstable(library) == []
    # What only a torch with CUDA has, it has to be loaded without.
    of_cuda = [kind for symbol, kind in abi.undefined(library).items() if re.search(r"cuda_(stream|guard)", symbol)]
    assert of_cuda in (["WEAK"], ["WEAK", "WEAK"])
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)
    assert "libtorch.so" in needed and not any("cuda" in name for name in needed)


def test_the_library_runs_on_the_systems_and_pythons_of_the_hub(library):
    """As far as it can be seen here: see test_package.py."""
    assert abi.not_of_python(library) == []
    assert set(abi.new_to_manylinux(library)) <= abi.FROM_HEADERS


def test_the_library_has_code_for_every_capability(library):
    listed = subprocess.run([sass.cuobjdump(), "-lelf", library], capture_output=True, text=True, check=True).stdout
    assert {f"sm_{c.replace('.', '')}" for c in sass.variant().capabilities()} == set(re.findall(r"sm_\d+", listed))


LOADED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from load_variant import folder_of, load
cpu, cuda = (load(folder_of(backend)) for backend in ("cpu", "cuda"))
assert load(folder_of("cuda")) is cuda and cuda.ops is not cpu.ops
for name in ("loss_forward", "loss_backward", "loss_backward_", "rnnt_forward", "rnnt_backward"):
    schemas = [str(getattr(kernel.ops, name).default._schema).split("::", 1)[1] for kernel in (cpu, cuda)]
    assert schemas[0] == schemas[1], schemas
logits, labels = torch.randn(2, 7, 4, 6), torch.randint(1, 6, (2, 3))
results = []
for kernel in (cpu, cuda):
    leaf = logits.clone().requires_grad_()
    loss = kernel.rnnt_loss_from_logits(leaf, labels, torch.tensor([7, 5]), torch.tensor([3, 2]), reduction="none")
    loss.sum().backward()
    results.append((loss.detach(), leaf.grad))
assert all(torch.equal(one, other) for one, other in zip(*results)), results
print("the same")
"""


def test_the_variant_loads_by_its_path_with_the_cpus_schemas_and_serves_cpu_tensors(variant):
    done = subprocess.run([sys.executable, "-c", LOADED, ROOT / "tools"], capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr


# ---- the tools themselves

LOOPS = """
__global__ void barrier_in_the_sweep(float* out, int n) {
  __shared__ float all[64];
  float x = out[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    x = x * 0.5f + __shfl_up_sync(~0u, x, 1);
    all[threadIdx.x] = x;
    __syncthreads();
    x += all[63 - threadIdx.x];
  }
  out[threadIdx.x] = x;
}
__global__ void barrier_around_the_sweep(float* out, int n) {
  for (int panel = 0; panel < n; panel++) {
    float x = out[threadIdx.x];
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < n; i++) x = x * 0.5f + __shfl_up_sync(~0u, x, 1);
    out[threadIdx.x ^ 32] = x;
  }
}
__global__ void vectors(float4* out, const float4* in) { out[threadIdx.x] = in[threadIdx.x]; }
"""
ROWS = """
__global__ void together(const float4* in, float* out, int n) {
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < n; k += 4) {
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = in[(k + i) * 32 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 4; i++) sum += x[i].x * x[i].y * x[i].z * x[i].w;
  }
  out[threadIdx.x] = sum;
}
__global__ void one_by_one(const float4* in, float* out, int n) {
  int place = threadIdx.x;
#pragma unroll 1
  for (int k = 0; k < n; k++) {
    const float4 x = in[place];
    place = (int)(x.x * x.y * x.z * x.w);
  }
  out[threadIdx.x] = place;
}
__global__ void aligned_or_not(const float* in, float* out, int n) {
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < n; k++, in += 7) {
    float4 x;
    if (size_t(in) % 16 == 0)
      x = *reinterpret_cast<const float4*>(in);
    else
      for (int i = 0; i < 4; i++) (&x.x)[i] = k + i < n ? in[i] : 0;
    sum += x.x * x.y * x.z * x.w;
  }
  out[threadIdx.x] = sum;
}
"""
REFUSED = {
    "Local memory": """
__global__ void local_array(float* out, const int* index) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = out[i];
  for (int i = 0; i < 64; i++) a[index[i] & 63] += 1;
  for (int i = 0; i < 64; i++) out[i] = a[i];
}""",
    "spilled": """
__global__ void __launch_bounds__(1024, 2) spills(const float* in, float* out, int n) {
  float a[48];
#pragma unroll
  for (int i = 0; i < 48; i++) a[i] = in[threadIdx.x + i * 1024];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < 48; i++) a[i] = a[i] * a[(i * 7 + 5) % 48] + in[k];
  }
#pragma unroll
  for (int i = 0; i < 48; i++) out[threadIdx.x + i * 1024] = a[i];
}""",
    "never referenced": "__global__ void unused(float* out) { int n = 3; out[0] = 1; }",
}


@pytest.fixture
def inspected(tmp_path, monkeypatch):
    monkeypatch.setattr(sass, "CACHE", tmp_path / "cache")

    def inspect(text):
        source = tmp_path / "sample.cu"
        source.write_text(text)
        return {kernel.name: kernel for kernel in sass.inspect(source, "9.0")}

    return inspect


@pytest.mark.parametrize("complaint", REFUSED)
def test_the_compiler_refuses(inspected, complaint):
    with pytest.raises(sass.CompileError, match=complaint):
        inspected(REFUSED[complaint])


def test_what_is_counted(inspected):
    found = inspected(LOOPS)
    (sweep,) = found["barrier_in_the_sweep"].sweeps
    assert sweep.count("BAR") == 1
    around = found["barrier_around_the_sweep"]
    (sweep,) = around.sweeps
    assert sweep.count("BAR") == 0 and around.loops[-1].count("BAR") >= 1
    assert found["vectors"].sweeps == []
    assert found["vectors"].counts["LDG.E.128"] == found["vectors"].counts["STG.E.128"] == 1
    assert sass.table(list(found.values())).count("\n") == 4


def test_the_timeline_waits_for_a_shuffle(inspected):
    """x = x / 2 + shuffle(x) takes a shuffle and a multiply-add a step, and little else."""
    (loop,) = inspected(LOOPS)["barrier_around_the_sweep"].sweeps
    assert timeline.LATENCY["SHFL"] < timeline.cycles_of(loop.body) < timeline.LATENCY["SHFL"] + 25


def test_the_timeline_knows_which_loads_are_under_way_together(inspected):
    found = inspected(ROWS)
    (together,), (one_by_one,) = (timeline.rows(found[name]) for name in ("together", "one_by_one"))
    assert (timeline.loads_under_way(together), together.units) == (4, 4)
    assert timeline.loads_under_way(one_by_one) == 1


def test_the_timeline_leaves_out_what_is_unusual(inspected):
    (work,) = timeline.rows(inspected(ROWS)["aligned_or_not"])
    assert {i.opcode for i in work.code if i.is_a("LDG")} == {"LDG.E.128"}


def test_a_second_look_compiles_nothing(inspected, monkeypatch):
    found = inspected(LOOPS)
    run = subprocess.run

    def without_nvcc(command, **keywords):
        assert "-cubin" not in command
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", without_nvcc)
    assert inspected(LOOPS) == found
