"""Figures, the table, the plot and the comparison, on made-up rounds."""

from __future__ import annotations

import json

import pytest

from sglang_mlx_plugin.bench import compare, metrics, plot, report
from sglang_mlx_plugin.bench.record import Record
from sglang_mlx_plugin.bench.types import BenchError

MACHINE = {"cpu": "a cpu", "cores": 2, "memory_bytes": 2**30, "system": "Linux"}
CONTESTANTS = [
    {"name": name, "what": name, "startup_s": [1.0]} for name in ("ours", "mlx_lm.server")
]


def record(make_round, ours, theirs, machine=MACHINE):
    rounds = []
    for repeat, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        rounds.append(make_round("ours", repeat=repeat, gap_s=a))
        rounds.append(make_round("mlx_lm.server", repeat=repeat, gap_s=b))
    return Record({"machine": machine}, list(CONTESTANTS), [], rounds)


def test_figures_of_a_round(make_round):
    result = make_round(gap_s=0.1, tokens=10)
    assert metrics.value(result, "tokens_per_s") == pytest.approx(10)
    assert metrics.value(result, "ttft_s") == pytest.approx(0.1)
    assert metrics.value(result, "gap_s") == pytest.approx(0.1)
    result.calls[0].pieces_s[5:] = [each + 1 for each in result.calls[0].pieces_s[5:]]
    assert metrics.value(result, "worst_gap_s") == pytest.approx(1.1)
    assert metrics.value(result, "worst_gap_s:nobody") is None


def test_a_round_with_an_error_has_no_figure(make_round):
    assert metrics.value(make_round(error="no"), "tokens_per_s") is None
    good, bad = make_round(), make_round(repeat=1, error="no")
    summary = metrics.summarise([good, bad], "tokens_per_s")
    assert summary is not None and len(summary.values) == 1


def test_ratios_go_repeat_by_repeat_and_up_is_better(make_round):
    ours = [make_round(repeat=i, gap_s=gap) for i, gap in enumerate((0.1, 0.2))]
    theirs = [make_round("other", repeat=i, gap_s=gap) for i, gap in enumerate((0.2, 0.6))]
    for name in ("tokens_per_s", "ttft_s"):
        summary = metrics.ratios(ours, theirs, name)
        assert summary is not None
        assert summary.values == pytest.approx((2, 3))


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ([10, 10.1, 9.9], [12, 12.1, 11.9], True),
        ([10, 12, 8], [11, 13, 9], False),
        ([10, 10.001, 9.999], [10.1, 10.101, 10.099], False),  # sure, and not worth a word
        ([10], [20, 21], None),
        ([10, 10], [20, 20], True),
    ],
)
def test_beyond_the_noise(a, b, differs):
    assert metrics.welch_differs(a, b) is differs


def test_welch_critical_values_hold_their_level():
    # Two sets from one distribution are called different about once in a hundred times.
    import random

    source = random.Random(1)
    called = 0
    for _ in range(2000):
        a, b = ([100 * 2 ** source.gauss(0, 0.1) for _ in range(5)] for _ in range(2))
        called += bool(metrics.welch_differs(a, b))
    assert called < 40


def test_table(make_round):
    text = report.markdown(record(make_round, (0.1, 0.11, 0.12), (0.2, 0.2, 0.2)))
    assert "| 1 | ours | 9.1 (8.3-10.0) | 110 (100-120) |" in text
    assert "1.82 x (1.67-2.00)" in text
    assert "Same text from ours and mlx_lm.server in 3 of 3" in text
    assert "a cpu, 2 cores, 1 GB" in text
    assert "load average 0.5 to 0.5" in text


def test_a_leading_space_is_no_difference(make_round):
    made = record(make_round, (0.1, 0.1), (0.2, 0.2))
    made.rounds[0].calls[0].text = " x"
    made.rounds[2].calls[0].text = "something else"
    assert "Same text from ours and mlx_lm.server in 1 of 2" in report.markdown(made)


def test_table_shows_labels_failures_and_who_did_not_run(make_round):
    made = record(make_round, (0.1,), (0.2,))
    made.rounds.append(make_round("ours", level=8, label="streams"))
    made.rounds.append(make_round("mlx_lm.server", level=8, error="HTTP 500"))
    made.pass_over("vllm-mlx", None, "it failed:\nsome line\nthe last word.")
    made.pass_over("vllm-mlx", None, "it failed:\nsome line\nthe last word.")
    text = report.markdown(made)
    assert "- streams" in text
    assert "| 8 | mlx_lm.server | failed |" in text
    assert text.count("Not run: vllm-mlx: it failed:; its last words: the last word.") == 1


def test_record_round_trip(make_round, tmp_path):
    made = record(make_round, (0.1,), (0.2,))
    made.write(tmp_path / "deep" / "a.json")
    again = Record.read(tmp_path / "deep" / "a.json")
    assert again.about == made.about
    assert [each.as_data() for each in again.rounds] == [each.as_data() for each in made.rounds]
    assert report.markdown(again) == report.markdown(made)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["{", "{}", "[]", json.dumps({"format": 99})])
def test_a_file_that_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"a\.json"):
        Record.read(path)
    with pytest.raises(BenchError, match="cannot be read"):
        Record.read(tmp_path / "none.json")


def test_compare_finds_what_changed_and_only_that(make_round):
    before = record(make_round, (0.100, 0.101, 0.102), (0.200, 0.201, 0.202))
    after = record(make_round, (0.120, 0.121, 0.122), (0.202, 0.200, 0.201))
    found = {(each.where, each.metric): each for each in compare.compare(before, after)}
    slower = found["decode 1 ours", "tokens_per_s"]
    assert slower.beyond and not slower.better
    assert not found["decode 1 mlx_lm.server", "tokens_per_s"].beyond
    ratio = found["decode 1 ours / mlx_lm.server", "tokens_per_s"]
    assert ratio.beyond and not ratio.better
    text = compare.markdown(before, after)
    assert "| decode 1 ours | tokens_per_s | 9.9 tok/s | 8.3 tok/s | -17 % | WORSE |" in text
    assert "| decode 1 ours / mlx_lm.server | tokens_per_s | 1.99 times | 1.6" in text


def test_compare_on_two_machines_looks_at_ratios_alone(make_round):
    before = record(make_round, (0.100, 0.101, 0.102), (0.200, 0.201, 0.202))
    after = record(make_round, (0.010, 0.0101, 0.0102), (0.020, 0.0201, 0.0202), {"cpu": "faster"})
    assert {each.where for each in compare.compare(before, after)} == {
        "decode 1 ours / mlx_lm.server"
    }
    text = compare.markdown(before, after)
    assert text.startswith("Two different machines")
    assert "0 beyond the noise" in text


def test_compare_says_when_there_are_too_few_repeats(make_round):
    one = record(make_round, (0.1,), (0.2,))
    assert "0 within it, 12 with too few repeats to tell" in compare.markdown(one, one)


def test_plot(make_round, tmp_path):
    made = record(make_round, (0.1, 0.11), (0.2, 0.21))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(BenchError, match="pip install"):
            plot.write_svg(made, tmp_path / "a.svg")
        return
    plot.write_svg(made, tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
