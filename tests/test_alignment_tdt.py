"""What the lattices of TDT and multi-blank transducers know besides the loss, against all paths of small lattices."""

import pytest
import torch
from arc_oracles import ARC_SETS, Oracle
from batches import NAN, edit, random_batch
from cases import X1, X1_DURATIONS
from compare import assert_same_bits, assert_within_budget
from torch.nn.functional import pad


def test_tdt(backend):
    tokens, durations = X1.x.log_softmax(-1), X1_DURATIONS.log_softmax(-1)
    label = tokens.gather(3, torch.tensor([1, 2, 0])[None, None, :, None].expand(1, 2, 3, 1))
    scores = torch.cat([tokens[..., :1] - 0.05 + durations[..., 1:], label - 0.05 + durations], -1)
    wanted = Oracle(scores, ARC_SETS["tdt"], *X1[2:4])
    assert abs(wanted.log_z.item() + 5.724600567824256) < 1e-12 and len(wanted.paths[0]) == 6
    for given, heads in [(True, (X1.x, X1_DURATIONS)), (False, (tokens, durations))]:
        arguments = [x.to(backend.device) for x in (*heads, *X1[1:4])]
        keywords = {"durations": [0, 1, 2], "sigma": 0.05, "from_logits": given}
        blank, of_label = backend.rnnt.alignment.posteriors_tdt(*arguments, **keywords)
        assert_within_budget("blank", blank, pad(wanted.of(0), (1, 0)))
        assert_within_budget("label", of_label, wanted.of(1))
        frames, taken, score = backend.rnnt.alignment.align_tdt(*arguments, **keywords)
        assert_same_bits("frames", frames.cpu(), wanted.frames)
        assert_same_bits("durations", taken.cpu(), wanted.durations)
        assert_within_budget("score", score, wanted.score)


def test_tdt_gradients_do_not_read_padding(backend):
    given = random_batch(3, 5, 2, 4, ragged=True).poisoned()
    heads = [given.x, given.x[..., :3]]
    heads = [x.to(backend.device).detach().requires_grad_() for x in heads]
    ids = [x.to(backend.device) for x in given[1:4]]
    blank, label = backend.rnnt.alignment.posteriors_tdt(*heads, *ids, durations=[0, 1, 2])
    for grad in torch.autograd.grad((blank**2).sum() + (label**2).sum(), heads):
        assert grad.isfinite().all() and (grad.cpu()[~given.cells] == 0).all() and (grad != 0).any()


@pytest.mark.parametrize("name", ["posteriors_tdt", "align_tdt"])
def test_tdt_arguments(backend, name):
    function = getattr(backend.rnnt.alignment, name)
    for durations, head, words in [
        ([0, 1, 2], X1_DURATIONS[..., :2], "duration_logits must have shape"),
        ([0, 1, 1], X1_DURATIONS, "durations must be different"),
        ([0], X1_DURATIONS[..., :1], "durations must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            function(X1.x.to(backend.device), head.to(backend.device), *X1[1:4], durations=durations)


# ---- multi-blank


@pytest.mark.parametrize("from_logits", [True, False], ids=["logits", "log_probs"])
def test_multiblank(backend, from_logits):
    given = random_batch(4, 5, 3, 8, blank=7, ragged=True)
    given = given._replace(labels=given.labels % 5)  # classes 6 and 5 are big blanks of 2 and 3 frames
    log_probs = given.x.log_softmax(-1)
    ids = pad(given.labels, (0, 1))[:, None, :, None].expand(-1, 5, -1, -1)
    classes = torch.cat([log_probs[..., [7]], log_probs.gather(3, ids), log_probs[..., [6, 5]]], -1) - 0.1
    wanted = Oracle(classes, ARC_SETS["multiblank"], *given[2:4])
    x = (given.x if from_logits else log_probs).to(backend.device)
    arguments = x, *(tensor.to(backend.device) for tensor in given[1:4]), [2, 3], -1
    keywords = {"sigma": 0.1, "from_logits": from_logits}
    blank, label = backend.rnnt.alignment.posteriors_multiblank(*arguments, **keywords)
    assert_within_budget("blank", blank, wanted.of(0))
    assert_within_budget("label", label, wanted.of(1)[..., 0])
    frames, score = backend.rnnt.alignment.align_multiblank(*arguments, **keywords)
    assert_same_bits("frames", frames.cpu(), wanted.frames)
    assert_within_budget("score", score, wanted.score)


def test_multiblank_of_special_utterances(backend):
    """The derivative of the posteriors is 0 in padding, NaN in an utterance of NaN, and finite in the others."""
    given = random_batch(3, 5, 2, 6, blank=5, ragged=True)
    given = edit(given._replace(labels=given.labels % 4), NAN, (1, 0, 0, 4)).poisoned()
    x = given.x.to(backend.device).detach().requires_grad_()
    ids = [tensor.to(backend.device) for tensor in given[1:4]]
    blank, label = backend.rnnt.alignment.posteriors_multiblank(x, *ids, [2], 5, from_logits=True)
    assert blank.isnan().flatten(1).any(1).tolist() == [False, True, False]
    (grad,) = torch.autograd.grad((blank**2).sum() + (label**2).sum(), x)
    good = [0, 2]
    assert grad[good].isfinite().all() and (grad.cpu()[~given.cells] == 0).all() and (grad[good] != 0).any()


@pytest.mark.parametrize("name", ["posteriors_multiblank", "align_multiblank"])
def test_multiblank_arguments(backend, name):
    function = getattr(backend.rnnt.alignment, name)
    for durations, blank, error, words in [
        ([0], 3, ValueError, "big_blank_durations must be different and at least 1"),
        ([2, 2], 3, ValueError, "big_blank_durations must be different"),
        ([2, 3], 1, ValueError, "blank must be at least 2"),
        (2, 3, TypeError, "big_blank_durations must be a sequence"),
    ]:
        with pytest.raises(error, match=words):
            function(X1.x.to(backend.device), *X1[1:4], durations, blank)
    if backend.data_errors == "raise":
        with pytest.raises(RuntimeError, match=r"labels\[0, 1\] must not be a big blank"):
            function(X1.x, *X1[1:4], [2], 3)
