"""``sglang-mlx contracts``: exit status 0 when all hold, 1 when not, 2 when nothing can be read."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from sglang_mlx_plugin.contracts import history, releases
from sglang_mlx_plugin.contracts.command import add_parser
from sglang_mlx_plugin.contracts.report import Problem, Report


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MLX_CACHE", str(tmp_path / "cache"))


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["contracts", *arguments])
    return args.run(args)


def test_the_installed_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == 0
    assert "all hold" in capsys.readouterr().out
    assert _run("--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_a_folder_that_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "version.py").write_text('__version__ = "0.9.0"\n')
    assert _run("--path", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert "broken  model_executor.model_runner.ModelRunner.alloc_memory_pool" in out
    assert "SGLang 0.9.0:" in out


def test_no_release_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--path", str(tmp_path)) == 2
    assert _run("--release", "newest") == 2
    assert "write one like 0.5.23" in capsys.readouterr().err


def _report(release: str, broken: bool, described: str, *asked: str) -> Report:
    problems = [Problem("a.b", "x.py:1", f"a.b: wrong in {release}")] if broken else []
    return Report(
        release, problems, asked=dict.fromkeys(asked, "the base"), described={"a.b": described}
    )


def test_the_matrix_dates_each_break_and_each_new_demand() -> None:
    found = history.build_history(
        [
            _report("1.0", True, "-"),
            _report("1.1", False, "(x)", "runner.a"),
            _report("1.2", False, "(x)", "runner.a", "runner.b"),
            _report("1.3", True, "(x, y)", "runner.b"),
        ]
    )
    (line,) = found.lines
    assert line.spans == (("1.0", "1.0", "-"), ("1.1", "1.2", "(x)"), ("1.3", "1.3", "(x, y)"))
    assert (line.first_break, line.holds_since) == ("1.3", "1.1")
    assert line.sentence == "a.b: wrong in 1.3"
    assert "".join(map(line.mark, found.releases)) == "xoox"
    assert found.new == {"1.1": ("runner.a",), "1.2": ("runner.b",), "1.3": ()}
    assert "breaks at 1.3: a.b: wrong in 1.3" in history.render_history(found)
    later = _report("1.4", False, "(x)", "runner.b", "runner.c")
    (note,) = history.unrecorded_demands(found, later)
    assert "runner for c" in note


def test_a_recorded_matrix_is_read_back(tmp_path: Path) -> None:
    found = history.build_history(
        [_report("1.0", False, "(x)"), _report("1.1", True, "(y)", "r.a")]
    )
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(found.as_json()))
    assert history.load_history(path) == found


def test_a_range_takes_the_last_post_release_of_each_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = ["0.5.13", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17"]
    monkeypatch.setattr(
        releases, "known_releases", lambda: [releases.parse_version(v) for v in known]
    )
    monkeypatch.setattr(releases, "download", lambda release: Path(str(release)))

    def names(text: str) -> list[str]:
        return [str(path) for path in releases.wheels_in_range(text)]

    assert names("0.5.14..0.5.16") == ["0.5.14", "0.5.15.post1", "0.5.16"]
    assert names("0.5.16..") == ["0.5.16", "0.5.17"]
    assert names("0.5.13,0.5.17") == ["0.5.13", "0.5.17"]
    with pytest.raises(releases.SourceError, match="no release"):
        names("0.6.0..")
