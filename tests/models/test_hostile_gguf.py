"""Files that lie: a sentence, in bounded time and memory, and never another error."""

from __future__ import annotations

import os
import random
import resource
import struct
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_mlx_plugin.models.convert import convert_gguf
from sglang_mlx_plugin.models.errors import ModelFileError
from sglang_mlx_plugin.models.gguf import GGUFFile
from tests.models.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "tiny.gguf"
    write_gguf(path)
    return path.read_bytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def alignment(value: int) -> bytes:
    return text("general.alignment") + struct.pack("<II", 4, value)


PAD = bytes(4096)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (b"GGUF", "too short"),
        (b"GGML" + PAD, "letters GGUF"),
        (header(0, 0, PAD, version=1), "version is 1"),
        (header(0, 0, PAD, version=3 << 24), "big-endian"),
        (header(0, 2**63, PAD), "metadata keys"),
        (header(0, 2**64 - 1, PAD), "metadata keys"),
        (header(2**63, 0, PAD), "tensors"),
        (header(0, 1, struct.pack("<Q", 2**62) + PAD), "bytes long"),
        (header(0, 1, text("k" * 60000)), "ends in the middle"),
        (header(0, 1, text("k") + struct.pack("<I", 99) + PAD), "unknown type 99"),
        (header(0, 1, text("k") + struct.pack("<IQ", 8, 2**60) + PAD), "bytes long"),
        (header(0, 1, text("k") + struct.pack("<IQ", 8, 3) + b"\xff\xfe\xfd" + PAD), "UTF-8"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 8, 2**60) + PAD), "more than"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 8, 10**6) + PAD), "claims 1000000"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 6, 10**6) + PAD), "ends in the middle"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 9, 1) + PAD), "unknown type 9"),
        (header(0, 1, text("k") + struct.pack("<IB", 7, 2) + PAD), "neither 0 nor 1"),
        (header(0, 2, (text("k") + struct.pack("<IB", 0, 1)) * 2 + PAD), "twice"),
        (header(0, 1, alignment(0) + PAD), "from 1 to"),
        (header(0, 1, alignment(48) + PAD), "power of two"),
        (header(0, 1, alignment(2**31) + PAD), "from 1 to"),
        (header(1, 0, tensor("t", [4] * 5) + PAD), "5 dimensions"),
        (header(1, 0, tensor("t", []) + PAD), "0 dimensions"),
        (header(1, 0, tensor("t", [0, 4]) + PAD), "has the shape"),
        (header(1, 0, tensor("t", [4, 2**62]) + PAD), "outside the file"),
        (header(1, 0, tensor("t", [2**32, 2**32]) + PAD), "outside the file"),
        (header(1, 0, tensor("t", [2**63, 2**63, 2**63, 2**63]) + PAD), "outside the file"),
        (header(1, 0, tensor("t", [33], kind=3) + PAD), "has the shape"),
        (header(1, 0, tensor("t", [4], offset=2**64 - 32) + PAD), "outside the file"),
        (header(1, 0, tensor("t", [4], offset=1) + PAD), "not where it may lie"),
        (header(1, 0, tensor("t", [4], offset=8192) + PAD), "outside the file"),
        (header(2, 0, tensor("t", [4]) * 2 + PAD), "twice"),
        # Tensors over the same bytes: a small file that would make a large folder.
        (header(9, 0, b"".join(tensor(f"t{n}", [256]) for n in range(9)) + PAD), "outside"),
        (header(1, 0, tensor("t", [256], kind=16) + PAD), "type IQ2_XXS, which cannot"),
        (header(1, 0, tensor("t", [256], kind=4444) + PAD), "type number 4444"),
    ],
)
def test_each_lie_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(data)
    started = time.monotonic()
    with pytest.raises(ModelFileError, match=words) as caught, GGUFFile(path):
        pass
    assert time.monotonic() - started < 2
    assert "\n" not in str(caught.value)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path, tmp_path / "none"):
        with pytest.raises(ModelFileError, match=r"not a regular file|cannot be opened"):
            GGUFFile(path)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        GGUFFile(Path("nul\0byte"))


def test_a_sparse_giant_costs_nothing(tmp_path: Path) -> None:
    """A file that claims 16 GiB, and has them: its tables are bounded all the same."""
    path = tmp_path / "giant.gguf"
    with path.open("wb") as file:
        file.write(header(0, 1, text("k") + struct.pack("<IIQ", 9, 8, 2**31)))
        file.truncate(16 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError):
        GGUFFile(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_file_that_shrinks_while_it_is_read(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(sound)
    with GGUFFile(path) as file:
        os.truncate(path, len(sound) // 2)
        with pytest.raises(ModelFileError, match="shorter"):
            for info in file.tensors.values():
                file.read_rows(info)


def refuses_or_converts(data: bytes) -> bool:
    """Whether the bytes convert; any error but ours goes through to the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fuzz.gguf")
        path.write_bytes(data)
        target = Path(folder, "model")
        target.mkdir()
        try:
            convert_gguf(path, target)
        except ModelFileError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 1500
            return False
        return True


def test_the_sound_file_converts(sound: bytes) -> None:
    assert refuses_or_converts(sound)


fuzzing = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "150")),
    # Shared machines pause; a hang or an explosion takes far longer than this.
    deadline=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@fuzzing
@given(data=st.data())
def test_any_change_of_bytes(sound: bytes, data: st.DataObject) -> None:
    changed = bytearray(sound)
    # Mostly within the tables: that is where a lie has consequences.
    tables = 12_000
    for _ in range(data.draw(st.integers(1, 6))):
        limit = data.draw(st.sampled_from([400, tables, len(changed)]))
        at = data.draw(st.integers(0, min(limit, len(changed)) - 1))
        piece = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=16),
                st.sampled_from([b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"\x01"]),
            )
        )
        changed[at : at + len(piece)] = piece
    refuses_or_converts(bytes(changed))


@fuzzing
@given(data=st.data())
def test_any_cut_or_insertion(sound: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sound)))
    length = data.draw(st.sampled_from([0, 1, 4, 8, 32, len(sound)]))
    piece = data.draw(st.binary(max_size=40))
    refuses_or_converts(sound[:start] + piece + sound[start + length :])


@fuzzing
@given(seed=st.integers(0, 2**32), size=st.integers(0, 2000))
def test_noise_behind_a_header(seed: int, size: int) -> None:
    noise = random.Random(seed).randbytes(size)
    counts = random.Random(seed + 1)
    assert not refuses_or_converts(header(counts.randrange(4), counts.randrange(4), noise))
