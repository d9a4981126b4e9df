"""What every supported SGLang release must do, launched for real.

`make test-releases` runs this once a release, with the Python of an environment that has it
(`scripts/test_releases.py`); each test is a line of its table.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sglang_mlx_plugin.host.releases import SUPPORTED
from tests.support.server import Server, launched

pytestmark = pytest.mark.releases

ARGS = ("--mem-fraction-static", "0.4", "--chunked-prefill-size", "128")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with launched(default_model, tmp_path_factory.mktemp("server"), *ARGS) as running:
        yield running


def chat(server: Server, messages: list[dict[str, str]] = QUESTION, **more: Any) -> dict[str, Any]:
    body = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": 16, **more}
    return server.post("/v1/chat/completions", body)


def text(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def streamed(server: Server, messages: list[dict[str, str]]) -> list[str]:
    """The pieces of a streamed answer."""
    body = {
        "model": "default",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 16,
        "stream": True,
    }
    request = urllib.request.Request(
        server.base + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    pieces = []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                pieces.append(choice["delta"].get("content") or "")
    return [piece for piece in pieces if piece]


def test_the_installed_release_answers(server: Server) -> None:
    installed = metadata.version("sglang")
    assert installed in SUPPORTED
    assert server.get("/get_server_info")["version"] == installed


def test_chat_says_paris(server: Server) -> None:
    answer = chat(server)
    assert "Paris" in text(answer)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_stream_equals_unstreamed(server: Server) -> None:
    pieces = streamed(server, QUESTION)
    assert len(pieces) > 2
    assert "".join(pieces) == text(chat(server))


def test_four_at_once_equal_alone(server: Server) -> None:
    asked = [
        [{"role": "user", "content": f"Tell me about {'very ' * (40 * i)}old {thing}."}]
        for i, thing in enumerate(("trees", "boats", "stars", "bread"))
    ]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda messages: text(chat(server, messages)), asked))
    server.flush()
    assert together == [text(chat(server, messages)) for messages in asked]


def test_prefix_is_reused(server: Server) -> None:
    server.flush()
    tokens = list(range(1000, 1200))
    first = server.generate(tokens, max_new_tokens=8, ignore_eos=True)
    again = server.generate(tokens, max_new_tokens=8, ignore_eos=True)
    assert first["meta_info"]["cached_tokens"] == 0
    # All of the prompt but its last token, whose logits are needed.
    assert again["meta_info"]["cached_tokens"] == len(tokens) - 1
    assert again["output_ids"] == first["output_ids"]


def test_json_schema_is_kept(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    answer = chat(server, max_tokens=64, response_format=form)
    jsonschema.validate(json.loads(text(answer)), SCHEMA)


def test_seeds_reproduce(server: Server) -> None:
    def draw(seed: int) -> str:
        return text(chat(server, temperature=1.5, max_tokens=12, seed=seed))

    first = draw(7)
    with ThreadPoolExecutor(3) as pool:
        again, other, third = pool.map(draw, (7, 8, 9))
    assert again == first
    assert len({first, other, third}) > 1


def test_logprobs_are_given(server: Server) -> None:
    answer = server.generate(text="The capital of France is", max_new_tokens=3, return_logprob=True)
    found = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in found] == answer["output_ids"]
    assert all(value <= 0 for value, _, _ in found)


def test_over_the_context_is_400(server: Server) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "word " * 9000}]}
    status, answer = server.try_post("/v1/chat/completions", body)
    assert status == 400, answer
    assert "8192" in str(answer)
    assert "Paris" in text(chat(server))


def test_abandoned_stream_frees_its_memory(server: Server) -> None:
    """A request whose client has gone ends; nothing of it stays in the KV pool."""
    body = {
        "text": "Once",
        "stream": True,
        "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True},
    }
    request = urllib.request.Request(
        server.base + "/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    answer = urllib.request.urlopen(request, timeout=300)
    answer.readline()
    answer.close()
    # `flush` is refused while a request runs, and fails after half a minute of refusals.
    server.flush()
    assert "Paris" in text(chat(server))


def test_without_the_overlap_schedule(server: Server, default_model: Path, tmp_path: Path) -> None:
    expected = text(chat(server))
    flags = (*ARGS, "--disable-overlap-schedule")
    with launched(default_model, tmp_path, *flags) as plain:
        assert text(chat(plain)) == expected
        assert streamed(plain, QUESTION)
