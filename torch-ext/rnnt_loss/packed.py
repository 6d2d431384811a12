"""The loss of packed rows, where padding has no memory at all, and the way between padded and packed."""

from typing import Optional

import torch
from torch import Tensor

from .checks import check_dense, check_lengths, integer_of, normalizer_of
from .loss import _loss


def rnnt_loss_packed(
    logits: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    *,
    from_logits: bool = True,
    max_input_length: Optional[int] = None,
    normalizer: str = "softmax",
    clamp: Optional[float] = None,
    fastemit_lambda: float = 0.0,
    scale_loss: bool = False,
    zero_infinity: bool = False,
    topology: str = "standard",
    sigma: float = 0.0,
    delay_penalty: float = 0.0,
    windows: Optional[Tensor] = None,
    blank_bias: Optional[Tensor] = None,
    label_bias: Optional[Tensor] = None,
    inplace_grad: bool = False,
    validate: Optional[bool] = None,
) -> Tensor:
    r"""RNN-transducer loss of packed rows: those of the cells of each utterance, one after the other, without padding.

    rnnt_loss_packed(pack_rows(x, T, U), labels, T, U) = rnnt_loss_from_logits(x, labels, T, U), or rnnt_loss with
    from_logits=False, bit for bit, and so is its gradient. The row of cell (b, t, u) is

        sum of T_a (U_a + 1) over a < b  +  t (U_b + 1)  +  u

    Args:
        logits: [sum of T_b (U_b + 1), V], float32, float64, float16 or bfloat16; any distance between rows, copied
            only if the elements of a row are not contiguous. -inf is an ordinary value.
        labels: [B, U], int32 or int64, padded, each in [0, V) and not blank within its length.
        input_lengths: [B], int32 or int64, frames of each utterance, at least 1.
        label_lengths: [B], int32 or int64, labels of each utterance, in [0, U].
        from_logits: rows are logits; False: log-probabilities, or scores in their place.
        max_input_length: at least the longest of input_lengths; more only takes memory, 12 bytes or so for a cell of
            the batch padded to it. None: it is read from input_lengths, which waits for the GPU where they are on one,
            and which torch.compile(fullgraph=True) and torch.export cannot do.
        blank_bias, label_bias: [B, max_input_length, U + 1], as in `rnnt_loss`.
        blank, reduction, normalizer, clamp, fastemit_lambda, scale_loss, zero_infinity, topology, sigma, delay_penalty,
            windows, inplace_grad, validate: as in `rnnt_loss_from_logits`.

    Returns:
        The loss in nats, as `rnnt_loss`. Its gradient is packed as logits are, and each row of it is written.

    Edges: as `rnnt_loss_from_logits`, but for lengths: where one is wrong nobody knows which rows are whose. On the CPU
    or with validate=True that is an error. On a GPU without it, lengths out of range, or of more or fewer rows than
    logits has, make the loss and the gradient of all utterances NaN; nothing outside of logits is read or written.

    Raises: as `rnnt_loss`, and
        RuntimeError: logits has not as many rows as the lengths say; max_input_length is less than the longest.

    Source: Li et al., Improving RNN Transducer Modeling for End-to-End Speech Recognition, 2019. The layout is that of
    the packed transducer loss of apex, of warp-rnnt's compact mode and of optimized_transducer.

    Example:
        >>> input_lengths, label_lengths = torch.tensor([50, 40]), torch.tensor([10, 7])
        >>> labels = torch.randint(1, 30, (2, 10))                           # [B, U]
        >>> logits = torch.randn(50 * 11 + 40 * 8, 30, requires_grad=True)   # [sum of T_b (U_b + 1), V]
        >>> rnnt_loss_packed(logits, labels, input_lengths, label_lengths).backward()
    """
    return _loss("logits", logits, labels, input_lengths, label_lengths, blank, reduction,
                 normalizer=normalizer_of(from_logits, normalizer), clamp=clamp, fastemit_lambda=fastemit_lambda,
                 scale_loss=scale_loss, zero_infinity=zero_infinity, topology=topology, sigma=sigma,
                 delay_penalty=delay_penalty, windows=windows, blank_bias=blank_bias, label_bias=label_bias,
                 validate=validate, inplace_grad=inplace_grad, packed=True,
                 max_input_length=max_input_length)  # fmt: skip


