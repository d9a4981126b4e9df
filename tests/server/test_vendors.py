"""Three vendors at once behind a launched server: each is obeyed, the rest stays as it is."""

from __future__ import annotations

import json
import re
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
POOL = "sglang_mlx_create_request_pool"
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
        SGLANG_MLX_HOOKS=(
            f"{CAP}=sglang-mlx-quiet-queue,{STORE}=sglang-mlx-int8-kv,{POOL}=sglang-mlx-everything"
        ),
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


def test_int8_kv_supplies_the_auxiliary_state_pool(tmp_path: Path) -> None:
    """A hybrid model served with its pool and its store: as many as wished, none lost."""
    model, config = build("qwen3_next")
    save(model, {**config, "architectures": ["Qwen3NextForCausalLM"]}, tmp_path / "model")
    environ = vendor_environ(
        install_vendor(INT8_KV, tmp_path / "vendor"), SGLANG_MLX_TRACE_HOOKS="1"
    )
    arguments = ("--max-running-requests", "3", "--mem-fraction-static", "0.2")
    with launched(tmp_path / "model", tmp_path, *arguments, env=environ) as server:
        prompts = [[5, 9, 17 + index, *range(3, 3 + index)] for index in range(12)]
        answers = server.together(
            [{"tokens": each, "max_new_tokens": 8, "ignore_eos": True} for each in prompts]
        )
        assert all(len(answer["output_ids"]) == 8 for answer in answers)
        # The scheduler checks its pools while idle, and ends if a slot is missing.
        server.flush()
        assert server.process.poll() is None, server.tail()
        log = server.log.read_text()
    for hook in (POOL, STORE):
        assert f"hook {hook} answered by plugin 'int8-kv'" in log
    accounts = [
        (int(used), int(size), int(taken))
        for used, size, taken in re.findall(
            r"int8-kv: (\d+) of (\d+) auxiliary slots, (\d+) bytes", log
        )
    ]
    assert [used for used, _, _ in accounts] == sorted({used for used, _, _ in accounts})
    most, size, taken = accounts[-1]
    assert 3 <= most <= size
    assert taken == most * accounts[0][2] // accounts[0][0]
