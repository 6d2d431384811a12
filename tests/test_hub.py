"""The kernel loaded by the real client, in fresh processes with an empty cache: from a folder, and from a hub on the
loopback interface that serves what `make build` made.
"""

import json
import re
import shutil
import sys

import pytest

pytest.importorskip("kernels", reason="the client itself is what is tested")

import build_variant  # noqa: E402, in tools/
from hub.client import BUILD, GET, REPO, ROOT, USE, as_released, built, in_build, printed, python, run, tool  # noqa: E402
from hub.server import Branch, Hub  # noqa: E402

# ---- from a folder


def test_get_kernel_under_local_kernels(tmp_path):
    """Through a link and a path with a space; what is there already needs no trust."""
    link = tmp_path / "a folder"
    link.symlink_to(BUILD)
    code = f"{GET}use(get_kernel(REPO, version=1))\nuse(get_kernel(REPO, version=1, trust_remote_code=True))"
    python(code, home=tmp_path, LOCAL_KERNELS=f"{REPO}={link}", HF_HUB_OFFLINE="1")


def test_get_local_kernel(tmp_path):
    """By the folder of the repository, of the builds, of the variant."""
    code = f"import sys\nfrom pathlib import Path\nfrom kernels import get_local_kernel\n{USE}"
    code += "found = [get_local_kernel(Path(folder)) for folder in sys.argv[1:]]\nuse(found[0])\nprint(len(set(found)))"
    assert python(code, ROOT, BUILD, built(), home=tmp_path, HF_HUB_OFFLINE="1") == "1\n"


def test_kernelize_puts_the_layers_in_place(tmp_path):
    """Functions with the signatures of transformers' losses become ours; the client checks a layer's rules."""
    code = """
import torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

def rnnt_loss(logits, targets, logit_lengths, target_lengths, blank_token_id, reduction="mean_volume"):
    raise NotImplementedError

def tdt_loss(token_logits, duration_logits, targets, logit_lengths, target_lengths, blank_token_id, durations,
             sigma=0.0, reduction="mean"):
    raise NotImplementedError

def kernelized(function, name, mode):
    layer = use_kernel_forward_from_hub(name)(function)
    with use_kernel_mapping({name: {"cpu": LocalLayerRepository(Path(BUILD), layer_name=name)}}):
        return kernelize(layer, mode=mode, device="cpu", use_fallback=False)

tokens, ids = torch.zeros(1, 5, 2, 7), (torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))
loss = kernelized(rnnt_loss, "RNNTLoss", Mode.TRAINING | Mode.TORCH_COMPILE)(tokens, *ids, blank_token_id=0)
assert abs(loss.item() - 10.066022981897778) < 1e-5
loss = kernelized(tdt_loss, "TDTLoss", Mode.TRAINING)(tokens, tokens[..., :2], *ids, blank_token_id=0, durations=[0, 1])
assert loss.isfinite()
"""
    python(f"BUILD = {str(BUILD)!r}\n{code}", home=tmp_path, HF_HUB_OFFLINE="1")


# ---- from a hub


@pytest.fixture(scope="module")
def variant():
    return in_build(built())


def test_get_kernel_downloads_the_variant_and_nothing_else(tmp_path, variant):
    with Hub(REPO, Branch("main", {"README.md": b""}), Branch("v1", as_released(variant))) as hub:
        python(f"{GET}use(get_kernel(REPO, version=1, trust_remote_code=True))", home=tmp_path, HF_ENDPOINT=hub.url)
    downloads = [
        request.split("/", 6)[6] for request in hub.requests if request.startswith(f"GET /kernels/{REPO}/resolve/")
    ]
    assert sorted(downloads) == sorted(variant)


REFUSED = {  # what is asked for, how the client's answer starts
    "untrusted": (
        {"version": 1, "trust_remote_code": False},
        f"ValueError: Kernel repository '{REPO}' is not from a trusted publisher. Set trust_remote_code=True",
    ),
    "no such version": ({"version": 2}, "ValueError: Version 2 not found, available versions: 1"),
    "no such revision": ({"revision": "v2"}, "RevisionNotFoundError: 404"),
    "no variant": (
        {"revision": "elsewhere"},
        f"FileNotFoundError: Cannot find a build variant for this system in {REPO} (revision: elsewhere):\n\n"
        "torch-stable-abi211-cpu-vax-linux: CPU (vax) does not match system CPU",
    ),
    "truncated": ({"revision": "truncated"}, "OSError: Consistency check failed: file should be of size"),
}


