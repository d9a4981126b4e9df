"""What our source uses of upstream is found by itself, types followed through annotations."""

from __future__ import annotations

import pytest

from sglang_mlx_plugin.contracts.contract import Contract
from sglang_mlx_plugin.contracts.demand import Role
from sglang_mlx_plugin.contracts.inventory import take_inventory
from sglang_mlx_plugin.contracts.static import check
from sglang_mlx_plugin.contracts.universe import Universe
from sglang_mlx_plugin.contracts.usage import collect_uses
from tests.support.trees import EditedTree, TextTree

UPSTREAM = TextTree(
    {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/batch.py": """
            from dataclasses import dataclass
            from typing import List, Optional
            class Params:
                def __init__(self): self.seed = 1
            class Req:
                def __init__(self, rid: str, params: Params):
                    self.rid = rid
                    self.params = params
                def finish(self, reason): ...
            @dataclass
            class Batch:
                reqs: List[Req]
                chunked: Optional["Req"] = None
                @property
                def size(self) -> int: return 1
            @dataclass
            class Result:
                tokens: object = None
        """,
        "sglang/srt/worker.py": """
            from sglang.srt.batch import Batch, Result
            class Runner:
                def __init__(self):
                    self.pool = None
                    self.initialize()
                def initialize(self): self.started = True
                def alloc(self, config=None): self._pools()
                def _pools(self): self.pool = 1
            class Worker:
                def __init__(self, args):
                    self.args = args
                    self._runner = Runner()
                @property
                def model_runner(self) -> Runner: return self._runner
                def forward(self, batch: Batch) -> Result: ...
                def info(self): return 1, 2
        """,
        "sglang/srt/scheduler.py": """
            from sglang.srt.worker import Worker
            class Scheduler:
                def __init__(self, args):
                    self.args = args
                    self.make_worker()
                    a, b = self.worker.info()
                    self.worker.model_runner.alloc(None, layout=1)
                    if self.worker.model_runner.pool: ...
                    release = getattr(self.worker, "release", None)
                def make_worker(self): self.worker = Worker(self.args)
                def step(self, batch): return self.worker.forward(batch)
            def loop(scheduler): scheduler.step(1)
            def run(args): loop(Scheduler(args))
        """,
        "sglang/srt/registry.py": """
            class Registry:
                @classmethod
                def register(cls, target, hook, kind=None): ...
        """,
        "sglang/srt/context.py": """
            class Bag: ...
            class Context:
                def config_bag(self, name): ...
            _C = Context()
            def get_schedule() -> Bag:
                return _C.config_bag("schedule")
        """,
        "sglang/srt/arg_groups/__init__.py": "",
        "sglang/srt/arg_groups/fields/__init__.py": "",
        "sglang/srt/arg_groups/fields/schedule.py": """
            class Schedule:
                _NS_PATH = "schedule"
                max_tokens: int = 1
        """,
    },
    "1.0",
)

OURS = TextTree(
    {
        "mine/__init__.py": "",
        "mine/worker.py": """
            from __future__ import annotations
            from typing import TYPE_CHECKING
            from sglang.srt.batch import Result
            from sglang.srt.context import get_schedule
            from sglang.srt.worker import Runner, Worker
            if TYPE_CHECKING:
                from sglang.srt.batch import Batch

            class MyRunner(Runner):
                def initialize(self): self.engine = 1
                def alloc(self, config=None, *, layout=None): ...

            class MyWorker(Worker):
                def __init__(self, args):
                    super().__init__(args)
                    self._runner = MyRunner()
                def forward(self, batch: Batch) -> Result:
                    for index, req in enumerate(batch.reqs):
                        seed = req.params.seed
                        req.finish("stop")
                    if batch.chunked is not None:
                        batch.chunked.rid
                    limit = get_schedule().max_tokens
                    engine = self.model_runner.engine
                    return Result(tokens=batch.size)
                def info(self): return 1, 2
                def release(self, req): ...
        """,
        "mine/launch.py": """
            from sglang.srt.registry import Registry
            from mine.worker import MyWorker
            def make(scheduler): scheduler.worker = MyWorker(scheduler.args)
            def around(original, scheduler): original(scheduler)
            def register():
                Registry.register("sglang.srt.scheduler.Scheduler.make_worker", make, "REPLACE")
                Registry.register("sglang.srt.scheduler.loop", around, "AROUND")
        """,
    }
)

ROLES = (
    Role("worker", "sglang.srt.worker.Worker", ("worker",), ("sglang.srt.scheduler",)),
    Role("runner", "sglang.srt.worker.Runner", ("model_runner",), ("sglang.srt.scheduler",)),
)


def _check(upstream=UPSTREAM, ours=OURS, rows=()):
    return check(upstream, ours, rows, package="mine", roles=ROLES)


def _sentences(**edits: object) -> str:
    return "\n".join(problem.sentence for problem in _check(**edits).problems)


def test_uses_are_found_through_annotations_loops_and_constructors() -> None:
    uses = collect_uses(Universe(OURS, UPSTREAM), OURS, "mine")
    found = {(use.kind, use.target.removeprefix("sglang.srt.")) for use in uses}
    assert {
        ("import", "batch.Batch"),
        ("override", "worker.Runner.initialize"),
        ("override", "worker.Worker.forward"),
        ("call", "worker.Worker.__init__"),
        ("write", "worker.Worker._runner"),
        ("read", "batch.Batch.reqs"),
        ("read", "batch.Req.params"),
        ("read", "batch.Params.seed"),
        ("call", "batch.Req.finish"),
        ("read", "batch.Req.rid"),
        ("read", "batch.Batch.size"),
        ("read", "context.get_schedule().max_tokens"),
        ("construct", "batch.Result"),
        ("hook", "scheduler.Scheduler.make_worker"),
        ("hook", "scheduler.loop"),
        ("call", "registry.Registry.register"),
    } <= found
    assert not any("engine" in target or "release" in target for _, target in found)


def test_a_release_that_fits_has_no_problem() -> None:
    report = _check()
    assert report.ok, report.problems
    assert report.asked["runner.alloc"] == "us"
    assert report.asked["runner.pool"] == "the base"


@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        ("batch.py", "def finish(self, reason)", "def end(self, reason)", "batch.Req.finish"),
        ("batch.py", "def finish(self, reason)", "def finish(self, reason, at)", "'at'"),
        ("batch.py", "self.seed = 1", "self.seeds = 1", "the nearest name there is seeds"),
        ("batch.py", "tokens: object", "token_ids: object", "unexpected keyword argument 'tokens'"),
        ("batch.py", "@property\n    def size", "def size", "reads it as a value, and it is a me"),
        ("batch.py", "def finish", "@property\n    def finish", "it is a property now"),
        ("batch.py", "class Batch:", "class ScheduleBatch:", "batch.Batch: worker.py:8 uses it"),
        ("worker.py", "def forward(self, batch", "def forward(self, plan, batch", "does not"),
        ("worker.py", "def initialize", "@property\n    def initialize", "is a property now"),
        ("worker.py", "self.pool = None", "pass", "has no answer"),
        ("scheduler.py", "alloc(None, layout=1)", "alloc(None, layout=1, x=2)", "'x'"),
        ("scheduler.py", "a, b = self", "a, b, c = self", "unpacks 3 values"),
        ("scheduler.py", "model_runner.pool:", "model_runner.swa:", "Runner.swa"),
        ("scheduler.py", "def make_worker(self)", "def make_worker(self, rank)", "'rank'"),
        ("scheduler.py", "        self.make_worker()", "        self.make_worker(1)", "too many"),
        ("scheduler.py", "def loop(scheduler)", "def main_loop(scheduler)", "scheduler.loop"),
        ("scheduler.py", "loop(Scheduler(args))", "loop(Scheduler(args), 1)", "too many"),
        ("context.py", "def get_schedule()", "def get_plan()", "context.get_schedule"),
        ("arg_groups/fields/schedule.py", "max_tokens", "max_total", "get_schedule().max_tokens"),
    ],
)
def test_a_change_of_upstream_is_named(path: str, old: str, new: str, named: str) -> None:
    sentences = _sentences(upstream=EditedTree(UPSTREAM, {f"sglang/srt/{path}": [(old, new)]}))
    assert named in sentences


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("config=None, *, layout=None", "config=None", "layout"),
        ("def info(self): return 1, 2", "def info(self): return 1, 2, 3", "returns 3"),
        ("def forward(self, batch:", "def forward(self, batch, extra:", "'extra'"),
        ("super().__init__(args)", "super().__init__(args, 1)", "too many"),
    ],
)
def test_a_change_of_ours_is_named(old: str, new: str, named: str) -> None:
    sentences = _sentences(ours=EditedTree(OURS, {"mine/worker.py": [(old, new)]}))
    assert named in sentences


def test_a_deleted_override_is_named_by_its_row() -> None:
    row = Contract(
        target="sglang.srt.worker.Runner.alloc",
        use="override",
        ours="mine.worker.MyRunner.alloc",
        why="",
        breaks="the server dies",
    )
    assert _check(rows=[row]).ok
    gone = EditedTree(
        OURS, {"mine/worker.py": [("def alloc(self, config=None, *, layout=None): ...", "pass")]}
    )
    assert "mine.worker.MyRunner.alloc, is not defined; without it the server dies" in _sentences(
        ours=gone, rows=[row]
    )


def test_a_name_that_upstream_asks_for_by_convention_is_watched() -> None:
    row = Contract(
        target="sglang.srt.worker.Worker.release",
        use="implement",
        ours="mine.worker.MyWorker.release",
        why="",
        breaks="",
    )
    assert _check(rows=[row]).ok
    quiet = EditedTree(UPSTREAM, {"sglang/srt/scheduler.py": [('"release"', '"let_go"')]})
    assert "nothing in upstream asks for it" in _sentences(upstream=quiet, rows=[row])


def test_a_line_may_be_meant_for_some_releases_only() -> None:
    old = 'req.finish("stop")'
    wrong = {"mine/worker.py": [(old, 'req.stop("stop")  # contracts: since 2.0')]}
    assert _check(ours=EditedTree(OURS, wrong)).ok
    wrong = {"mine/worker.py": [(old, 'req.stop("stop")  # contracts: since 0.9, until 1.0')]}
    assert "batch.Req.stop" in _sentences(ours=EditedTree(OURS, wrong))


def test_a_row_outside_its_releases_is_not_asked_for() -> None:
    def row(**bounds: str) -> Contract:
        return Contract(target="sglang.srt.x.y", use="read", why="", breaks="", **bounds)

    assert _check(rows=[row(since="2.0")]).ok
    assert _check(rows=[row(until="0.9")]).ok
    assert not _check(rows=[row(since="1.0")]).ok


def test_the_inventory_names_what_lacks_a_row_and_what_nothing_uses() -> None:
    rows = [
        Contract(target=f"sglang.srt.{name}", use="read", why="", breaks="")
        for name in ("batch.Batch.reqs", "batch.Params.seed", "batch.Req.nothing")
    ]
    inventory = take_inventory(UPSTREAM, OURS, "mine", rows)
    missing = {use.target.removeprefix("sglang.srt.") for use in inventory.missing}
    assert "batch.Req.rid" in missing
    assert "batch.Batch" not in missing  # its import is said by the row of a member
    assert not missing & {"batch.Batch.reqs", "batch.Params.seed"}
    assert [row.target for row in inventory.stale] == ["sglang.srt.batch.Req.nothing"]
