"""Three vendors at once behind a launched server: each is obeyed, the rest stays as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_mlx_plugin.hooks import specs
from tests.support.families import build, save
from tests.support.server import Server, launched
from tests.support.vendors import (
    EVERYTHING,
    INT8_KV,
    QUIET_QUEUE,
    install_vendor,
    vendor_environ,
)

pytestmark = [pytest.mark.server, pytest.mark.install]

CAP, STORE = "sglang_mlx_resolve_max_running_requests", "sglang_mlx_create_kv_store"
# Those that a model with attention layers alone never asks.
HYBRID_ONLY = {"sglang_mlx_auxiliary_slots_per_request"}
EACH_PROCESS = {"sglang_mlx_device"}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls") / "calls"


@pytest.fixture(scope="module")
def server(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model; every vendor installed, the user choosing where two want one hook."""
    folder = tmp_path_factory.mktemp("vendors")
    model, config = build("llama")
    save(model, {**config, "architectures": ["LlamaForCausalLM"]}, folder / "model")
    vendors = [
        install_vendor(path, folder / path.name) for path in (QUIET_QUEUE, EVERYTHING, INT8_KV)
    ]
    environ = vendor_environ(
        *vendors,
        QUIET_QUEUE_MAX="2",
        SGLANG_MLX_HOOKS=f"{CAP}=sglang-mlx-quiet-queue,{STORE}=sglang-mlx-int8-kv",
        SGLANG_MLX_TRACE_HOOKS="1",
        SGLANG_MLX_EVERYTHING_LOG=str(calls),
    )
    arguments = ("--max-total-tokens", "2000", "--mem-fraction-static", "0.2")
    with launched(folder / "model", folder, *arguments, env=environ) as running:
        yield running


def records(calls: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def test_quiet_queue_caps_the_scheduler(server: Server) -> None:
    (state,) = server.get("/get_server_info")["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == 2


def test_each_vendor_answers_its_own_hook(server: Server) -> None:
    log = server.log.read_text()
    assert f"hook {CAP} answered by plugin 'quiet-queue'" in log
    assert f"hook {STORE} answered by plugin 'int8-kv'" in log
    assert "hook sglang_mlx_load_model answered by plugin 'everything'" in log


def test_hooks_are_asked_where_and_as_often_as_their_specs_say(server: Server, calls: Path) -> None:
    found = records(calls)
    counts = Counter(record["hook"] for record in found)
    assert set(counts) == set(specs.__all__) - HYBRID_ONLY - {CAP, STORE}
    assert all(counts[hook] == 1 for hook in set(counts) - EACH_PROCESS)
    devices = Counter(each["process"] for each in found if each["hook"] in EACH_PROCESS)
    assert max(devices.values()) == 2
    # One process asks for the arguments, and another one, in one thread, for all the rest.
    (main,) = {each["process"] for each in found if each["hook"].endswith("args_defaults")}
    others = EACH_PROCESS | {"sglang_mlx_server_args_defaults"}
    rest = {(each["process"], each["thread"]) for each in found if each["hook"] not in others}
    assert len(rest) == 1
    assert main not in {process for process, _ in rest}


def test_no_hook_is_asked_while_requests_are_served(server: Server, calls: Path) -> None:
    before = len(records(calls)), server.log.read_text().count("hook sglang_mlx_")
    answers = server.together(
        [
            {"tokens": [5, 9, 17 + index], "max_new_tokens": 8, "ignore_eos": True}
            for index in range(6)
        ]
    )
    assert all(len(answer["output_ids"]) == 8 for answer in answers)
    assert (len(records(calls)), server.log.read_text().count("hook sglang_mlx_")) == before
