"""The request surface: what becomes of each field of a request, and the check of each request.

`REGISTER` holds every field of SGLang's own request types once: *honoured* (by whom),
*irrelevant* (why it cannot matter) or *refused* (why, and what to do instead). A test compares
it with the installed release, so a field that a new release adds turns the suite red until
someone has decided. Every HTTP route and `Engine.generate` end in one of these types.
"""

from __future__ import annotations

from ..rules import Rule
from .check import RequestRefused, check_body, check_request, check_tokens
from .native import EMBEDDING, GENERATE, SAMPLING
from .openai import BEYOND, OPENAI

__all__ = [
    "BEYOND",
    "OPENAI",
    "REGISTER",
    "RequestRefused",
    "check_body",
    "check_request",
    "check_tokens",
]

REGISTER: dict[str, dict[str, Rule]] = {
    "SamplingParams": SAMPLING,
    "GenerateReqInput": GENERATE,
    "EmbeddingReqInput": EMBEDDING,
    **OPENAI,
}