def pack_rows(x: Tensor, input_lengths: Tensor, label_lengths: Tensor) -> Tensor:
    r"""The rows of the cells of a padded tensor, as `rnnt_loss_packed` takes them. In plain PyTorch, differentiable.

    Args:
        x: [B, T, U + 1, ...], any dtype.
        input_lengths: [B], frames of each utterance, in [0, T].
        label_lengths: [B], labels of each utterance, in [0, U].

    Returns:
        [sum of T_b (U_b + 1), ...]: utterance by utterance, frame by frame, label by label. How many there are is read
        from the lengths, which waits for a GPU.

    Edges: padding is left out, and has gradient 0. An empty batch has no rows.

    Raises:
        ValueError: x has less than three dimensions; a length is longer than x.

    Source: see `rnnt_loss_packed`.

    Example:
        >>> pack_rows(torch.arange(12).view(2, 3, 2), torch.tensor([1, 3]), torch.tensor([1, 0]))
        tensor([ 0,  1,  6,  8, 10])
    """
    check_dense("x", x)
    if x.dim() < 3:
        raise ValueError(f"x must have shape [B, T, U + 1, ...], got {list(x.shape)}")
    for name, lengths in (("input_lengths", input_lengths), ("label_lengths", label_lengths)):
        check_lengths(name, lengths, x.shape[:1])
    return x[_cells(x.shape[1], x.shape[2] - 1, input_lengths, label_lengths, x.device)]


def unpack_rows(
    packed: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    T: Optional[int] = None,
    U: Optional[int] = None,
    fill: float = 0.0,
) -> Tensor:
    r"""The padded tensor of packed rows: the inverse of `pack_rows`. In plain PyTorch, differentiable.

    Args:
        packed: [sum of T_b (U_b + 1), ...], any dtype.
        input_lengths, label_lengths: [B], as in `pack_rows`.
        T, U: how many frames and labels to pad to. None: as many as the longest have.
        fill: what padding is.

    Returns:
        [B, T, U + 1, ...]

    Edges: an empty batch is [0, T, U + 1, ...], with 0 for None.

    Raises:
        ValueError: packed has not as many rows as the lengths say; a length is longer than T or U.

    Source: see `rnnt_loss_packed`.

    Example:
        >>> unpack_rows(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([1, 3]), torch.tensor([1, 0]), fill=-1)
        tensor([[[ 1,  2],
                 [-1, -1],
                 [-1, -1]],
        <BLANKLINE>
                [[ 3, -1],
                 [ 4, -1],
                 [ 5, -1]]])
    """
    check_dense("packed", packed)
    if packed.dim() < 1:
        raise ValueError("packed must have shape [sum of T_b (U_b + 1), ...], got []")
    check_dense("input_lengths", input_lengths)
    if input_lengths.dim() != 1:
        raise ValueError(f"input_lengths must have shape [B], got {list(input_lengths.shape)}")
    for name, lengths in (("input_lengths", input_lengths), ("label_lengths", label_lengths)):
        check_lengths(name, lengths, input_lengths.shape)
    for name, size in (("T", T), ("U", U)):
        if size is not None and integer_of(name, size) < 0:
            raise ValueError(f"{name} must be None or an int >= 0, got {size}")
    T, U = (
        int(lengths.max()) if size is None and len(lengths) else size or 0
        for size, lengths in ((T, input_lengths), (U, label_lengths))
    )
    cells = _cells(T, U, input_lengths, label_lengths, packed.device)
    if int(cells.sum()) != len(packed):
        raise ValueError(
            f"packed must have {int(cells.sum())} rows, the sum of input_lengths (label_lengths + 1), got {len(packed)}"
        )
    return packed.new_full((*cells.shape, *packed.shape[1:]), fill).index_put((cells,), packed)


def _cells(T: int, U: int, input_lengths: Tensor, label_lengths: Tensor, device: torch.device) -> Tensor:
    """[B, T, U + 1], whether (t, u) is a cell of the utterance."""
    for name, lengths, most in (("input_lengths", input_lengths, T), ("label_lengths", label_lengths, U)):
        if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= most:
            raise ValueError(f"{name} must be in [0, {most}], got {lengths.tolist()}")
    frames, labels = (lengths.to(device)[:, None, None] for lengths in (input_lengths, label_lengths))
    return (torch.arange(T, device=device)[:, None] < frames) & (torch.arange(U + 1, device=device) <= labels)
