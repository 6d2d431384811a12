"""The client's commands, of a hub on the loopback interface. `kernels benchmark .` runs in test_benchmarks.py."""

import json
import sys

import pytest

pytest.importorskip("kernels", reason="the client itself is what is tested")

from hub.client import REPO, ROOT, USE, as_released, built, in_build, printed, python, run, tool  # noqa: E402
from hub.server import Branch, Hub  # noqa: E402
from kernels._rust import Digest, DigestAlgorithm  # noqa: E402


def test_info_and_versions(tmp_path):
    released = as_released(in_build(built()))
    with Hub(REPO, Branch("main", {"README.md": b""}), Branch("v1", released)) as hub:
        info = json.loads(printed(tool("kernels"), "info", REPO, "--json", home=tmp_path, HF_ENDPOINT=hub.url))
        versions = printed(tool("kernels"), "versions", REPO, home=tmp_path, HF_ENDPOINT=hub.url)
    assert (info["name"], info["version"], info["revision"]) == ("rnnt-loss", 1, "v1")
    assert info["license"] == "Apache-2.0" and info["backends"] == ["cpu", "cuda"] and info["python_depends"] == []
    assert versions.startswith("Version 1:\n") and f"{built().name} compatible, preferred" in versions
    local = json.loads(printed(tool("kernels"), "info", ROOT, "--json", home=tmp_path, HF_HUB_OFFLINE="1"))
    assert (local["name"], local["version"]) == ("rnnt-loss", 1)


def test_lock_download_and_load(tmp_path):
    """A project that pins the kernel. `kernels lock` takes no word for trust: of other publishers it locks nothing."""
    (tmp_path / "pyproject.toml").write_text(f'[tool.kernels.dependencies]\n"{REPO}" = 1\n')
    v1, lockfile = Branch("v1", in_build(built())), tmp_path / "kernels.lock"
    with Hub(REPO, v1) as hub:
        refused = run(tool("kernels"), "lock", ".", home=tmp_path, HF_ENDPOINT=hub.url)
        assert "is not from a trusted publisher" in refused.stderr and not lockfile.exists()
        hub.trusted = True
        printed(tool("kernels"), "lock", ".", home=tmp_path, HF_ENDPOINT=hub.url)
        assert v1.commit in lockfile.read_text()
        printed(tool("kernels"), "download", ".", home=tmp_path, HF_ENDPOINT=hub.url)
    load = f"from pathlib import Path\nfrom kernels import load_kernel\n{USE}"
    load += f"use(load_kernel({REPO!r}, lockfile=Path('kernels.lock')))"
    python(load, home=tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")


# Signatures need sigstore's servers: here every one counts as good, and what comes after them is the client's own.
VERIFY = f"""
import sys
from types import SimpleNamespace
import kernels.cli, kernels.verify
kernels.verify.Bundle = SimpleNamespace(from_json=lambda content: None)
kernels.verify.Verifier = SimpleNamespace(production=lambda: SimpleNamespace(verify_artifact=lambda *all: None))
sys.argv = ["kernels", "verify-signature", {REPO!r}, "1"]
kernels.cli.main()
"""


def signed(folder):
    """The variant with the digests of its files, and a signature."""
    metadata = json.loads((folder / "metadata.json").read_bytes())
    digests = Digest.hash_variant(DigestAlgorithm.SHA256, folder).files
    metadata["digest"] = {"algorithm": "sha256", "files": digests}
    start = f"build/{folder.name}/metadata.json"
    return {**in_build(folder), start: json.dumps(metadata).encode(), f"{start}.sigstore": b"{}"}, digests


@pytest.mark.parametrize("changed", [False, True])
def test_digests(tmp_path, changed):
    """get_kernel of 0.17.2 compares sizes alone. These commands name the file that was changed on its way: `hf cache
    verify` by the hub's digests, `kernels verify-signature` by those in metadata.json, which the signature covers."""
    files, digests = signed(built())

    def sent(path, content):
        return content[:-1] + b" " if changed and path.endswith("/loss.py") else content

    with Hub(REPO, Branch("v1", files, sent), trusted=True) as hub:
        verified = run(sys.executable, "-c", VERIFY, home=tmp_path, HF_ENDPOINT=hub.url)
        cached = REPO, "--repo-type", "kernel", "--revision", hub.branches["v1"].commit
        compared = run(tool("hf"), "cache", "verify", *cached, home=tmp_path, HF_ENDPOINT=hub.url)
    assert (verified.returncode, compared.returncode) == (changed, changed), verified.stderr + compared.stderr
    if changed:
        wrong = f"File hash mismatch for loss.py: expected: {digests['loss.py']}, got: "
        assert verified.stdout.startswith(f"❌ {built().name}: kernel integrity check failed\n{wrong}")
        assert f"build/{built().name}/loss.py" in compared.stdout + compared.stderr
    else:
        assert verified.stdout == f"✅ {built().name}: kernel metadata is correctly signed\n"


def test_an_unsigned_kernel_is_said_to_be(tmp_path):
    with Hub(REPO, Branch("v1", in_build(built())), trusted=True) as hub:
        said = run(tool("kernels"), "verify-signature", REPO, "1", home=tmp_path, HF_ENDPOINT=hub.url)
    assert said.stdout == f"❌ {built().name}: cannot verify kernel integrity, signature not found\n"
    assert said.returncode == 1
