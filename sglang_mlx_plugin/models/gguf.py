"""Reads GGUF files, trusting nothing in them.

Every count, length and offset is checked against the size of the file before anything is
read or allocated, so that a hostile or truncated file costs a sentence and no memory. The
format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelFileError

__all__ = ["TYPES", "GGUFFile", "Tensor", "TensorType"]

_MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 2
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorType:
    """How a tensor's values are packed: `block_bytes` for each `block` values of a row."""

    name: str
    block: int
    block_bytes: int


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    8: TensorType("Q8_0", 32, 34),
    30: TensorType("BF16", 1, 2),
}
_OTHER_NAMES = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    39: "MXFP4",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file.

    Attributes:
        name: GGUF's name.
        shape: Rows first, as numpy has it (GGUF lists the fastest dimension first).
        type: Packing.
        offset: Bytes from the start of the file.
        nbytes: Bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file; a context manager.

    Attributes:
        metadata: Key to value; arrays are lists.
        tensors: Name to tensor.

    Args:
        path: The file.

    Raises:
        ModelFileError: If it is not a GGUF file, is damaged, or holds a packing that is not
            in `TYPES`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"The GGUF file {str(path)!r} cannot be read: {error}.") from error
        self._at = 0
        try:
            self.metadata, self.tensors = self._read()
        except Exception:
            self.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; tensors read before stay valid, since `blocks` copies."""
        self._map.close()
        self._file.close()

    def blocks(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The packed bytes: uint8 (blocks, block_bytes)."""
        raw = self._map[tensor.offset : tensor.offset + tensor.nbytes]
        return np.frombuffer(raw, np.uint8).reshape(-1, tensor.type.block_bytes)

    def _fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"The GGUF file {str(self.path)!r} is damaged: {what}.")

    def _take(self, count: int, what: str) -> bytes:
        if count < 0 or count > len(self._map) - self._at:
            raise self._fail(f"{what} reaches past the end of the file")
        start, self._at = self._at, self._at + count
        return self._map[start : self._at]

    def _number(self, code: str, what: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), what))[0]

    def _string(self, what: str) -> str:
        raw = self._take(self._number("Q", what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._fail(f"{what} is not UTF-8") from None

    def _value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind], what)
        if kind == _STRING:
            return self._string(what)
        if kind != _ARRAY or depth >= _MAX_DEPTH:
            raise self._fail(f"{what} has the unknown type {kind}")
        inner = self._number("I", what)
        count = self._number("Q", what)
        # The least that an entry can take: a scalar's size, a string's or an array's length.
        least = struct.calcsize(f"<{_SCALARS[inner]}") if inner in _SCALARS else 8
        if count > (len(self._map) - self._at) // least:
            raise self._fail(f"{what} claims {count} entries, more than the file could hold")
        if inner in _SCALARS:
            code = f"<{count}{_SCALARS[inner]}"
            return list(struct.unpack(code, self._take(struct.calcsize(code), what)))
        return [self._value(inner, what, depth + 1) for _ in range(count)]

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if self._take(4, "the header") != _MAGIC:
            raise ModelFileError(f"{str(self.path)!r} is not a GGUF file.")
        version = self._number("I", "the version")
        if version not in (2, 3):
            raise ModelFileError(
                f"{str(self.path)!r} is a GGUF file of version {version}; 2 and 3 can be read."
            )
        tensor_count = self._number("Q", "the tensor count")
        value_count = self._number("Q", "the metadata count")
        # Names, shapes and offsets take 24 bytes at the least; keys and types 12.
        if tensor_count * 24 + value_count * 12 > len(self._map):
            raise self._fail(
                f"it claims {tensor_count} tensors and {value_count} metadata values, more than "
                "it could hold"
            )
        metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = self._string("a metadata key")
            metadata[key] = self._value(self._number("I", key), key)
        return metadata, self._read_tensors(tensor_count, metadata)

    def _read_tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, Tensor]:
        found: list[tuple[str, tuple[int, ...], TensorType, int]] = []
        for _ in range(count):
            name = self._string("a tensor's name")
            dimensions = self._number("I", name)
            if not 1 <= dimensions <= _MAX_DIMENSIONS:
                raise self._fail(f"tensor {name!r} has {dimensions} dimensions")
            shape = tuple(self._number("Q", name) for _ in range(dimensions))
            kind = self._number("I", name)
            offset = self._number("Q", name)
            if kind not in TYPES:
                word = _OTHER_NAMES.get(kind, f"number {kind}")
                known = ", ".join(sorted(known.name for known in TYPES.values()))
                raise ModelFileError(
                    f"The GGUF file {str(self.path)!r} packs tensor {name!r} as {word}, which "
                    f"MLX cannot hold exactly; {known} can be converted."
                )
            found.append((name, shape[::-1], TYPES[kind], offset))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._fail(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in found:
            values = 1
            for side in shape:
                if side < 1 or side > len(self._map) * 32:
                    raise self._fail(f"tensor {name!r} has a side of {side}")
                values *= side
            if shape[-1] % kind.block:
                raise self._fail(f"a row of tensor {name!r} is no whole number of blocks")
            nbytes = values // kind.block * kind.block_bytes
            if offset > len(self._map) or start + offset + nbytes > len(self._map):
                raise self._fail(f"tensor {name!r} reaches past the end of the file")
            if name in tensors:
                raise self._fail(f"tensor {name!r} stands twice")
            tensors[name] = Tensor(name, shape, kind, start + offset, nbytes)
        return tensors
