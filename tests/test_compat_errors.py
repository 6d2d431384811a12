"""What the drop-ins refuse: the error names the argument, what was wanted and what was got."""

import pytest
import torch
from batches import NAN
from cases import X1

TWO = X1._replace(labels=X1.labels.int(), input_lengths=torch.tensor([2]), label_lengths=torch.tensor([2]))
IDS = TWO[1:4]
HALF = torch.tensor([0.5])
ERRORS = [
    (lambda c: c.torchaudio.rnnt_loss(TWO.x, *IDS, 0, reduction="mean_volume"), ValueError, "none, mean, sum"),
    (lambda c: c.torchaudio.rnnt_loss(TWO.x, *IDS, 5), ValueError, r"blank must be in \[-5, 5\), got 5"),
    (lambda c: c.torchaudio.rnnt_loss(TWO.x, *IDS, 0, clamp=NAN), ValueError, "clamp must be .*, got nan"),
    (lambda c: c.torchaudio.rnnt_loss(TWO.x[0], *IDS, 0), ValueError, "logits must have shape"),
    (lambda c: c.torchaudio.RNNTLoss(0)(TWO.x, IDS[0].float(), *IDS[1:]), TypeError, "labels must be int32 or int64"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x, *IDS, reduction="batch"), ValueError, "none, mean, sum, None, got 'batch'"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x, *IDS, blank=-1), ValueError, "two columns"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x, *IDS, blank=-2), ValueError, "blank must be .*, got -2"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x[..., :2], *IDS, blank=-1, gather=True), ValueError, "without gather"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x[0, 0], IDS[0], IDS[1].repeat(2), torch.tensor([3, -1]), compact=True),
     ValueError, r"labels_lengths\[1\] must be at least 0 with compact, got -1"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x[0, 0], IDS[0], IDS[1], IDS[2].float(), compact=True), TypeError,
     "labels_lengths must be int32 or int64, got torch.float32"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x[0, 0], IDS[0][0, :1], *IDS[1:], compact=True), ValueError, "must be 2 .* 1"),
    (lambda c: c.warp_rnnt.rnnt_loss(TWO.x[0, 0], [1, 2], *IDS[1:], compact=True), TypeError, "labels must be a torch"),
    (lambda c: c.warprnnt_pytorch.rnnt_loss(TWO.x, *IDS, reduction="avg"), ValueError, "none, mean, sum, got 'avg'"),
    (lambda c: c.warprnnt_pytorch.RNNTLoss(size_average=True), TypeError, "size_average"),
    (lambda c: c.optimized_transducer.transducer_loss(TWO.x[0, 0], *IDS, 0, False, reduction="none"), ValueError,
     "mean, sum, got 'none'"),
    (lambda c: c.optimized_transducer.transducer_loss(TWO.x[0, 0], IDS[0], IDS[1].repeat(2), IDS[2], 0, False, True),
     ValueError, r"logit_lengths must have shape \[1\], got \[2\]"),
    (lambda c: c.nemo.RNNTLoss(4, reduction="none"), ValueError, "mean_volume, got 'none'"),
    (lambda c: c.nemo.RNNTLoss(4, loss_name="rnnt"), ValueError, "loss_name must be one of default, .*, got 'rnnt'"),
    (lambda c: c.nemo.RNNTLoss(4, loss_name="graph_rnnt"), NotImplementedError, "graph_rnnt"),
    (lambda c: c.nemo.RNNTLoss(4, loss_kwargs={"sigma": 0.1}), ValueError, "of fastemit_lambda, clamp, got sigma"),
    (lambda c: c.nemo.RNNTLoss(4, loss_kwargs={"blank": 0}), ValueError, "of fastemit_lambda, clamp, got blank"),
    (lambda c: c.nemo.RNNTLoss(4)(TWO.x, [[1, 2]], *IDS[1:]), TypeError, "targets must be a torch.Tensor, got list"),
    (lambda c: c.nemo.RNNTLossNumba()(TWO.x[0], *IDS), ValueError, r"logits must have shape \[B, T, U \+ 1, V\]"),
    (lambda c: c.nemo.RNNTLoss(4, loss_name="warprnnt", loss_kwargs={"clamp": 1}), ValueError, "of none, got clamp"),
    (lambda c: c.nemo.RNNTLossNumba(reduction="mean_batch"), ValueError, "none, mean, sum, None"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, rnnt_type="standard"), ValueError, "regular, modified, constrained"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, reduction=None), ValueError, "none, mean, sum, got None"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, delay_penalty=-0.1), ValueError, "at least 0, got -0.1"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0][:, :1], 0), ValueError, r"symbols must have shape \[1, 2\], got \[1, 1\]"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, torch.zeros(1, 3)), ValueError, r"boundary must have shape \[1, 4\]"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, torch.ones(1, 4)), TypeError, "boundary must be int32 or int64"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, torch.tensor([[1, 0, 3, 2]])), ValueError, r"boundary\[0\] .*1, 0, 3"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, torch.tensor([[-1, 0, 2, 2]])), ValueError, r"got \[-1, 0, 2, 2\]"),
    (lambda c: c.k2.rnnt_loss(TWO.x, IDS[0], 0, torch.tensor([[0, 2, 2, 1]])), ValueError, r"got \[0, 2, 2, 1\]"),
    (lambda c: c.fast_rnnt.rnnt_loss(TWO.x, IDS[0], 0, return_grad=True), NotImplementedError, "alignment.posteriors"),
    (lambda c: c.speechbrain.transducer_loss(TWO.x, IDS[0], HALF, HALF, 0, "batchmean"), ValueError, "'batchmean'"),
    (lambda c: c.speechbrain.transducer_loss(TWO.x, IDS[0], IDS[1], HALF, 0), TypeError, "input_lens .* torch.int64"),
    (lambda c: c.speechbrain.transducer_loss(TWO.x, IDS[0], HALF, [1.0], 0), TypeError, "target_lens must be a torch"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", ERRORS, ids=[f"{i}" for i in range(len(ERRORS))])
def test_errors(backend, call, error, message):
    with pytest.raises(error, match=message):
        call(backend.rnnt.compat)
