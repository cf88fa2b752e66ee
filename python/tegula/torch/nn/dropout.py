"""Dropout of activations, with the counter-based decisions of the rest of the package."""

from __future__ import annotations

from torch import Tensor, nn

from ... import checks
from ..attention_ops import dropout_mask
from ..dropout import drawn_seed


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the decisions of `tegula.dropout_mask`.

    While training, each element becomes 0 with probability p, and the others grow by 1 / (1 - p). The
    seed is drawn from torch's generator, so that a run repeats after ``torch.manual_seed``, whatever
    the number of threads. All threads take part, which torch's own dropout does not do on the CPU.

    Parameters
    ----------
    p : float
        In [0, 1].
    inplace : bool
        Only False: nothing is written to.

    Examples
    --------
    >>> import torch
    >>> from tegula.torch.nn import Dropout
    >>> Dropout(0.5)(torch.ones(4, 4)).unique().tolist()
    [0.0, 2.0]
    >>> Dropout(0.5).eval()(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if checks.flag(inplace, "inplace"):
            raise ValueError("inplace must be False: nothing is written to")
        super().__init__(checks.dropout(p, 0, "p")[0])

    def forward(self, input: Tensor) -> Tensor:
        """Return `input`, or while training a copy of which some elements are 0."""
        if not self.training or self.p == 0.0 or input.numel() == 0:
            return input
        columns = input.shape[-1] if input.dim() else 1
        kept = dropout_mask(drawn_seed(self.p, input.device), self.p, 1, 1, input.numel() // columns, columns)
        scale = 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0
        result: Tensor = input * kept.view(input.shape).to(input.device, input.dtype).mul_(scale)
        return result
