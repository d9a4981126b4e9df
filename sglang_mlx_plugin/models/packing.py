"""GGUF's blocks of weights as MLX's arrays, value for value.

MLX's affine format holds, for each group of 32 weights of a row, a scale and a bias, and packs
the numbers q of ``weight = scale * q + bias`` into uint32 words, the first weight in the lowest
bits. Q4_0, Q4_1 and Q8_0 are that same format in another order of bits. Scales and biases are
kept as float32: MLX unpacks in their dtype, and only float32 gives the file's values unrounded
(float16 has room for the scale but not for ``scale * q + bias``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .gguf import TensorInfo

__all__ = ["AFFINE_BITS", "GROUP_SIZE", "Packed", "pack", "to_float32", "unpack"]

GROUP_SIZE = 32
# Types that MLX can hold packed, and in how many bits.
AFFINE_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}


@dataclass(frozen=True)
class Packed:
    """A quantised matrix of MLX.

    Attributes:
        weight: uint32 (rows, columns * bits / 32).
        scales: float32 (rows, columns / 32).
        biases: float32 (rows, columns / 32).
    """

    weight: np.ndarray
    scales: np.ndarray
    biases: np.ndarray


def pack(rows: np.ndarray, info: TensorInfo) -> Packed:
    """Turn a quantised tensor's blocks into MLX's affine format, exactly.

    Args:
        rows: uint8 (rows, bytes of a row), the blocks as the file holds them.
        info: The tensor; its type is a key of `AFFINE_BITS`.
    """
    count, columns = rows.shape[0], info.shape[-1]
    blocks = rows.reshape(count, columns // GROUP_SIZE, info.type.block_bytes)
    scales = _half(blocks, 0)
    if info.type.name == "Q8_0":
        # Signed to unsigned: adding 128 flips the top bit; the bias takes it off again.
        numbers = blocks[:, :, 2:] ^ np.uint8(0x80)
        return Packed(_words(numbers, count), scales, scales * np.float32(-128))
    if info.type.name == "Q4_1":
        biases, nibbles = _half(blocks, 2), blocks[:, :, 4:]
    else:
        biases, nibbles = scales * np.float32(-8), blocks[:, :, 2:]
    # A block's 16 bytes hold weights 0 to 15 in their low halves and 16 to 31 in their high
    # ones; MLX wants neighbours in one byte.
    numbers = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=-1)
    pairs = numbers[:, :, 0::2] | (numbers[:, :, 1::2] << 4)
    return Packed(_words(pairs, count), scales, biases)


def unpack(packed: Packed, bits: int) -> np.ndarray:
    """The weights of a packed matrix, as MLX unpacks them.

    Returns:
        float32 (rows, columns).
    """
    count = packed.weight.shape[0]
    numbers = np.ascontiguousarray(packed.weight).astype("<u4", copy=False).view(np.uint8)
    if bits == 4:
        numbers = np.stack([numbers & 0x0F, numbers >> 4], axis=-1)
    groups = numbers.reshape(count, -1, GROUP_SIZE).astype(np.float32)
    return (groups * packed.scales[..., None] + packed.biases[..., None]).reshape(count, -1)


def to_float32(rows: np.ndarray, info: TensorInfo) -> np.ndarray:
    """A tensor's weights as float32, of its shape.

    Float types are widened exactly; for a quantised type the answer is that of ``gguf``'s own
    reference.

    Args:
        rows: uint8 (rows, bytes of a row).
        info: The tensor, of any type of `GGML_TYPES`.
    """
    name = info.type.name
    if name == "F32":
        values = rows.view("<f4")
    elif name == "F16":
        values = rows.view("<f2").astype(np.float32)
    elif name == "BF16":
        values = (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        # Late: importing gguf takes longer than the whole conversion of a small model.
        from gguf import GGMLQuantizationType, dequantize

        values = dequantize(rows, GGMLQuantizationType[name])
    return values.astype(np.float32, copy=False).reshape(info.shape)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    part = np.ascontiguousarray(blocks[:, :, at : at + 2])
    return part.view("<f2")[:, :, 0].astype(np.float32)


def _words(data: np.ndarray, rows: int) -> np.ndarray:
    return np.ascontiguousarray(data).reshape(rows, -1).view("<u4")
