"""Reads GGUF files that may be hostile.

A GGUF file is a header of counts, a table of metadata, a table of tensors, and the tensors'
bytes. Each count, length and offset in it is checked against the file's size, and against a
bound of its own, before anything is allocated or read: the file is never mapped, and a lie
costs a sentence. The reader of the ``gguf`` library trusts its input, so it is not used.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

import numpy as np

from .errors import ModelFileError
from .metadata import Metadata, Value

__all__ = ["GGML_TYPES", "GGMLType", "GGUFFile", "TensorInfo"]

# Bounds far above any real file: the metadata of a 256k vocabulary takes about 15 MB.
_MAX_METADATA_BYTES = 256 << 20
_MAX_VALUES = 4 << 20
_MAX_KEY_BYTES = 65_535
_MAX_TEXT_BYTES = 4 << 20
_MAX_KEYS = 65_536
_MAX_TENSORS = 65_536
_MAX_NAME_BYTES = 255
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20

_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGMLType:
    """How a tensor's weights are stored: ``block_size`` weights in ``block_bytes`` bytes."""

    name: str
    block_size: int
    block_bytes: int


# Types that can be read; what else GGUF knows is refused by name.
GGML_TYPES: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    10: GGMLType("Q2_K", 256, 84),
    11: GGMLType("Q3_K", 256, 110),
    12: GGMLType("Q4_K", 256, 144),
    13: GGMLType("Q5_K", 256, 176),
    14: GGMLType("Q6_K", 256, 210),
    30: GGMLType("BF16", 1, 2),
}
_OTHER_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies, and what it is.

    Attributes:
        name: GGUF's name.
        type: How weights are stored.
        shape: (rows, columns), or (columns,), outermost first (GGUF writes it innermost first).
        offset: Bytes from the start of the file.
        nbytes: Bytes in the file.
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one innermost row."""
        return self.shape[-1] // self.type.block_size * self.type.block_bytes


class GGUFFile:
    """An open GGUF file: its metadata, its table of tensors, and a way to read each.

    Attributes:
        path: The file.
        size: Its bytes.
        metadata: The table of metadata.
        tensors: The tensors by name, in the order of the file.

    Raises:
        ModelFileError: If the file cannot be read or is not a sound GGUF file of version 2 or 3.
    """

    path: Path
    size: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Not blocking: a FIFO would otherwise wait for a writer before it can be refused.
            self._file: BinaryIO = open(  # noqa: SIM115  (closed by __exit__)
                path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelFileError(
                f"The GGUF file {str(path)!r} cannot be opened ({reason}): check the path."
            ) from error
        self._budget = _MAX_VALUES
        try:
            status = os.fstat(self._file.fileno())
            if not stat.S_ISREG(status.st_mode):
                self.fail("it is not a regular file")
            self.size = status.st_size
            self._parse()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fail(self, reason: str) -> NoReturn:
        """Refuse this file.

        Raises:
            ModelFileError: Always.
        """
        raise ModelFileError(
            f"The GGUF file {str(self.path)!r} cannot be used: {reason}; get a fresh copy or "
            "another file."
        )

    def read_rows(self, info: TensorInfo) -> np.ndarray:
        """The bytes of a tensor of this file.

        Returns:
            uint8 (rows, bytes of a row); one row for a tensor of one dimension.

        Raises:
            ModelFileError: If the file has changed or cannot be read.
        """
        try:
            self._file.seek(info.offset)
            data = np.fromfile(self._file, dtype=np.uint8, count=info.nbytes)
        except OSError as error:
            self.fail(f"reading it failed ({error.strerror})")
        if data.nbytes != info.nbytes:
            self.fail("it became shorter while it was read")
        return data.reshape(-1, info.row_bytes)

    # Parsing. Every read goes through _take, which knows what is left.

    def _parse(self) -> None:
        if self.size < 24:
            self.fail("it is too short to have a header")
        magic, version = struct.unpack("<4sI", self._take(8))
        if magic != b"GGUF":
            self.fail("it does not begin with the letters GGUF")
        if version not in (2, 3):
            big = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
            self.fail(f"its version is {version}{big} where 2 and 3 are known")
        tensor_count, key_count = struct.unpack("<QQ", self._take(16))
        if key_count > min(_MAX_KEYS, self._left // 13):
            self.fail(f"it claims {key_count} metadata keys")
        if tensor_count > min(_MAX_TENSORS, self._left // 24):
            self.fail(f"it claims {tensor_count} tensors")
        values: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._text(_MAX_KEY_BYTES, "a metadata key")
            if key in values:
                self.fail(f"the metadata key {key!r} stands in it twice")
            values[key] = self._value(key)
        self.metadata = Metadata(self.path, values)
        alignment = self.metadata.integer("general.alignment", 1, _MAX_ALIGNMENT, default=32)
        if alignment & (alignment - 1):
            self.fail(f"its alignment {alignment} is not a power of two")
        entries = [self._tensor() for _ in range(tensor_count)]
        start = -(-self._file.tell() // alignment) * alignment
        self.tensors = self._place(entries, start, alignment)

    @property
    def _left(self) -> int:
        return min(self.size, _MAX_METADATA_BYTES) - self._file.tell()

    def _take(self, count: int) -> bytes:
        if count > self._left:
            self.fail("it ends in the middle of its tables, or they are larger than 256 MiB")
        try:
            data = self._file.read(count)
        except OSError as error:
            self.fail(f"reading it failed ({error.strerror})")
        if len(data) != count:
            self.fail("it became shorter while it was read")
        return data

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _spend(self, count: int, key: str) -> None:
        self._budget -= count
        if self._budget < 0:
            self.fail(f"its metadata holds more than {_MAX_VALUES} values at {key!r}")

    def _text(self, limit: int, what: str) -> str:
        length = self._u64()
        if length > limit:
            self.fail(f"{what} is {length} bytes long")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")

    def _value(self, key: str) -> Value:
        kind = self._u32()
        self._spend(1, key)
        if kind == _STRING:
            return self._text(_MAX_TEXT_BYTES, f"the value of {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        return self._numbers(kind, 1, key)[0].item()

    def _array(self, key: str) -> Value:
        kind, count = self._u32(), self._u64()
        self._spend(count, key)
        if kind != _STRING:
            return self._numbers(kind, count, key)
        if count * 8 > self._left:
            self.fail(f"the array {key!r} claims {count} strings")
        what = f"a string of {key!r}"
        return [self._text(_MAX_TEXT_BYTES, what) for _ in range(count)]

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray[Any, Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            self.fail(f"the metadata key {key!r} has the unknown type {kind}")
        data = self._take(count * np.dtype(dtype).itemsize)
        if dtype == "?" and data.strip(b"\0\1"):
            self.fail(f"the metadata key {key!r} holds a truth value that is neither 0 nor 1")
        return np.frombuffer(data, dtype=dtype)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text(_MAX_NAME_BYTES, "a tensor's name")
        dimensions = self._u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self.fail(f"the tensor {name!r} claims {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))[::-1]
        return name, shape, self._u32(), self._u64()

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        total = 0
        for name, shape, kind, offset in entries:
            if name in tensors:
                self.fail(f"the tensor {name!r} stands in it twice")
            known = GGML_TYPES.get(kind)
            if known is None:
                self._refuse_type(name, kind)
            elements = 1
            for size in shape:
                elements *= size  # Python's integers: no overflow to hide in.
            if elements == 0 or shape[-1] % known.block_size:
                self.fail(f"the tensor {name!r} has the shape {shape}, not one of {known.name}")
            nbytes = elements // known.block_size * known.block_bytes
            total += nbytes
            # The sum too: tensors that share bytes would make a small file a large folder.
            if offset % alignment or start + offset + nbytes > self.size or total > self.size:
                self.fail(f"the tensor {name!r} lies outside the file, or not where it may lie")
            tensors[name] = TensorInfo(name, known, shape, start + offset, nbytes)
        return tensors

    def _refuse_type(self, name: str, kind: int) -> NoReturn:
        known = ", ".join(each.name for each in GGML_TYPES.values())
        raise ModelFileError(
            f"The tensor {name!r} of the GGUF file {str(self.path)!r} has the type "
            f"{_OTHER_TYPES.get(kind, f'number {kind}')}, which cannot be converted: use a file "
            f"with only {known}."
        )
