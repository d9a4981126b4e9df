"""Requests that went wrong on other MLX servers, each as the kind of fault that it stands for.

The numbers in the names are the rows of ``shared/cases/requests.md``. Rows that are not here are
tested in `test_openai` (1-4, 11, 13, 15, 16, 18, 20, 21, 23, 24, 28, 29), `test_exactness` and,
for tied embeddings (30), in `tests/engine`.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server

pytestmark = pytest.mark.server

CAPACITY = 1500
SERVER_ARGS = (
    *("--chunked-prefill-size", "128", "--max-total-tokens", str(CAPACITY)),
    *("--enable-metrics", "--enable-cache-report"),
)

WARM = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True}
REPEATS = "one two three one two three one two three one two three one two three"


def ids(answer: dict[str, Any]) -> list[int]:
    return answer["output_ids"]


# -- seeds ---------------------------------------------------------------------------------


def test_5_a_seed_repeats_and_another_differs(server: Server) -> None:
    first, other, again = (
        ids(server.generate(text="Once", sampling_seed=seed, **WARM)) for seed in (1, 2, 1)
    )
    assert first == again
    assert first != other


def test_6_seed_0_is_a_seed(server: Server) -> None:
    native = [ids(server.generate(text="Once", sampling_seed=0, **WARM)) for _ in range(2)]
    assert native[0] == native[1]
    body = {"model": "default", "prompt": "Once", "temperature": 1, "max_tokens": 24, "seed": 0}
    texts = [server.post("/v1/completions", body)["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]


def test_7_no_seed_differs(server: Server) -> None:
    first, second = (ids(server.generate(text="Once", **WARM)) for _ in range(2))
    assert first != second


def test_8_a_seed_means_the_same_in_any_company(server: Server) -> None:
    seeded = {"text": "Once", "sampling_seed": 7, **WARM}
    alone = ids(server.generate(**seeded))
    company = [{"text": f"Twice {n}", **WARM} for n in range(6)]
    together = server.together([*company[:3], seeded, *company[3:]])
    assert ids(together[3]) == alone


# -- penalties -----------------------------------------------------------------------------


def test_9_a_penalty_counts_the_whole_output(server: Server) -> None:
    """The most that a repeating answer may repeat a token falls, over far more than 20 tokens."""
    plain = ids(server.generate(text=REPEATS, max_new_tokens=90, ignore_eos=True))
    fined = ids(
        server.generate(text=REPEATS, max_new_tokens=90, ignore_eos=True, frequency_penalty=2)
    )
    most = [max(answer.count(token) for token in answer) for answer in (plain, fined)]
    assert most[0] > 15
    assert most[1] < most[0] // 2
    # A window of 20 tokens would have forgotten the first ones by the end and said them again.
    assert len(set(fined[:10]) & set(fined[-20:])) < len(set(plain[:10]) & set(plain[-20:]))


def test_10_a_row_with_a_penalty_beside_one_without(server: Server) -> None:
    calls: list[dict[str, Any]] = [
        {"text": REPEATS, "max_new_tokens": 40, "ignore_eos": True},
        {"text": REPEATS, "max_new_tokens": 30, "ignore_eos": True, "frequency_penalty": 2},
    ]
    together = [ids(answer) for answer in server.together(calls)]
    server.flush()
    assert together == [ids(server.generate(**call)) for call in calls]


# -- prefixes ------------------------------------------------------------------------------


def test_14_a_conversation_that_shares_half_of_another(server: Server) -> None:
    shared = list(range(3000, 3070))
    other = {"tokens": [*shared, *range(4000, 4060)], "max_new_tokens": 16, "ignore_eos": True}
    server.flush()
    fresh = ids(server.generate(**other))
    server.flush()
    server.generate([*shared, *range(5000, 5060)], max_new_tokens=16, ignore_eos=True)
    after = server.generate(**other)
    assert after["meta_info"]["cached_tokens"] == len(shared)
    assert ids(after) == fresh


# -- capacity ------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [0, 1, 40])
def test_19_a_request_as_large_as_the_capacity(server: Server, over: int) -> None:
    """Served to the end or refused with 400: it never waits for ever, and others go on."""
    server.flush()
    prompt = [1000 + n % 7000 for n in range(CAPACITY - 60)]
    body = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": 60 + over, "ignore_eos": True},
    }
    status, answer = server.try_post("/generate", body, timeout=120)
    if status == 200:
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert answer["meta_info"]["completion_tokens"] > 0
    else:
        assert status == 400
        assert str(CAPACITY) in str(answer) or str(CAPACITY - 1) in str(answer), answer
    assert len(ids(server.generate(text="hi", max_new_tokens=3, ignore_eos=True))) == 3


def test_19_a_prompt_over_the_capacity_is_refused(server: Server) -> None:
    prompt = [1000 + n % 7000 for n in range(CAPACITY + 50)]
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4}}
    status, answer = server.try_post("/generate", body, timeout=120)
    assert status == 400, answer
    assert str(len(prompt)) in str(answer)


def test_17_fifty_short_requests_leave_no_memory_behind(server: Server) -> None:
    def ask(number: int) -> None:
        server.generate([100 + (number * 37 + n * 11) % 40000 for n in range(40)], max_new_tokens=1)

    for number in range(25):
        ask(number)
    before = resident(server)
    for number in range(25, 75):
        ask(number)
    # 50 requests that each kept their 40 tokens' states would be 90 MB.
    assert resident(server) - before < 30 * 2**20


def resident(server: Server) -> int:
    """Bytes resident of the scheduler process, the one with the model."""
    return max(
        int((Path("/proc") / pid / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for pid in descendants(server.process.pid)
    )


def descendants(root: int) -> list[str]:
    psutil = pytest.importorskip("psutil")
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    return [str(child.pid) for child in psutil.Process(root).children(recursive=True)]


# -- bad input -----------------------------------------------------------------------------

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
COMPLETION = {"prompt": "hi", "max_tokens": 3}
NATIVE: dict[str, Any] = {"text": "hi"}

INIT_GROUP = {
    "master_address": "127.0.0.1",
    "master_port": 29999,
    "rank_offset": 1,
    "world_size": 2,
    "group_name": "g",
}

BAD: list[tuple[str, dict[str, Any], str, Any]] = [
    ("/v1/chat/completions", CHAT, "temperature", "x"),
    ("/v1/chat/completions", CHAT, "n", 0),
    ("/v1/chat/completions", CHAT, "n", -1),
    ("/v1/chat/completions", CHAT, "logprobs", "yes"),
    ("/v1/chat/completions", CHAT, "seed", True),
    ("/v1/chat/completions", CHAT, "logit_bias", {"word": 1}),
    ("/v1/chat/completions", CHAT, "stream", "yes"),
    ("/v1/chat/completions", CHAT, "lora_path", "adapter"),
    ("/v1/completions", COMPLETION, "temperature", "x"),
    ("/v1/completions", COMPLETION, "n", 0),
    ("/v1/completions", COMPLETION, "n", -1),
    ("/v1/completions", COMPLETION, "logprobs", "yes"),
    ("/v1/completions", COMPLETION, "echo", "yes"),
    ("/v1/completions", COMPLETION, "prompt", ""),
    ("/generate", NATIVE, "sampling_params", {"temperature": "x"}),
    ("/generate", NATIVE, "sampling_params", {"n": 0}),
    ("/generate", NATIVE, "sampling_params", {"n": -1}),
    ("/generate", NATIVE, "sampling_params", {"temprature": 1}),
    ("/generate", NATIVE, "sampling_params", {"n": 10**6}),
    ("/generate", NATIVE, "sampling_params", {"stop_regex": "((("}),
    ("/generate", NATIVE, "top_logprobs_num", -1),
    ("/generate", NATIVE, "return_hidden_states", True),
    ("/generate", NATIVE, "custom_logit_processor", "{}"),
    ("/generate", NATIVE, "image_data", "cat.png"),
    ("/generate", {}, "input_ids", [49152]),
    ("/generate", {}, "input_ids", [-1]),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body", "field", "value"), BAD)
def test_22_a_bad_field_is_a_400_that_names_it(
    server: Server, path: str, body: dict[str, Any], field: str, value: Any, streamed: bool
) -> None:
    """Streamed or not, and the same connection then serves a good request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)

    def post(path: str, body: dict[str, Any]) -> tuple[int, str]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    bad = {**body, field: value}
    if streamed and field != "stream":
        bad["stream"] = True
    status, text = post(path, bad)
    named = next(iter(value)) if field == "sampling_params" else field
    late = streamed and path == "/generate" and field == "input_ids"
    if late:
        # The tokens are looked at after SGLang answered 200: the stream's only event says so.
        assert status in (200, 400)
        events = [line for line in text.splitlines() if line.startswith("data: {")]
        assert len(events) <= 1
    else:
        assert status == 400, text
        json.loads(text)
    assert named in text.lower()
    connected = connection.sock
    status, text = post("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 1}})
    assert status == 200, text
    if not (streamed and late):
        assert connection.sock is connected
    connection.close()


# -- grammars ------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/update_weights_from_disk", {"model_path": "/nowhere"}),
        ("/get_weights_by_name", {"name": "model.embed_tokens.weight"}),
        ("/release_memory_occupation", {}),
        ("/resume_memory_occupation", {}),
        ("/init_weights_update_group", INIT_GROUP),
        ("/weights_checker", {"action": "snapshot"}),
        ("/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}),
    ],
)
def test_22_a_request_about_weights_is_refused_and_ends_nothing(
    server: Server, route: str, body: dict[str, Any]
) -> None:
    status, answer = server.try_post(route, body)
    assert status == 400, answer
    assert server.generate(text="hi", max_new_tokens=2)["output_ids"]


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "max_token"),
        ("/v1/completions", {"prompt": "x"}, "best_of"),
        ("/v1/responses", {"input": "x"}, "max_tokens"),
    ],
)
def test_22_an_openai_field_that_would_be_dropped(
    server: Server, route: str, body: dict[str, Any], field: str
) -> None:
    """Unknown, or known and ignored by SGLang: 400 with its name, and without it an answer."""
    # /v1/responses alone looks at the model's name.
    served = server.get("/v1/models")["data"][0]["id"]
    body = {"model": served, **body}
    status, answer = server.try_post(route, {**body, field: 5})
    assert status == 400, answer
    error = answer.get("error", answer)
    assert error["param"] == field and error["message"].startswith(f"{field}: ")
    assert server.try_post(route, {**body, field: None})[0] == 200


