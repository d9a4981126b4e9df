"""The breaks that really happened, found on the real wheels (downloaded once)."""

from __future__ import annotations

import time

import pytest

from sglang_mlx_plugin.contracts import docs, history, releases
from sglang_mlx_plugin.contracts.contract import Contract
from sglang_mlx_plugin.contracts.demand import Role
from sglang_mlx_plugin.contracts.report import Report
from sglang_mlx_plugin.contracts.source import open_tree
from sglang_mlx_plugin.contracts.static import check
from sglang_mlx_plugin.contracts.table import SUPPORTED
from sglang_mlx_plugin.contracts.universe import Universe, describe
from tests.support.trees import TextTree

pytestmark = pytest.mark.releases

RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_CALLERS = ("sglang.srt.managers.tp_worker", "sglang.srt.managers.scheduler")
RUNNER_ROLE = Role("runner", RUNNER, ("model_runner", "mr"), _CALLERS)


def _tree(release: str):
    return open_tree(releases.download(releases.parse_version(release)))


def _consumer(body: str) -> TextTree:
    head = (
        "from sglang.srt.managers.scheduler import Scheduler\n"
        "from sglang.srt.managers.tp_worker import TpModelWorker\n"
        "from sglang.srt.model_executor.model_runner import ModelRunner\n"
    )
    return TextTree({"mine/__init__.py": "", "mine/host.py": head + body})


def _report(release: str, body: str, *rows: Contract, roles: tuple[Role, ...] = ()) -> Report:
    return check(_tree(release), _consumer(body), rows, package="mine", roles=roles)


def _named(report: Report, target: str) -> list[str]:
    return [problem.sentence for problem in report.problems if problem.target == target]


def test_alloc_memory_pool_appears_in_0_5_14() -> None:
    # The in-tree MLX runner did not override it, and the base's ran: the server died.
    body = "class Mine(ModelRunner):\n    def initialize(self, *args): ...\n"
    before = _report("0.5.13", body, roles=(RUNNER_ROLE,))
    after = _report("0.5.14", body, roles=(RUNNER_ROLE,))
    began = history.build_history([before, after]).new["0.5.14"]
    assert "runner.alloc_memory_pool" in began
    row = Contract(target=f"{RUNNER}.alloc_memory_pool", use="override", why="", breaks="")
    assert _named(_report("0.5.13", "", row), row.target)
    assert not _named(_report("0.5.14", "", row), row.target)


def test_initialize_lost_its_parameter_in_0_5_14() -> None:
    body = "class Mine(ModelRunner):\n    def initialize(self, pre_model_load_memory): ...\n"
    assert not _named(_report("0.5.13", body, roles=(RUNNER_ROLE,)), f"{RUNNER}.initialize")
    found = _named(_report("0.5.14", body, roles=(RUNNER_ROLE,)), f"{RUNNER}.initialize")
    assert any("pre_model_load_memory" in sentence for sentence in found), found


@pytest.mark.parametrize("target", [RUNNER, WORKER])
def test_the_constructors_changed_at_four_releases(target: str) -> None:
    names = ["0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
    seen = [(name, describe(Universe(_tree(name)), target)) for name in names]
    changed = [name for (name, text), (_, old) in zip(seen[1:], seen, strict=False) if text != old]
    allowed = {"0.5.16", "0.5.18", "0.5.21", "0.5.22"}
    # The worker's also changed at 0.5.19, seen here at 0.5.20.
    assert allowed <= set(changed) <= allowed | ({"0.5.20"} if target == WORKER else set())


@pytest.mark.parametrize(
    ("written_for", "breaks_at", "parameter"),
    [("0.5.15.post1", "0.5.16", "ps"), ("0.5.20", "0.5.21", "ps")],
)
def test_a_constructor_call_of_the_release_before_does_not_bind(
    written_for: str, breaks_at: str, parameter: str
) -> None:
    required = [
        name
        for name in describe(Universe(_tree(written_for)), RUNNER)[len("class (") : -1].split(", ")
        if not name.endswith("=")
    ]
    body = f"runner = ModelRunner({', '.join(f'{name}=None' for name in required)})\n"
    assert not _named(_report(written_for, body), RUNNER)
    found = _named(_report(breaks_at, body), RUNNER)
    assert any(f"'{parameter}'" in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("target", "release", "parameter"),
    [
        (RUNNER, "0.5.18", "draft_attention_backend"),
        (RUNNER, "0.5.22", "load_group"),
        (WORKER, "0.5.18", "draft_attention_backend"),
        (WORKER, "0.5.22", "load_group"),
    ],
)
def test_a_new_optional_constructor_parameter_is_told(
    target: str, release: str, parameter: str
) -> None:
    previous = {"0.5.18": "0.5.17", "0.5.22": "0.5.21"}[release]
    old = describe(Universe(_tree(previous)), target)[len("class (") : -1]
    signature = ", ".join(f"{n}None" if n.endswith("=") else n for n in old.split(", "))
    base = target.rpartition(".")[2]
    body = f"class Mine({base}):\n    def __init__(self, {signature}): ...\n"
    assert not any(parameter in note for note in _report(previous, body).notes)
    assert any(f"'{parameter}'" in note for note in _report(release, body).notes)


def test_draft_parallel_layout_in_0_5_23() -> None:
    body = (
        "class Mine(ModelRunner):\n"
        "    def initialize(self): ...\n"
        "    def alloc_memory_pool(self, memory_pool_config=None): ...\n"
    )
    target = f"{RUNNER}.alloc_memory_pool"
    assert not _named(_report("0.5.22", body, roles=(RUNNER_ROLE,)), target)
    found = _named(_report("0.5.23", body, roles=(RUNNER_ROLE,)), target)
    assert any("'draft_parallel_layout'" in s and "tp_worker.py:" in s for s in found), found


def test_get_next_batch_to_run_at_0_5_16() -> None:
    body = "def loop(scheduler: Scheduler):\n    scheduler.get_next_batch_to_run()\n"
    target = f"{SCHEDULER}.get_next_batch_to_run"
    assert not _named(_report("0.5.15.post1", body), target)
    assert any("'running_batch'" in s for s in _named(_report("0.5.16", body), target))


def test_ingest_requests_from_0_5_20() -> None:
    body = "def loop(scheduler: Scheduler):\n    scheduler.ingest_requests()\n"
    target = f"{SCHEDULER}.ingest_requests"
    assert any("it is not there" in s for s in _named(_report("0.5.19", body), target))
    assert not _named(_report("0.5.20", body), target)


def test_every_supported_release_keeps_every_contract() -> None:
    found = history.check_wheels([releases.download(releases.parse_version(v)) for v in SUPPORTED])
    assert [report.release for report in found] == list(SUPPORTED)
    assert [problem.sentence for report in found for problem in report.problems] == []


def test_ten_releases_are_quick_and_the_recorded_matrix_is_of_today() -> None:
    paths = releases.wheels_in_range("0.5.14..0.5.23")
    assert len(paths) == 10
    history.check_wheels(paths)
    started = time.perf_counter()
    found = history.build_history(history.check_wheels(paths))
    assert time.perf_counter() - started < 10
    assert history.load_history(docs.RECORD) == found, (
        "record it anew: sglang-mlx contracts --matrix 0.5.14..0.5.23 --record"
    )
