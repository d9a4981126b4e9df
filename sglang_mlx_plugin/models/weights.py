"""Writes a model's weights as safetensors, in mlx-lm's names."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .gguf import GGUFFile, TensorInfo
from .llama import Target, unpermute
from .packing import AFFINE_BITS, GROUP_SIZE, pack, to_float32

__all__ = ["Dtype", "choose_dtype", "quantization", "write_weights"]

Dtype = Literal["float32", "float16", "bfloat16"]

_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ITEM_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


def choose_dtype(file: GGUFFile, targets: tuple[Target, ...]) -> Dtype:
    """The narrowest float type that holds every weight of the file exactly.

    float32 as soon as anything is quantised (see `packing`). Otherwise that of the matrices,
    if they agree and the vectors, which GGUF always widens to float32, lose nothing in it.
    """
    matrices = {t.source.type.name for t in targets if len(t.source.shape) > 1}
    if matrices == {"F16"}:
        narrow: Dtype = "float16"
    elif matrices == {"BF16"}:
        narrow = "bfloat16"
    else:
        return "float32"
    for target in targets:
        if len(target.source.shape) == 1:
            values = to_float32(file.read_rows(target.source), target.source)
            if not _fits(values, narrow):
                return "float32"
    return narrow


def quantization(targets: tuple[Target, ...]) -> dict[str, Any] | None:
    """mlx-lm's ``quantization`` of ``config.json``; None when nothing is packed.

    The commonest number of bits stands at the top, and a module that differs has an entry of
    its own. Modules without scales among the weights are not quantised.
    """
    bits = {t.module: AFFINE_BITS[t.source.type.name] for t in targets if _is_packed(t.source)}
    if not bits:
        return None
    widths = list(bits.values())
    common = max(sorted(set(widths)), key=widths.count)
    settings: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": common, "mode": "affine"}
    for module, width in bits.items():
        if width != common:
            settings[module] = {"group_size": GROUP_SIZE, "bits": width, "mode": "affine"}
    return settings


def write_weights(
    file: GGUFFile,
    targets: tuple[Target, ...],
    dtype: Dtype,
    path: Path,
    advance: Callable[[int], None],
) -> None:
    """Write all weights as one safetensors file, holding one tensor in memory at a time.

    The format is a length, a JSON table of names, dtypes, shapes and offsets, and the arrays:
    little enough to write here, where a library would want the whole model in memory first.

    Args:
        file: The open file that the targets are in.
        targets: What to write, in order.
        dtype: Float type of everything that is not packed.
        path: The file to write.
        advance: Told the file's bytes of each tensor that is done.

    Raises:
        ModelFileError: If the file holds NaN or infinity, or changes meanwhile.
        OSError: If ``path`` cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for target in targets:
        for name, kind, shape in _layout(target, dtype):
            end = at + math.prod(shape) * _ITEM_BYTES[kind]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
            at = end
    table = json.dumps(header, separators=(",", ":")).encode()
    table += b" " * (-len(table) % 8)  # Arrays begin aligned.
    with path.open("xb") as out:
        out.write(struct.pack("<Q", len(table)) + table)
        for target in targets:
            for array in _arrays(file, target, dtype):
                out.write(array.tobytes())
            advance(target.source.nbytes)


def _layout(target: Target, dtype: Dtype) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, safetensors' dtype and shape of each array of a target, in the order of `_arrays`."""
    info, module = target.source, target.module
    if not _is_packed(info):
        return [(f"{module}.weight", _CODES[dtype], info.shape)]
    rows, columns = info.shape
    bits = AFFINE_BITS[info.type.name]
    return [
        (f"{module}.weight", "U32", (rows, columns * bits // 32)),
        (f"{module}.scales", "F32", (rows, columns // GROUP_SIZE)),
        (f"{module}.biases", "F32", (rows, columns // GROUP_SIZE)),
    ]


def _arrays(file: GGUFFile, target: Target, dtype: Dtype) -> list[np.ndarray]:
    info = target.source
    rows = file.read_rows(info)
    if target.heads:
        rows = unpermute(rows, target.heads)
    words: list[np.ndarray] = []
    with np.errstate(all="ignore"):  # What overflows is found below.
        if _is_packed(info):
            packed = pack(rows, info)
            words, floats = [packed.weight], [packed.scales, packed.biases]
        else:
            floats = [to_float32(rows, info)]
    for values in floats:
        if not np.isfinite(values).all():
            file.fail(f"its tensor {info.name!r} holds NaN or infinity")
    return words + [_narrowed(values, dtype) for values in floats]


def _is_packed(info: TensorInfo) -> bool:
    return info.type.name in AFFINE_BITS


def _fits(values: np.ndarray, dtype: Dtype) -> bool:
    if dtype == "bfloat16":
        return not (values.view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))


def _narrowed(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    # Only ever called where nothing is lost; bfloat16 has no numpy type, its bits do.
    if dtype == "float16":
        return values.astype("<f2")
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")
    return values.astype("<f4", copy=False)
