"""One CPU variant for every torch from 2.11, the stable ABI's, and every Python: the bits that it computes here.

RNNT_OTHER_PYTHONS names interpreters, separated by ":", whose torch is 2.11 or newer; they need nothing else.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OTHERS = os.environ.get("RNNT_OTHER_PYTHONS", "").split(":")
# Numbers that any torch makes alike: neither a generator nor a function of the mathematics library is asked for them.
SMOKE = """
import json, sys
import torch
sys.path.insert(0, sys.argv[1])
from load_variant import folder_of, load
rnnt = load(folder_of("cpu"))
torch.set_num_threads(2)

def numbers(*shape, dtype=torch.float32):
    x = torch.arange(torch.Size(shape).numel()) * 7919 % 1009
    return ((x - 504) / 128).view(shape).to(dtype).requires_grad_()

labels, input_lengths, label_lengths = torch.tensor([[1, 2, 3], [4, 5, 1]]), torch.tensor([9, 6]), torch.tensor([3, 2])
ids = labels, input_lengths, label_lengths
results = {}

def record(name, loss, *leaves):
    grads = torch.autograd.grad(loss.sum(), leaves)
    results[name] = [x.detach().double().flatten().tolist() for x in (loss, *grads)]

for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    for topology in ("standard", "modified", "constrained"):
        x = numbers(2, 9, 4, 37, dtype=dtype)
        keywords = dict(reduction="none", topology=topology, fastemit_lambda=0.25)
        record(f"logits {dtype} {topology}", rnnt.rnnt_loss_from_logits(x, *ids, **keywords), x)
        record(f"log-probs {dtype} {topology}", rnnt.rnnt_loss(x, *ids, **keywords), x)
x = numbers(2, 9, 4, 37)
record("hat, clamped", rnnt.rnnt_loss_from_logits(x, *ids, normalizer="hat", clamp=0.125), x)
record("packed", rnnt.rnnt_loss_packed(rnnt.pack_rows(x, *ids[1:]), *ids), x)
durations = numbers(2, 9, 4, 3)
record("tdt", rnnt.tdt_loss(x, durations, *ids, durations=[0, 1, 2], sigma=0.0625), x, durations)
record("multi-blank", rnnt.multiblank_rnnt_loss(x, *ids, big_blank_durations=[2, 4], blank=36), x)
record("layer", rnnt.layers.RNNTLoss()(x, *ids, blank_token_id=0), x)
posteriors = rnnt.alignment.posteriors(x, *ids)
results["posteriors"] = [p.detach().double().flatten().tolist() for p in posteriors]
compiled = torch.compile(rnnt.rnnt_loss_from_logits, backend="aot_eager", fullgraph=True)
record("compiled", compiled(x, *ids), x)
try:
    rnnt.rnnt_loss_from_logits(x, labels + 40, *ids[1:])
except RuntimeError as error:
    results["a bad label"] = str(error).split("\\n")[0]
print(json.dumps({"torch": torch.__version__, "python": sys.version, "results": results}))
"""


@cache
def smoke(interpreter):
    done = subprocess.run([interpreter, "-c", SMOKE, ROOT / "tools"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_compared():
    """Of every entry the loss is a number and the gradient is not all zeros."""
    results = dict(smoke(sys.executable)["results"])
    assert results.pop("a bad label").startswith("labels[0, 0] must be in [0, 37) and not blank (0), got 41")
    assert len(results) == 31
    for name, (loss, *grads) in results.items():
        assert all(x == x and abs(x) < 1e4 for x in loss) and all(map(any, grads)), name


@pytest.mark.parametrize("interpreter", OTHERS)
def test_another_torch_computes_the_same_bits(interpreter):
    if not interpreter:
        pytest.skip("RNNT_OTHER_PYTHONS names no Python with another torch")
    other, here = smoke(interpreter), smoke(sys.executable)
    print(f"torch {other['torch']}, Python {other['python']}")
    assert other["results"].keys() == here["results"].keys()
    different = [name for name, result in other["results"].items() if result != here["results"][name]]
    assert not different
