"""The default model through the standard launch, with the `openai` client."""

from __future__ import annotations

import threading
import time
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
    asked = [{"role": "user", "content": "Repeat after me: 🧑‍🚀 ď é 中文"}]
    whole = text(ask(client, asked, max_tokens=40))
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ask(client, asked, max_tokens=40, stream=True)
        if chunk.choices
    ]
    assert "".join(pieces) == whole
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


def test_a_second_turn_reuses_prompt_and_answer(client: openai.OpenAI, server: Server) -> None:
    """``cached_tokens`` covers the whole first turn but for its last token."""
    first_turn = [{"role": "user", "content": "Name three colours and tell me why."}]
    server.flush()
    first = ask(client, first_turn, max_tokens=32, extra_body={"ignore_eos": True})
    used = first.usage.prompt_tokens + first.usage.completion_tokens
    second = server.post(
        "/v1/completions",
        {
            "model": "default",
            "prompt": _rendered(server, first_turn) + text(first) + "<|im_end|>\n",
            "max_tokens": 4,
            "temperature": 0,
        },
    )
    details = second["usage"]["prompt_tokens_details"]
    # The answer's text need not tokenise to the very tokens that were sampled at its end.
    assert details["cached_tokens"] >= first.usage.prompt_tokens + 16
    assert details["cached_tokens"] <= used


def _rendered(server: Server, messages: list[dict[str, str]]) -> str:
    """The chat template as the default model has it."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    parts = [f"<|im_start|>system\n{system}<|im_end|>\n"]
    parts += [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(parts) + "<|im_start|>assistant\n"


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
    "bad", [{"temperature": "x"}, {"n": 0}, {"n": -1}, {"logprobs": "yes"}], ids=str
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
    server.flush()
    assert running_and_used(server)["used"] == 0
    assert "Paris" in text(ask(client, QUESTION))


def running_and_used(server: Server) -> dict[str, float]:
    """Running requests and used KV tokens (`/get_load`)."""
    loads = server.get("/get_load")
    load = loads[0] if isinstance(loads, list) else loads
    return {"running": load["num_reqs"], "used": load["num_tokens"]}


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
