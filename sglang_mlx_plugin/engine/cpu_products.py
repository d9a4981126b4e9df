"""Products of a few rows with a large weight, as this machine's BLAS has them fastest.

A decode step multiplies 1 to some 16 rows by each weight. ``x @ W.T`` and ``(W @ x.T).T`` are
the same numbers, but not the same kernel: MKL takes the second to a kernel for narrow
matrices that reads W at the memory's speed, two to four times as fast at 2 to 8 rows, and has
none for a single row, which is better sent twice. Which is faster for which shape is a fact of
the machine, so it is measured once, when a model is loaded; prefill takes ``x @ W.T`` always.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

__all__ = ["MeasuredEmbedding", "MeasuredLinear", "measure", "multiply"]

# Row counts that are measured; those between are padded to the next.
_COUNTS = (1, 2, 4, 8, 16)
# The other order is taken where it saves at least this share.
_GAIN = 0.05
# Weights that are smaller are not worth a measurement.
_LEAST_SIZE = 1 << 16
# Weights multiplied in one measurement, so that they do not come from a cache.
_MEASURED_BYTES = 96 << 20
_REPEATS = 3


def measure(weights: Sequence[mx.array]) -> tuple[int, ...]:
    """Find which order of a product is faster for each number of rows.

    Args:
        weights: float32 (outputs, inputs), all of one shape.

    Returns:
        For each number of rows, the rows to pad to for ``(W @ x.T).T``, or 0 for
        ``x @ W.T``; more rows than it has entries mean ``x @ W.T``. Empty if that is always
        as fast.
    """
    first = weights[0]
    if first.size < _LEAST_SIZE:
        return ()
    sample = weights[: max(1, _MEASURED_BYTES // int(first.nbytes))]
    plain = {rows: _seconds(sample, rows, weight_first=False) for rows in _COUNTS}
    turned = {rows: _seconds(sample, rows, weight_first=True) for rows in _COUNTS[1:]}
    widths = [0]
    for rows in range(1, _COUNTS[-1] + 1):
        width = next(count for count in _COUNTS[1:] if count >= rows)
        below = max(count for count in _COUNTS if count <= rows)
        at_most = min(plain[below], plain[width]) if rows < width else plain[width]
        if rows == 1:
            at_most = plain[1]
        widths.append(width if turned[width] < (1 - _GAIN) * at_most else 0)
    return tuple(widths) if any(widths) else ()


def multiply(x: mx.array, weight: mx.array, widths: tuple[int, ...]) -> mx.array:
    """``x @ weight.T``, in the order that `widths` names.

    Args:
        x: float32 (..., inputs).
        weight: float32 (outputs, inputs).
        widths: What `measure` found for such a weight.

    Returns:
        float32 (..., outputs), contiguous.
    """
    rows = x.size // x.shape[-1]
    width = widths[rows] if rows < len(widths) else 0
    if not width:
        return x @ weight.T
    flat = x.reshape(rows, -1)
    if rows < width:
        # Copied: a row that is broadcast makes BLAS slower than one alone.
        flat = mx.pad(flat, [(0, width - rows), (0, 0)])
    turned = weight @ flat.T
    return mx.contiguous(turned[:, :rows].T).reshape(*x.shape[:-1], -1)


class MeasuredLinear(nn.Module):
    """A linear layer in the measured order.

    Args:
        weight: float32 (outputs, inputs).
        bias: float32 (outputs,), or None.
        widths: What `measure` found for such a weight.
    """

    def __init__(self, weight: mx.array, bias: mx.array | None, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = weight
        if bias is not None:
            self.bias = bias
        self._widths = widths

    def __call__(self, x: mx.array) -> mx.array:
        y = multiply(x, self.weight, self._widths)
        return y + self.bias if "bias" in self else y


class MeasuredEmbedding(nn.Module):
    """An embedding that is the output head too, the head's product in the measured order.

    Args:
        weight: float32 (vocab, width).
        widths: What `measure` found for such a weight.
    """

    def __init__(self, weight: mx.array, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = weight
        self._widths = widths

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.weight[tokens]

    def as_linear(self, x: mx.array) -> mx.array:
        return multiply(x, self.weight, self._widths)


def _seconds(weights: Sequence[mx.array], rows: int, *, weight_first: bool) -> float:
    x = mx.full((rows, weights[0].shape[1]), 0.5)
    widths = (0,) * rows + (rows if weight_first else 0,)
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        mx.eval([multiply(x, weight, widths) for weight in weights])
        best = min(best, time.perf_counter() - start)
    return best / len(weights)
