"""``--max-running-requests`` and ``--dp-size`` through a launched server."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.support import families
from tests.support.server import Server, launched

pytestmark = pytest.mark.server

CAP = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a tokenizer: nothing here depends on what it says."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    model, config = families.build("llama")
    families.save(model, {**config, "architectures": ["LlamaForCausalLM"]}, folder)
    return folder


def running(server: Server) -> int:
    """Requests that run at this moment, over all replicas."""
    return sum(int(load["num_running_reqs"]) for load in server.get("/v1/loads")["loads"])


def flood(server: Server, requests: int, tokens: int) -> tuple[list[int], list[int]]:
    """Send `requests` at once; tokens answered, and running requests as sampled meanwhile."""
    answers: list[int] = []
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(running(server))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    calls = [
        {"tokens": [5, 6, 7 + i], "max_new_tokens": tokens, "ignore_eos": True}
        for i in range(requests)
    ]
    for answer in server.together(calls):
        answers.append(answer["meta_info"]["completion_tokens"])
    done.set()
    watcher.join()
    return answers, seen


def test_never_more_than_the_cap_run_at_once(tiny: Path, tmp_path: Path) -> None:
    """Ten requests, three places: all are answered, and no moment sees a fourth."""
    args = ("--max-running-requests", str(CAP), "--mem-fraction-static", "0.1")
    with launched(tiny, tmp_path, *args) as server:
        assert server.get("/get_server_info")["max_running_requests"] == CAP
        answers, seen = flood(server, 10, 60)
        assert answers == [60] * 10
        assert max(seen) <= CAP
        assert max(seen) >= 2
        log = server.log.read_text(errors="replace")
        shown = [int(n) for n in re.findall(r"#running-req: (\d+)", log)]
        assert shown
        assert max(shown) <= CAP


def test_a_reduced_cap_is_a_warning_that_names_both(tiny: Path, tmp_path: Path) -> None:
    args = ("--max-running-requests", "1000", "--max-total-tokens", "100")
    with launched(tiny, tmp_path, *args) as server:
        log = server.log.read_text(errors="replace")
        assert re.search(r"1000.*\b50\b", log)
        assert server.generate([5, 6], max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


def test_two_replicas_serve(tiny: Path, tmp_path: Path) -> None:
    """``--dp-size 2``: each replica keeps the whole cap, as upstream has it, and both work."""
    args = ("--dp-size", "2", "--max-running-requests", "4", "--mem-fraction-static", "0.05")
    with launched(tiny, tmp_path, *args) as server:
        calls = [
            {"tokens": [5, 6, 7 + i], "max_new_tokens": 20, "ignore_eos": True} for i in range(8)
        ]
        together = server.together(calls)
        assert {answer["meta_info"]["dp_rank"] for answer in together} == {0, 1}
        alone = [server.generate(**call) for call in calls]
        assert [a["output_ids"] for a in together] == [a["output_ids"] for a in alone]