@pytest.fixture(scope="module")
def refusals(variant, tmp_path_factory):
    """All of them in one process, which then downloads what was truncated once more."""
    elsewhere = {re.sub(r"cpu-\w+-linux", "cpu-vax-linux", path): content for path, content in variant.items()}
    to_cut = {"the first time"}

    def cut(path, content):
        return content[: len(content) // 2] if path.endswith(".so") and to_cut and to_cut.pop() else content

    v1 = Branch("v1", variant)
    code = f"""
import json, sys
{GET}
def refusal(keywords):
    try:
        return repr(get_kernel(REPO, **{{"trust_remote_code": True, **keywords}}))
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
print(json.dumps([refusal(keywords) for keywords in json.loads(sys.argv[1])]))
use(get_kernel(REPO, revision="truncated", trust_remote_code=True))
"""
    with Hub(REPO, v1, Branch("elsewhere", elsewhere), Branch("truncated", variant, sent=cut)) as hub:
        asked = json.dumps([keywords for keywords, _ in REFUSED.values()])
        answers = python(code, asked, home=tmp_path_factory.mktemp("refusals"), HF_ENDPOINT=hub.url)
        assert not any(v1.commit in request for request in hub.requests), "what is untrusted was asked for"
    return dict(zip(REFUSED, json.loads(answers)))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(refusals, case):
    assert refusals[case].startswith(REFUSED[case][1])


OFFLINE = f"{GET}use(get_kernel(REPO, revision='v1', trust_remote_code=True))"


def test_offline(tmp_path, variant):
    """After a load by the branch's name, under which version=1 is looked up in the cache."""
    with Hub(REPO, Branch("v1", variant)) as hub:
        python(OFFLINE, home=tmp_path, HF_ENDPOINT=hub.url)
    by_version = "\nuse(get_kernel(REPO, version=1, trust_remote_code=True))"
    python(OFFLINE + by_version, home=tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")


def test_offline_with_several_variants(tmp_path, variant):
    """huggingface_hub 2.4.0 refuses a cache without every file of the branch, where kernels 0.17.2 has downloaded one
    variant of it: `hf download` brings the rest."""
    with Hub(REPO, Branch("v1", as_released(variant))) as hub:
        python(OFFLINE, home=tmp_path, HF_ENDPOINT=hub.url)
        done = run(sys.executable, "-c", OFFLINE, home=tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
        assert f"FileNotFoundError: Cannot find a local snapshot for {REPO} (revision: v1)" in done.stderr
        download = tool("hf"), "download", REPO, "--repo-type", "kernel", "--revision", "v1"
        printed(*download, home=tmp_path, HF_ENDPOINT=hub.url)
    python(OFFLINE, home=tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")


class AnotherCommit(build_variant.Variant):
    """The same sources under another id, as of a later release: all but the binding is compiled already."""

    def __init__(self, objects):
        super().__init__("cpu")
        shutil.copytree(self.objects, objects)  # since a build removes those that it did not use
        self.objects = objects
        self.ops = re.sub("_cpu_.*", "_cpu_0000002", self.ops)
        self.general = {**self.general, "version": 2}

    @property
    def folder(self):
        return BUILD / "another-commit" / super().folder.name


def test_two_versions_in_one_process(tmp_path, variant):
    build = AnotherCommit(tmp_path / "objects")
    build.build()
    second = in_build(build.folder)
    shutil.rmtree(build.folder.parent)
    code = f"""
{GET}
first, second = (get_kernel(REPO, version=version, trust_remote_code=True) for version in (1, 2))
assert first is not second and first.ops is not second.ops
assert first.rnnt_loss_from_logits.__globals__ is not second.rnnt_loss_from_logits.__globals__
results = []
for rnnt in (first, second, first):
    use(rnnt)
    logits = (torch.arange(2 * 7 * 4 * 6) % 11 / 4).view(2, 7, 4, 6).requires_grad_()
    ids = torch.tensor([[1, 2, 3], [4, 5, 1]]), torch.tensor([7, 5]), torch.tensor([3, 2])
    loss = torch.compile(rnnt.rnnt_loss_from_logits, backend="aot_eager", fullgraph=True)(logits, *ids)
    loss.backward()
    results.append((loss.item(), logits.grad))
assert all(loss == results[0][0] and torch.equal(grad, results[0][1]) for loss, grad in results)
from kernels import get_loaded_kernels
print(*sorted(loaded.metadata.version for loaded in get_loaded_kernels()))
"""
    with Hub(REPO, Branch("v1", variant), Branch("v2", second)) as hub:
        assert python(code, home=tmp_path, HF_ENDPOINT=hub.url) == "1 2\n"
