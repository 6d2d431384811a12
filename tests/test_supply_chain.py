"""SECURITY.md's table: what the package loads, runs, writes and sends besides computing, which is nothing.

tools/release_check.py's `safety` reads its sources; here it is imported and run under an audit hook.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import release_check  # noqa: E402
from abi import undefined  # noqa: E402
from load_variant import folder_of  # noqa: E402

WATCH = """
import json, sys, sysconfig
from pathlib import Path

FORBIDDEN = tuple(
    "ctypes. ftplib. http. os.exec os.fork os.mkdir os.posix_spawn os.putenv os.remove os.rename os.spawn os.system"
    " pickle. shutil. smtplib. socket. subprocess. tempfile. urllib.".split()
)
OWN = [Path(folder) for folder in (*sys.argv[1:], sysconfig.get_path("stdlib"))]
seen = []

def watch(event, arguments):
    if event == "open":  # of a path: mode and flags; reading is what an import does
        forbidden = set(arguments[1] or "") & set("wax+") or arguments[1] is None and arguments[2] & 3
    elif event == "import":  # with the file where it is native code
        forbidden = arguments[1] and not any(folder in Path(arguments[1]).parents for folder in OWN)
    else:
        forbidden = event.startswith(FORBIDDEN)
    if forbidden:
        seen.append(f"{event} {arguments}")
        raise PermissionError(seen[-1])
"""
USE = """
import torch
sys.path.insert(0, "tools")
from load_variant import folder_of, load
OWN.append(Path(torch.__file__).parent)
sys.addaudithook(watch)
rnnt = load(folder_of("cpu"))
logits = torch.zeros(1, 5, 2, 7, requires_grad=True)
ids = torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1])
rnnt.rnnt_loss_from_logits(logits, *ids).backward()
rnnt.tdt_loss(logits, logits[..., :2], *ids, durations=[0, 1]).backward()
rnnt.alignment.align(logits.detach(), *ids)
"""
CONTROLS = {
    "a connection": ("import socket", "socket.socket().connect(('127.0.0.1', 9))", "socket"),
    "a download": ("import urllib.request", "urllib.request.urlopen('http://127.0.0.1:9')", "urllib"),
    "a process": ("import subprocess", "subprocess.run(['true'])", "subprocess"),
    "a shell": ("import os", "os.system('true')", "os.system"),
    "a written file": ("", "open('written', 'w')", "open"),
    "a written descriptor": ("import os", "os.open('written', os.O_WRONLY | os.O_CREAT)", "open"),
    "a pickled class": ("import pickle; data = pickle.dumps(Path)", "pickle.loads(data)", "pickle"),
    "a library": ("import ctypes", "ctypes.CDLL(None)", "ctypes"),
    "another package's native code": ("", "import markupsafe._speedups", "import"),
}


def seen(code, folder, cwd=ROOT):
    """What the code did that is forbidden, and its error if it had one."""
    command = [
        sys.executable,
        "-c",
        f"{WATCH}\ntry:\n    exec({code!r})\nfinally:\n    print(json.dumps(seen))",
        folder,
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    return json.loads(done.stdout), done.stderr


def test_the_package_computes_and_does_nothing_else():
    assert seen(USE, folder_of("cpu")) == ([], "")


@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_forbidden_is_seen(control, tmp_path):
    prepare, act, event = CONTROLS[control]
    events, error = seen(f"{prepare}\nsys.addaudithook(watch)\n{act}", tmp_path, tmp_path)
    assert events and events[0].startswith(event) and "PermissionError" in error
    assert not (tmp_path / "written").exists()


def test_the_sources_name_nothing_that_could():
    assert list(release_check.safety(ROOT)) == []


def test_the_native_code_asks_the_system_for_no_more():
    """Nothing of the C library that opens a file or a connection, or starts or loads a program."""
    (library,) = folder_of("cpu").glob("*.so")
    asked = {symbol.partition("(")[0] for symbol in undefined(library)}
    assert "memcpy" in asked or "memset" in asked
    calls = "accept bind connect dlopen execl execv execve fopen fork open open64 openat popen posix_spawn send socket"
    assert not asked & {*calls.split(), "system"}
