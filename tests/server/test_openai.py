"""The default model through the standard launch, with the `openai` client."""

from __future__ import annotations

import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base + "/v1", api_key="none", timeout=300)


def ask(client: openai.OpenAI, messages: list[dict[str, str]], **more: Any) -> Any:
    more.setdefault("temperature", 0)
    more.setdefault("max_tokens", 24)
    return client.chat.completions.create(model="default", messages=messages, **more)


def text(answer: Any) -> str:
    return answer.choices[0].message.content


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = ask(client, QUESTION)
    assert "Paris" in text(answer)
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_pieces_joined_equal_the_unstreamed_answer(client: openai.OpenAI) -> None:
    whole = text(ask(client, QUESTION))
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ask(client, QUESTION, stream=True)
        if chunk.choices
    ]
    assert len(pieces) > 2
    assert "".join(pieces) == whole


def test_no_broken_characters_in_a_stream(client: openai.OpenAI) -> None:
    """Characters that lie over several tokens come whole; a grammar makes the model say them."""
    wanted = "🧑‍🚀 ď é 中文 ok"
    asked: dict[str, Any] = {"max_tokens": 60, "extra_body": {"regex": wanted}}
    assert text(ask(client, QUESTION, **asked)) == wanted
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ask(client, QUESTION, stream=True, **asked)
        if chunk.choices
    ]
    assert "".join(pieces) == wanted
    assert not any("\ufffd" in piece for piece in pieces)


def test_sixteen_mixed_lengths_at_once_each_as_alone(client: openai.OpenAI, server: Server) -> None:
    """Continuous batching, chunked prefill and early finishes change nobody's answer."""
    prompts = [" ".join(f"item {n}" for n in range(1 + 9 * i)) for i in range(16)]
    lengths = [4 + 2 * (i % 8) for i in range(16)]

    def one(prompt: str, length: int) -> str:
        answer = ask(
            client,
            [{"role": "user", "content": f"Say something about: {prompt}"}],
            max_tokens=length,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage.completion_tokens == length
        return text(answer)

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(one, prompts, lengths))
    server.flush()
    alone = [one(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    assert together == alone


def test_eight_identical_requests_give_eight_identical_answers(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: text(ask(client, QUESTION)), range(8)))
    assert set(answers) == {text(ask(client, QUESTION))}


def test_a_second_turn_reuses_prompt_and_answer(server: Server) -> None:
    """``cached_tokens`` covers the whole first turn but for its last token."""
    server.flush()
    prompt = list(range(1000, 1060))
    first = server.generate(prompt, max_new_tokens=32, ignore_eos=True)
    turn = prompt + first["output_ids"]
    second = server.generate([*turn, 500, 501, 502], max_new_tokens=4)
    # The last sampled token was never an input: its keys and values do not exist.
    assert second["meta_info"]["cached_tokens"] == len(turn) - 1


def test_cached_tokens_of_a_chat(client: openai.OpenAI) -> None:
    """The same through the OpenAI API: the second turn's usage says what was reused."""
    first = ask(client, QUESTION)
    answered = {"role": "assistant", "content": text(first)}
    again = {"role": "user", "content": "And of Italy?"}
    second = ask(client, [*QUESTION, answered, again])
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_max_tokens_1(client: openai.OpenAI) -> None:
    answer = ask(client, QUESTION, max_tokens=1)
    assert answer.usage.completion_tokens == 1
    assert answer.choices[0].finish_reason == "length"


def test_a_short_prompt(client: openai.OpenAI) -> None:
    assert text(ask(client, [{"role": "user", "content": "hi"}]))


def test_stop_string_split_over_tokens(client: openai.OpenAI, server: Server) -> None:
    """The text is cut before the stop string and none of it is streamed."""
    whole = text(ask(client, QUESTION))
    assert "is Paris" in whole
    stop = "s Par"
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ask(client, QUESTION, stop=[stop], stream=True)
        if chunk.choices
    ]
    assert "".join(pieces) == whole[: whole.index(stop)]


def test_a_prompt_over_the_context_is_a_400_with_both_numbers(
    client: openai.OpenAI, server: Server
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, [{"role": "user", "content": "word " * 9000}])
    assert "8192" in str(refused.value)
    assert "90" in str(refused.value)
    assert "Paris" in text(ask(client, QUESTION))


@pytest.mark.parametrize(
    "bad", [{"temperature": "x"}, {"n": 0}, {"top_p": 3}, {"max_tokens": "many"}], ids=str
)
def test_bad_fields_are_400_and_the_server_goes_on(server: Server, bad: dict[str, Any]) -> None:
    body = {"model": "default", "messages": QUESTION, "max_tokens": 4, **bad}
    status, answer = server.try_post("/v1/chat/completions", body)
    assert status == 400, answer
    assert next(iter(bad)) in str(answer)
    assert server.generate(text="hi", max_new_tokens=2)["meta_info"]["completion_tokens"] == 2


def test_cancelled_streams_give_their_kv_back(client: openai.OpenAI, server: Server) -> None:
    """Twenty streams closed half-way: token usage returns to zero and others are served."""
    for _ in range(20):
        stream = ask(client, QUESTION, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
        for _, _ in zip(range(2), stream, strict=False):
            pass
        stream.close()
    deadline = time.monotonic() + 60
    while True:
        metrics = running_and_used(server)
        if metrics["running"] == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert metrics["running"] == 0
    assert "Paris" in text(ask(client, QUESTION))


def running_and_used(server: Server) -> dict[str, float]:
    """Running requests and the share of the KV cache that they hold (``/metrics``)."""
    with urllib.request.urlopen(server.base + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()

    def gauge(name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    return {"running": gauge("sglang:num_running_reqs"), "used": gauge("sglang:token_usage")}


def test_a_long_prompt_beside_a_stream(client: openai.OpenAI) -> None:
    """The stream goes on, token by token, while 3,000 tokens are prefilled."""
    arrivals: list[float] = []
    started = threading.Event()

    def stream() -> None:
        for chunk in ask(
            client, QUESTION, max_tokens=60, stream=True, extra_body={"ignore_eos": True}
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                arrivals.append(time.monotonic())
                started.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert started.wait(120)
    begin = time.monotonic()
    ask(client, [{"role": "user", "content": "word " * 3000}], max_tokens=1)
    end = time.monotonic()
    thread.join()
    during = [moment for moment in arrivals if begin < moment < end]
    assert len(arrivals) > 40
    # 3,000 tokens are 24 chunks of 128; a stream that waits for all of them gets none.
    assert len(during) >= 5