def test_25_a_document_that_does_not_fit(server: Server) -> None:
    answer = server.post(
        "/v1/chat/completions",
        {
            "model": "default",
            "messages": [{"role": "user", "content": "Describe Paris as JSON."}],
            "temperature": 0,
            "max_tokens": 4,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "city", "schema": SCHEMA},
            },
        },
    )
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


def test_26_a_grammar_binds_its_own_row_only(server: Server) -> None:
    calls: list[dict[str, Any]] = [
        {"text": "The capital of France is", "max_new_tokens": 24, "ignore_eos": True},
        {"text": "Paris as JSON:", "max_new_tokens": 40, "json_schema": json.dumps(SCHEMA)},
        {"text": "The capital of Italy is", "max_new_tokens": 24, "ignore_eos": True},
    ]
    together = server.together(calls)
    server.flush()
    alone = [server.generate(**call) for call in calls]
    assert [ids(answer) for answer in together] == [ids(answer) for answer in alone]
    assert set(json.loads(together[1]["text"])) == {"city", "capital"}


# -- streams that are left -----------------------------------------------------------------


def test_16_streams_closed_half_way_leave_nothing_running(server: Server) -> None:
    for _ in range(20):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {
            "text": "Tell me a story",
            "stream": True,
            "sampling_params": {"max_new_tokens": 300, "ignore_eos": True},
        }
        connection.request(
            "POST", "/generate", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        answer.readline()
        answer.close()
        connection.close()
    deadline = time.monotonic() + 60
    loads = server.get("/v1/loads")["loads"]
    while any(load["num_running_reqs"] for load in loads) and time.monotonic() < deadline:
        time.sleep(0.2)
        loads = server.get("/v1/loads")["loads"]
    assert [load["num_running_reqs"] for load in loads] == [0]
    assert [load["num_waiting_reqs"] for load in loads] == [0]
    # What they held can be had again: a request of nearly the whole capacity is served.
    server.flush()
    whole = server.generate(list(range(100, CAPACITY - 20)), max_new_tokens=4, ignore_eos=True)
    assert len(ids(whole)) == 4


def test_4_an_early_finish_leaves_the_others_alone(server: Server) -> None:
    long = {"text": "Once upon a time", "max_new_tokens": 80, "ignore_eos": True}
    alone = ids(server.generate(**long))
    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(ids(server.generate(**long))))
    thread.start()
    for number in range(5):
        server.generate(text=f"Number {number}", max_new_tokens=5, ignore_eos=True)
    thread.join()
    assert answers == [alone]


def test_27_echo_and_logprobs(server: Server) -> None:
    body = {"model": "default", "prompt": "The sky is blue", "temperature": 0}
    answer = server.post("/v1/completions", {**body, "echo": True, "logprobs": 1, "max_tokens": 3})
    logprobs = answer["choices"][0]["logprobs"]
    given = logprobs["token_logprobs"]
    assert given[0] is None
    assert all(isinstance(value, float) and value <= 0 for value in given[1:])
    assert len(given) == len(logprobs["tokens"]) == answer["usage"]["total_tokens"]
