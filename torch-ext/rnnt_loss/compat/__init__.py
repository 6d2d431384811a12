"""Drop-ins for the transducer losses of other libraries: their names, arguments, defaults and results, our kernels.

    rnnt_loss = rnnt.compat.torchaudio.rnnt_loss          # in place of torchaudio.functional.rnnt_loss

There is a module per library, and each docstring says where it differs from that library on purpose. Everywhere:

- More is taken: float16, bfloat16, float32 and float64 of any strides; int32 and int64 ids; lengths on the CPU beside
  logits on a GPU; frames and labels of padding beyond the longest; empty transcripts; a blank that counts from the end.
- Less is taken: a label that is blank, and ids and lengths out of range, which other libraries read beyond their
  memory with, are errors, or NaN for that utterance where only a GPU knows them (see `rnnt_loss`).
- The loss is float32, or float64 for float64 input, never narrower. Padding may hold anything and has gradient 0. An
  utterance without a path has loss +inf and gradient 0. backward may run twice after retain_graph=True.
- Messages call the arguments as the library does, or as `rnnt_loss`: labels, input_lengths, label_lengths, blank.
- torch.compile takes them. It breaks the graph, and so refuses fullgraph=True, for packed rows (optimized_transducer,
  warp-rnnt's compact), for k2's boundary, delay_penalty and "constrained", and for NeMo's "tdt" and "multiblank_rnnt".
  torch.jit.script does not take them.
"""

from . import fast_rnnt, k2, nemo, optimized_transducer, speechbrain, torchaudio, warp_rnnt, warprnnt_pytorch

__all__ = [
    "fast_rnnt",
    "k2",
    "nemo",
    "optimized_transducer",
    "speechbrain",
    "torchaudio",
    "warp_rnnt",
    "warprnnt_pytorch",
]
