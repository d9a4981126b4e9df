"""Fake contestants and a folder with a tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_mlx_plugin.bench.contestants import Contestant, Launch, Setting
from sglang_mlx_plugin.bench.types import CallResult, RoundResult

HERE = Path(__file__).parent
EVERYTHING = frozenset({"lanes", "chat", "sampling", "grammar"})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte tokenizer and nothing else."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("folder")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def setting(folder: Path, tmp_path: Path) -> Setting:
    return Setting(folder=folder, work=tmp_path, kind="cpu", library=None)


@pytest.fixture
def fake() -> Callable[..., Contestant]:
    """Makes a fake contestant: its name, and the fake server's arguments."""

    def make(
        name: str,
        *args: str,
        features: frozenset[str] = EVERYTHING,
        why_not: str | None = None,
        pipe: bool = False,
    ) -> Contestant:
        if pipe:
            argv = (sys.executable, str(HERE / "fake_bare.py"))
        else:
            argv = (sys.executable, str(HERE / "fake_server.py"), "{port}", *args)
        return Contestant(
            name=name,
            what=f"a fake with {args}",
            launch=lambda setting: Launch(argv=argv, body={"model": name}),
            why_not=lambda setting: why_not,
            features=features,
            pipe=pipe,
        )

    return make


@pytest.fixture
def make_round() -> Callable[..., RoundResult]:
    """Makes a round with one call of `tokens` tokens at a steady gap."""

    def make(
        contestant: str = "ours",
        *,
        repeat: int = 0,
        gap_s: float = 0.1,
        tokens: int = 10,
        workload: str = "decode",
        level: int = 1,
        label: str = "",
        error: str | None = None,
    ) -> RoundResult:
        pieces = [gap_s * (index + 1) for index in range(tokens)]
        call = CallResult(
            label=label,
            lane=0,
            turn=0,
            start_s=0.0,
            pieces_s=pieces,
            wall_s=pieces[-1],
            tokens=tokens,
            text="x",
            error=error,
        )
        return RoundResult(
            workload=workload,
            level=level,
            contestant=contestant,
            repeat=repeat,
            wall_s=pieces[-1],
            calls=[call],
            load=0.5,
        )

    return make
