"""The register of requests: complete against the installed release, and acted upon."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import numpy as np
import pytest

from sglang_mlx_plugin.host import releases
from sglang_mlx_plugin.host.rules import Honoured, Irrelevant, Refused
from sglang_mlx_plugin.host.surface import (
    OPENAI,
    REGISTER,
    RequestRefused,
    check_body,
    check_request,
    check_tokens,
)
from sglang_mlx_plugin.host.surface.check import check_logprobs

io_struct = pytest.importorskip("sglang.srt.managers.io_struct")
sampling_params = pytest.importorskip("sglang.srt.sampling.sampling_params")

protocol = pytest.importorskip("sglang.srt.entrypoints.openai.protocol")

TYPES = {
    **{name: getattr(protocol, name) for name in OPENAI},
    "SamplingParams": sampling_params.SamplingParams,
    "GenerateReqInput": io_struct.GenerateReqInput,
    "EmbeddingReqInput": io_struct.EmbeddingReqInput,
}


def fields(kind: Any) -> set[str]:
    """Field names of a dataclass, msgspec struct or pydantic model."""
    if hasattr(kind, "model_fields"):
        return set(kind.model_fields)
    struct = getattr(kind, "__struct_fields__", None)
    return set(struct) if struct else {field.name for field in dataclasses.fields(kind)}


def generate(**values: Any) -> Any:
    values.setdefault("text", "hi")
    return io_struct.GenerateReqInput(**values)


@pytest.mark.parametrize("name", TYPES)
def test_every_field_of_the_installed_release_is_in_the_register(name: str) -> None:
    unknown = fields(TYPES[name]) - set(REGISTER[name])
    assert not unknown, f"decide what becomes of {sorted(unknown)} on MLX"


@pytest.mark.skipif(
    releases.installed_version() != releases.NEWEST, reason="fields of other releases"
)
@pytest.mark.parametrize("name", TYPES)
def test_no_row_of_the_register_is_stale(name: str) -> None:
    # What a validator reads before the fields are parsed.
    before = {"reasoning"} if name == "ChatCompletionRequest" else set()
    assert set(REGISTER[name]) <= fields(TYPES[name]) | before


def test_every_openai_class_of_text_is_in_the_register() -> None:
    """Those beyond it are files, audio, and a route of its own models."""
    requests = {name for name in vars(protocol) if name.endswith(("Request", "ReqInput"))}
    beyond = {
        "BatchRequest",
        "FileRequest",
        "TranscriptionRequest",
        "DecisionRequest",
        "OpenAIServingRequest",
    }
    assert requests - beyond == set(OPENAI)


def chat(**values: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **values}


def test_ordinary_openai_requests_pass() -> None:
    check_body(
        chat(max_tokens=3, temperature=0, user="me", metadata={"a": "b"}, top_k=3, store=False),
        protocol.ChatCompletionRequest,
    )
    check_body(chat(reasoning={"effort": "low"}, made_up=None), protocol.ChatCompletionRequest)
    check_body({"model": "m", "prompt": "x", "best_of": 1}, protocol.CompletionRequest)
    check_body({"model": "m", "input": "x", "store": True}, protocol.ResponsesRequest)


@pytest.mark.parametrize(
    ("kind", "values", "field", "says"),
    [
        ("ChatCompletionRequest", {"max_token": 3}, "max_token", "did you mean max_tokens?"),
        ("ChatCompletionRequest", {"zzzz": 3}, "zzzz", "docs/surface.md"),
        ("ChatCompletionRequest", {"store": True}, "store", "not kept"),
        ("ChatCompletionRequest", {"functions": [{}]}, "functions", "use tools"),
        ("ChatCompletionRequest", {"modalities": ["audio"]}, "modalities", "text"),
        ("ChatCompletionRequest", {"lora_path": "x"}, "lora_path", "LoRA"),
        ("CompletionRequest", {"best_of": 4}, "best_of", "sample several with n"),
        ("CompletionRequest", {"suffix": "end"}, "suffix", "fill-in-the-middle"),
        ("ResponsesRequest", {"truncation": "auto"}, "truncation", "refused whole"),
        ("ResponsesRequest", {"max_tokens": 4}, "max_tokens", "max_output_tokens"),
    ],
)
def test_an_openai_field_is_refused_by_name(
    kind: str, values: dict[str, Any], field: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_body(values, getattr(protocol, kind))
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ") and says in str(refused.value)
    # Only what does not exist may be let through.
    monkeypatch.setenv("SGLANG_MLX_ALLOW_UNKNOWN_FIELDS", "1")
    if "is no field" in str(refused.value):
        check_body(values, getattr(protocol, kind))
    else:
        with pytest.raises(RequestRefused):
            check_body(values, getattr(protocol, kind))


def test_a_plain_request_passes() -> None:
    check_request(generate())
    check_request(generate(sampling_params={"temperature": 0, "max_new_tokens": 3, "top_p": 1}))
    check_request(generate(text=["a", "b"], sampling_params=[{"top_k": 3}, {"stop": ["x", "y"]}]))


# A value that asks for each refused field, where True does not.
ASKS: dict[str, Any] = {
    "input_embeds": [[0.5, 0.25]],
    "image_data": "http://127.0.0.1/cat.png",
    "lora_path": ["adapter", None],
}


@pytest.mark.parametrize(
    "name", [name for name, rule in REGISTER["GenerateReqInput"].items() if type(rule) is Refused]
)
def test_a_refused_field_is_named_with_why(name: str) -> None:
    request = generate()
    setattr(request, name, ASKS.get(name, True))
    with pytest.raises(RequestRefused) as refused:
        check_request(request)
    assert refused.value.field == name
    assert str(refused.value).startswith(f"{name}: ")
    # Refused for what is asked, not for the field being there.
    for nothing in (None, False, [], [None, None]):
        setattr(request, name, nothing)
        check_request(request)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", "x", "expected float, got str"),
        ("temperature", [1], "expected float"),
        ("max_new_tokens", "many", "expected int"),
        ("max_new_tokens", 2.5, "expected int"),
        ("n", 0, "at least 1"),
        ("n", -1, "at least 1"),
        ("n", True, "expected int"),
        ("ignore_eos", "yes", "expected bool"),
        ("stop_token_ids", "12", "expected"),
        ("logit_bias", {"word": 1}, "token ids"),
        ("logit_bias", {"12": "much"}, "numbers"),
        ("logit_bias", [1], "object"),
        ("beam_width", 4, "beam search"),
        ("temprature", 1, "did you mean temperature?"),
        ("zzzzzz", 1, "no sampling parameter"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_sampling_parameters_that_are_none(name: str, value: Any, words: str, batch: bool) -> None:
    given: Any = {name: value}
    if batch:
        request = generate(text=["a", "b"], sampling_params=[{}, given])
    else:
        request = generate(sampling_params=given)
    with pytest.raises(RequestRefused, match=words) as refused:
        check_request(request)
    assert refused.value.field == name


def test_none_is_the_default_and_numpy_numbers_are_numbers() -> None:
    check_request(generate(sampling_params={"temperature": None, "n": None, "top_k": np.int64(4)}))


def test_embeddings_are_refused() -> None:
    with pytest.raises(RequestRefused, match="embeddings"):
        check_request(io_struct.EmbeddingReqInput(text="hi"))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "must not be empty"),
        ([3, 10], r"\[0, 9\].*got 10"),
        ([-1], "got -1"),
        ([0.5], "integers"),
    ],
)
def test_prompts_that_the_model_cannot_embed(ids: list[Any], words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        check_tokens(ids, 10)
    check_tokens([0, 9], 10)
    check_tokens(None, 10)


@dataclasses.dataclass
class Body:
    """What `check_body` reads of a pydantic model: its fields and their types."""

    echo: bool
    seed: typing.Optional[int] = None  # noqa: UP045
    logprobs: bool | None = None
    stop: str | list[str] | None = None
    either: bool | str = False


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"echo": "yes"}, "echo"),
        ({"logprobs": "true"}, "logprobs"),
        ({"seed": True}, "seed"),
    ],
)
def test_json_that_parsing_would_change(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_body(body, Body)
    assert refused.value.field == field


def test_json_that_parsing_keeps() -> None:
    check_body({"echo": True, "seed": 3, "stop": "x", "either": "auto", "logprobs": None}, Body)
    check_body(["not", "an", "object"], Body)


def test_every_rule_is_one_of_three() -> None:
    rules = [rule for table in REGISTER.values() for rule in table.values()]
    assert all(isinstance(rule, Honoured | Irrelevant | Refused) for rule in rules)


def test_document_is_fresh() -> None:
    """`make docs` writes it."""
    from pathlib import Path

    from sglang_mlx_plugin.host.surface.document import as_markdown

    document = Path(__file__).resolve().parents[2] / "docs" / "surface.md"
    assert document.read_text() == as_markdown()


def test_the_command_looks_a_name_up(capsys: pytest.CaptureFixture[str]) -> None:
    from sglang_mlx_plugin.cli import main

    assert main(["surface", "top_k", "tp-size"]) == 0
    out = capsys.readouterr().out
    assert "SamplingParams.top_k: honoured" in out
    assert "ServerArgs.tp_size: refused" in out
    assert main(["surface", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "field", "says"),
    [
        ({"n": 1_000_000}, "n", "at most 1024"),
        ({"stop": ""}, "stop", "must not be empty"),
        ({"stop": ["a", ""]}, "stop", "must not be empty"),
        ({"stop_regex": "((("}, "stop_regex", "is no pattern"),
        ({"stop_regex": ["a", "["]}, "stop_regex", "is no pattern"),
    ],
)
def test_a_stop_or_a_number_of_answers_that_cannot_be(
    parameters: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(RequestRefused, match=says) as refused:
        check_request(generate(sampling_params=parameters))
    assert refused.value.field == field


@pytest.mark.parametrize("number", [-1, 101, [2, -1]])
def test_top_logprobs_are_between_none_and_all(number: Any) -> None:
    request = generate()
    request.top_logprobs_num = number
    with pytest.raises(RequestRefused, match="from 0 to 100"):
        check_logprobs(request, 100)
    for fine in (None, 0, 100, [1, None]):
        request.top_logprobs_num = fine
        check_logprobs(request, 100)
