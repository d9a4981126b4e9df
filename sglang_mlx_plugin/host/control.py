"""Requests that steer a running server: those that MLX cannot honour are refused, none kills it.

Upstream's scheduler hands them to methods that work on torch modules; here the model is MLX's,
and what such a method raises would end the scheduler. So requests about weights are answered
before that, and a failure in any other one is an answer too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

__all__ = [
    "GuardedDispatcher",
    "get_weights_by_name",
    "init_request_dispatcher",
    "release_memory_occupation",
    "resume_memory_occupation",
]

logger = logging.getLogger(__name__)

_NO_UPDATE = (
    "weights cannot be exchanged on MLX while the server runs: start a server with the other model"
)
_NO_READING = (
    "weights are MLX's own, quantised or laid out for its device, and are not handed out: read "
    "them from the model folder"
)
_NO_RELEASE = (
    "memory is not released on MLX while the server runs: stop the server, which frees all of it"
)
_NO_LORA = (
    "LoRA adapters are not available on MLX yet: fuse the adapter into the model (python -m "
    "mlx_lm fuse) and serve that"
)

# By the name of the request's type in `sglang.srt.managers.io_struct`.
REFUSED = {
    **dict.fromkeys(
        (
            "UpdateWeightFromDiskReqInput",
            "InitWeightsUpdateGroupReqInput",
            "DestroyWeightsUpdateGroupReqInput",
            "BeginWeightUpdateReqInput",
            "EndWeightUpdateReqInput",
            "UpdateWeightsFromDistributedReqInput",
            "UpdateWeightsFromTensorReqInput",
            "UpdateWeightsFromIPCReqInput",
        ),
        _NO_UPDATE,
    ),
    **dict.fromkeys(
        (
            "InitWeightsSendGroupForRemoteInstanceReqInput",
            "SendWeightsToRemoteInstanceReqInput",
            "GetWeightsByNameReqInput",
            "CheckWeightsReqInput",
        ),
        _NO_READING,
    ),
    "ReleaseMemoryOccupationReqInput": _NO_RELEASE,
    "ResumeMemoryOccupationReqInput": _NO_RELEASE,
    **dict.fromkeys(
        (
            "LoadLoRAAdapterReqInput",
            "LoadLoRAAdapterFromTensorsReqInput",
            "UnloadLoRAAdapterReqInput",
        ),
        _NO_LORA,
    ),
}


def init_request_dispatcher(original: Callable[[Any], None], scheduler: Any) -> None:
    """AROUND `Scheduler.init_request_dispatcher`: put the guard in front."""
    original(scheduler)
    scheduler._request_dispatcher = GuardedDispatcher(scheduler._request_dispatcher)


class GuardedDispatcher:
    """A scheduler's dispatcher that refuses what MLX cannot honour and outlives what fails.

    Args:
        inner: Upstream's `sglang.utils.TypeBasedDispatcher`.
    """

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self._inner = inner

    def __call__(self, request: Any) -> Any:
        """Handle a request; what is returned is sent back to who asked."""
        sentence = REFUSED.get(type(request).__name__)
        if sentence is not None:
            return _refusal(request, sentence)
        answer = _answer_type(request)
        if answer is None:
            # A prompt, or something that has no way to say that it failed.
            return self._inner(request)
        try:
            return self._inner(request)
        except Exception as error:
            logger.exception("%s failed; the server goes on.", type(request).__name__)
            return _refusal(request, f"{type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def get_weights_by_name(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND `TokenizerControlMixin.get_weights_by_name`: its answer has room for no sentence.

    Raises:
        ValueError: always; SGLang answers it with HTTP 400.
    """
    raise ValueError(_NO_READING)


def release_memory_occupation(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND `TokenizerControlMixin.release_memory_occupation`: likewise.

    Raises:
        ValueError: always.
    """
    raise ValueError(_NO_RELEASE)


def resume_memory_occupation(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND `TokenizerControlMixin.resume_memory_occupation`: likewise.

    Raises:
        ValueError: always.
    """
    raise ValueError(_NO_RELEASE)


def _answer_type(request: Any) -> Any:
    """The type of the answer to a request, if it can say that it failed; or None."""
    from sglang.srt.managers import io_struct

    name = type(request).__name__
    for suffix in ("ReqInput", "Req"):
        stem = name.removesuffix(suffix)
        if stem != name:
            found = getattr(io_struct, f"{stem}ReqOutput", None)
            if "success" in getattr(found, "__struct_fields__", ()):
                return found
            return None
    return None


def _refusal(request: Any, sentence: str) -> Any:
    """An answer that says no, in the words of `sentence`."""
    from sglang.srt.managers import io_struct

    answer = _answer_type(request)
    if answer is None:
        stem = type(request).__name__.removesuffix("ReqInput")
        answer = getattr(io_struct, f"{stem}ReqOutput")
    fields = set(answer.__struct_fields__)
    said = {
        "success": False,
        "message": sentence,
        "error_message": sentence,
        "error": sentence,
        "parameter": None,
        "response": [],
        "num_paused_requests": 0,
    }
    return answer(**{name: value for name, value in said.items() if name in fields})
