"""What a request must be before it may reach the engine.

Two looks at it, because neither sees everything: at the JSON that the client sent, before
pydantic has made ``true`` of ``"yes"`` and dropped the fields that it does not know; and at
SGLang's own request object, which `Engine.generate` and every HTTP route end in.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sglang_mlx_plugin._env import is_set

from ..rules import Refused
from .native import EMBEDDING, GENERATE, SAMPLING
from .openai import BEYOND, OPENAI

__all__ = [
    "MOST_ANSWERS",
    "RequestRefused",
    "check_body",
    "check_logprobs",
    "check_names",
    "check_request",
    "check_sampling",
    "check_tokens",
]


_ALLOW_UNKNOWN = "SGLANG_MLX_ALLOW_UNKNOWN_FIELDS"

# Answers to one prompt: each is a request of its own, and a million of them is a server that
# has run out of memory.
MOST_ANSWERS = 1024


class RequestRefused(ValueError):
    """The request cannot be served; SGLang answers a ValueError with HTTP 400.

    Attributes:
        field: The field that is at fault.
    """

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}.")
        self.field = field


def check_request(request: Any) -> None:
    """Refuse what MLX cannot honour, and sampling parameters that are no such thing.

    Args:
        request: SGLang's `GenerateReqInput` or `EmbeddingReqInput`, one prompt or several, as
            it came.

    Raises:
        RequestRefused: with the field's name, why, and what to do instead.
    """
    if "Embedding" in type(request).__name__:
        _refuse("input", EMBEDDING["text"])
    for name, rule in GENERATE.items():
        if isinstance(rule, Refused) and _asks(getattr(request, name, None)):
            _refuse(name, rule)
    asked = getattr(request, "top_logprobs_num", None)
    for number in asked if isinstance(asked, list) else [asked]:
        if isinstance(number, int) and number < 0:
            raise RequestRefused("top_logprobs_num", f"must be at least 0, got {number}")
    check_sampling(request.sampling_params)


def check_sampling(given: Any) -> None:
    """Refuse sampling parameters that are no such thing, or that MLX cannot honour.

    Args:
        given: ``sampling_params`` of a request: an object, one for each prompt, or None.

    Raises:
        RequestRefused: with the parameter's name.
    """
    if given is None:
        return
    for parameters in given if isinstance(given, list) else [given]:
        if not isinstance(parameters, Mapping):
            raise RequestRefused("sampling_params", "must be an object, or a list of objects")
        _check_sampling(parameters)


def check_tokens(token_ids: Any, vocab_size: int) -> None:
    """Refuse an empty prompt, and token ids that the model has no embedding for.

    Args:
        token_ids: Ids of one prompt, or None where it has none.
        vocab_size: Tokens that the model knows.

    Raises:
        RequestRefused: for ``prompt`` or ``input_ids``.
    """
    if token_ids is None:
        return
    if len(token_ids) == 0:
        raise RequestRefused("prompt", "must not be empty: it has no tokens to go on from")
    ids = np.asarray(token_ids)
    if ids.dtype.kind not in "iu":
        raise RequestRefused("input_ids", "must be integers")
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise RequestRefused(
            "input_ids",
            f"must be in [0, {vocab_size - 1}], the model's vocabulary, got {int(outside[0])}",
        )


def check_body(body: Any, request_type: Any) -> None:
    """Refuse in a request's JSON what parsing it would silently change or drop.

    Args:
        body: The parsed JSON of the client.
        request_type: The pydantic model that it was parsed into.

    Raises:
        RequestRefused: for text where true or false is meant, and true or false where a number
            is meant; for a field that MLX cannot honour; and, unless
            ``SGLANG_MLX_ALLOW_UNKNOWN_FIELDS=1`` is set, for one that does not exist.
    """
    if not isinstance(body, Mapping):
        return
    table = OPENAI.get(request_type.__name__)
    if table is not None:
        check_names(body, {**BEYOND, **table}, _plain_fields(request_type))
    for name, kinds in _plain_fields(request_type).items():
        value = body.get(name)
        if isinstance(value, str) and bool in kinds and str not in kinds:
            raise RequestRefused(name, f"must be true or false, got the text {_show(value)}")
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise RequestRefused(name, f"must be a number, got {str(value).lower()}")


def check_names(
    body: Mapping[str, Any], table: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    """Refuse a field that is not in the register, or in it as refused.

    Args:
        body: The parsed JSON of the client.
        table: Rules by field.
        fields: More names that are fields.

    Raises:
        RequestRefused: with the field's name.
    """
    for name, value in body.items():
        rule = table.get(name)
        if isinstance(rule, Refused) and _asks(value) and not rule.accepts(value):
            _refuse(name, rule)
        # A null is what a client sends for what it leaves out.
        if rule is None and name not in fields and value is not None:
            if is_set(_ALLOW_UNKNOWN, os.environ):
                continue
            near = difflib.get_close_matches(str(name), [*table, *fields], 1)
            hint = f"did you mean {near[0]}?" if near else "see docs/surface.md for those there are"
            raise RequestRefused(
                str(name),
                f"is no field of this request; {hint} (the server drops unknown fields if it is "
                f"started with {_ALLOW_UNKNOWN}=1)",
            )


def _refuse(name: str, rule: Any) -> typing.NoReturn:
    raise RequestRefused(name, f"{rule.why}; {rule.instead}")


def _asks(value: Any) -> bool:
    """Whether a value, perhaps one for each prompt of a batch, asks for anything."""
    if isinstance(value, list | tuple):
        return any(_asks(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return bool(value)
    return True


def _check_sampling(parameters: Mapping[str, Any]) -> None:
    import msgspec

    kinds = _sampling_kinds()
    for name, value in parameters.items():
        if name not in kinds:
            near = difflib.get_close_matches(str(name), kinds, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RequestRefused(str(name), f"is no sampling parameter of SGLang's{hint}")
        if isinstance(value, np.generic):
            value = value.item()
        rule = SAMPLING.get(name)
        if isinstance(rule, Refused) and _asks(value):
            _refuse(name, rule)
        if value is None:
            # SGLang takes it for the default.
            continue
        if name == "logit_bias":
            _check_logit_bias(value)
            continue
        try:
            msgspec.convert(value, kinds[name], builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            text = str(error)
            raise RequestRefused(name, f"{text[:1].lower()}{text[1:]}".replace("`", "")) from None
    count = parameters.get("n")
    if count is not None and not 1 <= count <= MOST_ANSWERS:
        raise RequestRefused("n", f"must be at least 1 and at most {MOST_ANSWERS}, got {count}")
    _check_stops(parameters)


def _check_stops(parameters: Mapping[str, Any]) -> None:
    stop, patterns = parameters.get("stop"), parameters.get("stop_regex")
    if "" in ([stop] if isinstance(stop, str) else stop or []):
        raise RequestRefused("stop", "must not be empty: every answer ends in it at once")
    for pattern in [patterns] if isinstance(patterns, str) else patterns or []:
        try:
            re.compile(pattern)
        except re.error as error:
            raise RequestRefused("stop_regex", f"{_show(pattern)} is no pattern: {error}") from None


def check_logprobs(request: Any, vocab_size: int) -> None:
    """Refuse numbers of top logprobs that are none.

    Args:
        request: SGLang's request for one prompt.
        vocab_size: Tokens that the model knows.

    Raises:
        RequestRefused: for ``top_logprobs_num``.
    """
    asked = getattr(request, "top_logprobs_num", None)
    for number in asked if isinstance(asked, list) else [asked]:
        if number is not None and not 0 <= number <= vocab_size:
            raise RequestRefused(
                "top_logprobs_num",
                f"must be from 0 to {vocab_size}, the model's vocabulary, got {number}",
            )


def _check_logit_bias(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise RequestRefused("logit_bias", "must be an object of token ids and numbers")
    for token, bias in value.items():
        try:
            int(token)
        except (TypeError, ValueError):
            raise RequestRefused(
                "logit_bias", f"its keys must be token ids, got {_show(token)}"
            ) from None
        if isinstance(bias, bool) or not isinstance(bias, int | float | np.number):
            raise RequestRefused("logit_bias", f"its values must be numbers, got {_show(bias)}")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@functools.cache
def _sampling_kinds() -> dict[str, Any]:
    from sglang.srt.sampling.sampling_params import SamplingParams

    return typing.get_type_hints(SamplingParams)


@functools.cache
def _plain_fields(request_type: Any) -> dict[str, frozenset[type]]:
    """The plain types that each field of a pydantic model or dataclass takes."""
    fields = getattr(request_type, "model_fields", None)
    hints = (
        {name: item.annotation for name, item in fields.items()}
        if fields is not None
        else typing.get_type_hints(request_type)
    )
    return {name: frozenset(_kinds(hint)) for name, hint in hints.items()}


def _kinds(hint: Any) -> Iterator[type]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _kinds(part)
    elif origin is typing.Annotated:
        yield from _kinds(typing.get_args(hint)[0])
    elif origin is typing.Literal:
        yield from {type(value) for value in typing.get_args(hint)}
    elif isinstance(hint, type):
        yield hint
