"""GGUF's block formats as MLX's affine quantisation: the same numbers, packed another way.

MLX dequantises ``scale * q + bias`` with q unsigned; each GGUF format here is that with
another name for the parts, so nothing is rounded: Q4_1 has a scale and a minimum, Q4_0 and
Q8_0 a scale and q counted from the middle. A GGUF scale is a float16, a power of two times it
is exact in float32, and so scales and biases are kept in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .gguf import Tensor

__all__ = ["GROUP", "Packed", "pack", "plain"]

GROUP = 32


@dataclass(frozen=True)
class Packed:
    """A quantised matrix as MLX holds it.

    Attributes:
        weight: uint32 (rows, columns * bits / 32), the first value in the lowest bits.
        scales: float32 (rows, columns / 32).
        biases: float32 (rows, columns / 32).
        bits: 4 or 8.
    """

    weight: NDArray[np.uint32]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]
    bits: int

    def take(self, rows: NDArray[np.int64]) -> Packed:
        """The same with its rows reordered."""
        return Packed(self.weight[rows], self.scales[rows], self.biases[rows], self.bits)


def pack(tensor: Tensor, blocks: NDArray[np.uint8]) -> Packed | None:
    """A quantised matrix for MLX, or None if `tensor` is not quantised.

    Args:
        tensor: A matrix.
        blocks: uint8 (blocks, block_bytes), as `GGUFFile.blocks` gives.
    """
    kind = tensor.type.name
    if kind not in ("Q4_0", "Q4_1", "Q8_0"):
        return None
    rows, columns = tensor.shape
    scales = _float16(blocks, 0)
    if kind == "Q8_0":
        values = (blocks[:, 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        biases = scales * np.float32(-128)
        words = np.ascontiguousarray(values).view("<u4")
        bits = 8
    else:
        first = 4 if kind == "Q4_1" else 2
        packed = blocks[:, first:]
        # A block's first sixteen values are the low halves of its bytes, the rest the high.
        values = np.concatenate([packed & 0x0F, packed >> 4], axis=1)
        biases = _float16(blocks, 2) if kind == "Q4_1" else scales * np.float32(-8)
        pairs = values[:, 0::2] | (values[:, 1::2] << 4)
        words = np.ascontiguousarray(pairs).view("<u4")
        bits = 4
    return Packed(
        weight=words.reshape(rows, columns * bits // 32).astype(np.uint32),
        scales=scales.reshape(rows, columns // GROUP),
        biases=biases.reshape(rows, columns // GROUP),
        bits=bits,
    )


def plain(tensor: Tensor, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """An unquantised tensor as float32, which holds F32, F16 and BF16 exactly."""
    raw = np.ascontiguousarray(blocks)
    match tensor.type.name:
        case "F32":
            values = raw.view("<f4")
        case "F16":
            values = raw.view("<f2").astype(np.float32)
        case "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case other:
            raise ValueError(f"{other} is quantised")
    return np.asarray(values, np.float32).reshape(tensor.shape)


def _float16(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")[:, 0].astype(np.float32)
