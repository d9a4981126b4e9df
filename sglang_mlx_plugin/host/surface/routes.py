"""Hooks that put the checks of requests before SGLang's own code.

Every route and `Engine.generate` end in `TokenizerManager.generate_request`, whose ValueError
SGLang answers with HTTP 400. Two routes need one more look: OpenAI's, because parsing their
JSON already changed it, and a streamed ``/generate``, which otherwise answers 200 before
anything is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .check import (
    RequestRefused,
    check_body,
    check_logprobs,
    check_names,
    check_request,
    check_sampling,
    check_tokens,
)
from .native import GENERATE

__all__ = [
    "create_responses",
    "generate_contract_error",
    "generate_request",
    "handle_request",
    "serve_generate_request",
    "validate_one_request",
]


def generate_request(
    original: Callable[..., Any], manager: Any, obj: Any, request: Any = None
) -> Any:
    """AROUND `TokenizerManager.generate_request`: checks before the generator is made.

    Raises:
        RequestRefused: a ValueError.
    """
    check_request(obj)
    return original(manager, obj, request)


def validate_one_request(
    original: Callable[..., None], manager: Any, obj: Any, input_ids: Any
) -> None:
    """AROUND `TokenizerManager._validate_one_request`: the prompt's tokens, after SGLang's look.

    Raises:
        RequestRefused: a ValueError.
    """
    original(manager, obj, input_ids)
    check_tokens(input_ids, manager.model_config.vocab_size)
    check_logprobs(obj, manager.model_config.vocab_size)


async def handle_request(
    original: Callable[..., Any], serving: Any, request: Any, raw_request: Any
) -> Any:
    """AROUND `OpenAIServingBase.handle_request`: the JSON as the client sent it."""
    try:
        # Starlette keeps the parsed body, so this parses nothing again. A form (audio) is none.
        if raw_request is not None and "form" not in raw_request.headers.get("content-type", ""):
            check_body(await raw_request.json(), type(request))
    except RequestRefused as refused:
        return serving.create_error_response(str(refused), param=refused.field)
    return await original(serving, request, raw_request)


async def create_responses(
    original: Callable[..., Any], serving: Any, request: Any, raw_request: Any = None
) -> Any:
    """AROUND `OpenAIServingResponses.create_responses`: as `handle_request`."""
    try:
        if raw_request is not None:
            check_body(await raw_request.json(), type(request))
    except RequestRefused as refused:
        return serving.create_error_response(str(refused), param=refused.field)
    return await original(serving, request, raw_request)


async def serve_generate_request(original: Callable[..., Any], obj: Any, request: Any) -> Any:
    """AROUND `http_server.serve_generate_request`: a stream's 400 before its 200."""
    from sglang.srt.entrypoints.http_server import _create_error_response

    try:
        check_request(obj)
    except RequestRefused as refused:
        return _create_error_response(refused)
    return await original(obj, request)


def generate_contract_error(original: Callable[..., str | None], body: Any) -> str | None:
    """AROUND `http_server.generate_contract_error`: upstream's words name no field."""
    try:
        if isinstance(body, dict):
            check_names(body, {}, GENERATE)
            check_sampling(body.get("sampling_params"))
    except RequestRefused as refused:
        return str(refused)
    return original(body)
