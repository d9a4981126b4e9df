"""The check at start-up: quick the second time, honest about changes, imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_mlx_plugin._env import cache_folder
from sglang_mlx_plugin.contracts import cache, live
from sglang_mlx_plugin.contracts.report import Problem, Report
from sglang_mlx_plugin.contracts.source import FolderTree, SourceError, open_tree
from tests.support.trees import TextTree


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MLX_CACHE", str(tmp_path / "cache"))


def test_the_second_check_takes_under_a_third_of_a_second() -> None:
    first = live.check_installed()
    # Processor time, and the best of some: other tests run beside this one.
    took = []
    for _ in range(5):
        started = time.process_time()
        second = live.check_installed()
        took.append(time.process_time() - started)
    assert min(took) < 0.3
    assert second.as_json() == first.as_json()


def test_a_changed_file_of_the_release_is_seen(tmp_path: Path) -> None:
    srt = tmp_path / "sglang" / "srt"
    srt.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (srt / "a.py").write_text("x = 1\n")
    before = FolderTree(tmp_path).fingerprint()
    assert FolderTree(tmp_path).fingerprint() == before
    (srt / "a.py").write_text("x = 10\n")
    assert FolderTree(tmp_path).fingerprint() != before


def test_a_change_of_ours_is_seen_where_it_concerns_sglang(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    files = {
        tmp_path / "contracts" / "a.py": "x = 1\n",
        tmp_path / "host.py": "from sglang.srt import x\n",
        tmp_path / "engine.py": "import sglang_mlx_plugin.engine\n",
    }
    for path, text in files.items():
        path.write_text(text)
    seen = [cache.our_fingerprint(tmp_path)]
    for path, text in files.items():
        path.write_text(f"{text}y = 2\n")
        seen.append(cache.our_fingerprint(tmp_path))
    first, contracts, host, engine = seen
    assert first != contracts != host == engine


def test_a_report_survives_its_file_and_a_spoilt_file_is_no_report() -> None:
    report = Report("1.0", [Problem("a.b", "c.py:1", "a.b: gone")], ["note"], {"rows": 1})
    cache.store_report("key", report)
    assert cache.load_report("key") == report
    path = cache_folder() / "contracts" / "key.json"
    for text in ("", "{}", "[]", '{"release": 1}'):
        path.write_text(text)
        assert cache.load_report("key") is None


def test_a_cache_that_cannot_be_written_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MLX_CACHE", "/proc/nowhere")
    tree = TextTree({"sglang/__init__.py": "", "sglang/srt/__init__.py": ""}, "0.5.23")
    assert not live.check_tree(tree).ok


@pytest.mark.parametrize("make", ["missing", "empty", "text.whl"])
def test_a_path_that_is_no_release_is_refused_in_a_sentence(tmp_path: Path, make: str) -> None:
    path = tmp_path / make
    if make == "empty":
        path.mkdir()
    elif make == "text.whl":
        path.write_text("no wheel")
    with pytest.raises(SourceError, match=r"holds no SGLang sources|cannot be read as a wheel"):
        open_tree(path)


def test_the_room_needs_the_standard_library_and_packaging_only() -> None:
    code = (
        "import sys, json\n"
        "from sglang_mlx_plugin.contracts import command, docs, inventory, live\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(json.dumps([n for n in ('sglang', 'mlx', 'torch', 'numpy') if n in names]))\n"
        "print(json.dumps([n for n in sys.modules if n.startswith('sglang_mlx_plugin.')]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy, ours = map(json.loads, answer.stdout.splitlines())
    assert heavy == []
    rooms = {name.split(".")[1] for name in ours}
    assert rooms <= {"_env", "_version", "contracts"}
