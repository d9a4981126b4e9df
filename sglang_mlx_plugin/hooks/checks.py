"""What an answer must be; a mistake is reported as that of whoever answered.

Nothing here imports MLX or SGLang, and nothing evaluates an array: shapes and dtypes are
known to a lazy array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, get_args

from .errors import HookError
from .types import DeviceChoice, DeviceKind, KVStore, LoadedModel

if TYPE_CHECKING:
    import mlx.core as mx

    from sglang_mlx_plugin.engine.types import SamplingRows

    from .plugins import Implementation
    from .types import (
        Attention,
        KVStoreSpec,
        LogitsProcessor,
        RequestPoolSpec,
        Sampler,
        SwiGLU,
    )

__all__ = [
    "CheckedAttention",
    "CheckedLogitsProcessor",
    "CheckedSampler",
    "CheckedSwiGLU",
    "check_attention",
    "check_device",
    "check_kv_store",
    "check_loaded_model",
    "check_logits_processor",
    "check_positive_int",
    "check_request_pool",
    "check_sampled",
    "check_sampler",
    "check_server_args_defaults",
    "check_swiglu",
    "check_true",
]

POOL_METHODS = ("alloc", "free", "available_size", "clear")
# No useful store needs less than one bit for a number, or more than a float32 and as much
# again for whatever it keeps beside.
MIN_BITS_PER_NUMBER = 1
MAX_BITS_PER_NUMBER = 64
MEBIBYTE = 1 << 20


def check_positive_int(answer: object, who: Implementation, most: int | None = None) -> int:
    """An int (not a bool) from 1 to `most`."""
    expected = "an int above 0" if most is None else f"an int from 1 to {most}"
    if not _is_int(answer, 1) or (most is not None and answer > most):  # type: ignore[operator]
        _refuse(who, _show(answer), expected)
    return answer  # type: ignore[return-value]


def check_true(answer: object, who: Implementation) -> None:
    """The value True itself."""
    if answer is not True:
        _refuse(who, _show(answer), "True (the memory is taken care of) or None")


def check_device(answer: object, who: Implementation) -> DeviceChoice:
    """A `DeviceChoice` of a known kind, with a reason."""
    if not isinstance(answer, DeviceChoice):
        _refuse(who, _show(answer), "a DeviceChoice")
    if answer.kind not in get_args(DeviceKind):
        _refuse(who, f"kind {answer.kind!r}", f"one of {', '.join(get_args(DeviceKind))}")
    if not isinstance(answer.active, bool):
        _refuse(who, f"active {_show(answer.active)}", "a bool")
    if not isinstance(answer.reason, str) or not answer.reason.strip():
        _refuse(who, f"reason {answer.reason!r}", "a reason in words")
    return answer


def check_server_args_defaults(
    answer: object, who: Implementation, server_args: object
) -> dict[str, object]:
    """A dict whose keys are fields of `server_args`."""
    if not isinstance(answer, dict):
        _refuse(who, _show(answer), "a dict of field name to value")
    for name in answer:
        if not isinstance(name, str) or not hasattr(server_args, name):
            _refuse(
                who,
                f"a default for {name!r}",
                f"names of fields of {type(server_args).__name__}, without dashes",
            )
    return answer


def check_loaded_model(answer: object, who: Implementation) -> LoadedModel:
    """A `LoadedModel` whose fields are what they say."""
    if not isinstance(answer, LoadedModel):
        _refuse(who, _show(answer), "a LoadedModel")
    if not callable(answer.model):
        _refuse(who, f"a model that is {_show(answer.model)}", "a callable model")
    if not _is_int(answer.vocab_size, 1):
        _refuse(who, f"vocab_size {_show(answer.vocab_size)}", "an int above 0")
    if not _is_int(answer.weight_bytes, 0):
        _refuse(who, f"weight_bytes {_show(answer.weight_bytes)}", "an int, 0 or more")
    eos = answer.eos_token_ids
    if not isinstance(eos, tuple) or not all(_is_int(token, 0) for token in eos):
        _refuse(who, f"eos_token_ids {_show(eos)}", "a tuple of token ids")
    if not isinstance(answer.config, dict):
        _refuse(who, f"a config that is {_show(answer.config)}", "a dict")
    for name in ("dtype", "family"):
        text = getattr(answer, name)
        if not isinstance(text, str) or not text:
            _refuse(who, f"{name} {_show(text)}", "a name")
    return answer


def check_kv_store(answer: object, who: Implementation, spec: KVStoreSpec) -> KVStore:
    """A `KVStore` for `spec`, whose bytes a budget can be built on."""
    missing = [name for name in _protocol_names(KVStore) if not hasattr(answer, name)]
    if missing:
        _refuse(who, f"{_show(answer)} without {', '.join(missing)}", "a KVStore")
    assert isinstance(answer, KVStore)
    for name in ("caches", "arrays"):
        if not callable(getattr(answer, name)):
            _refuse(who, f"a KV store whose {name} is {_show(getattr(answer, name))}", "a method")
    if answer.capacity != spec.capacity:
        _refuse(
            who,
            f"a KV store for {_show(answer.capacity)} tokens",
            f"one for the {spec.capacity} that were asked for",
        )
    numbers = sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in spec.layers)
    least = -(-numbers * MIN_BITS_PER_NUMBER // 8)
    most = numbers * MAX_BITS_PER_NUMBER // 8
    cost = answer.bytes_per_token
    if not _is_int(cost, 0) or not least <= cost <= most:
        _refuse(
            who,
            f"bytes_per_token {_show(cost)}",
            f"an int from {least} to {most}, since a token has {numbers} numbers in "
            f"{len(spec.layers)} layers",
        )
    room = int(cost * (spec.capacity + 1) * 1.01) + MEBIBYTE
    if not _is_int(answer.nbytes, 0) or answer.nbytes > room:
        _refuse(
            who,
            f"nbytes {_show(answer.nbytes)}",
            f"an int of at most {room}, since {spec.capacity} tokens at bytes_per_token {cost} "
            "were budgeted",
        )
    return answer


def check_request_pool(answer: Any, who: Implementation, spec: RequestPoolSpec) -> Any:
    """A pool with the methods that the scheduler calls, and room for `spec.size`."""
    missing = [name for name in POOL_METHODS if not callable(getattr(answer, name, None))]
    if missing:
        _refuse(
            who,
            f"{_show(answer)} without {', '.join(missing)}",
            f"a pool with the methods {', '.join(POOL_METHODS)}",
        )
    room = answer.available_size()
    if not _is_int(room, spec.size):
        _refuse(
            who,
            f"a new pool whose available_size() is {_show(room)}",
            f"an int of at least {spec.size}, the requests that run at once",
        )
    return answer


def check_sampler(answer: Any, who: Implementation) -> Sampler:
    """Something callable."""
    if not callable(answer):
        _refuse(who, _show(answer), "a callable (logits, rows, positions) -> tokens")
    return answer  # type: ignore[no-any-return]


def check_sampled(tokens: Any, batch: int, who: Implementation | None = None) -> None:
    """What a sampler returned: int32 (batch,), still lazy or not.

    Args:
        tokens: The sampler's answer.
        batch: Rows that it was given.
        who: Whose sampler it is, for the message.

    Raises:
        HookError: If the shape or the dtype is another.
    """
    shape = getattr(tokens, "shape", None)
    dtype = str(getattr(tokens, "dtype", None)).rpartition(".")[2]
    if shape == (batch,) and dtype == "int32":
        return
    came = f"{dtype} {tuple(shape)}" if shape is not None else _show(tokens)
    expected = f"an int32 array of shape ({batch},), one token for each row"
    if who is not None:
        _refuse(who, f"from its sampler {came}", expected)
    raise HookError(f"The sampler answered {came}, expected {expected}.")


class CheckedSampler:
    """A sampler whose answers are looked at: a wrong shape is named before it spreads.

    The check compares a tuple and a name, once a step, and evaluates nothing.

    Args:
        inner: The sampler.
        who: Whose it is.
    """

    def __init__(self, inner: Sampler, who: Implementation) -> None:
        self.inner = inner
        self.who = who

    def __call__(self, logits: mx.array, rows: SamplingRows, positions: mx.array) -> mx.array:
        """Sample (see `sglang_mlx_plugin.hooks.types.Sampler`)."""
        tokens = self.inner(logits, rows, positions)
        check_sampled(tokens, logits.shape[0], self.who)
        return tokens


def check_attention(answer: Any, who: Implementation) -> Attention:
    """Something callable."""
    if not callable(answer):
        _refuse(
            who, _show(answer), "a callable (queries, keys, values, *, scale, mask, sinks) -> out"
        )
    return answer  # type: ignore[no-any-return]


class CheckedAttention:
    """An attention kernel whose first answer is looked at, shape and dtype.

    Args:
        inner: The kernel.
        who: Whose it is.
    """

    def __init__(self, inner: Attention, who: Implementation) -> None:
        self.inner = inner
        self.who = who
        self._checked = False

    def __call__(
        self, queries: mx.array, keys: mx.array, values: mx.array, **rest: Any
    ) -> mx.array:
        """Attend (see `sglang_mlx_plugin.hooks.types.Attention`)."""
        out = self.inner(queries, keys, values, **rest)
        if not self._checked:
            expected = (*queries.shape[:3], values.shape[3])
            shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
            if shape != expected or dtype != queries.dtype:
                came = f"{dtype} {tuple(shape)}" if shape is not None else _show(out)
                _refuse(
                    self.who,
                    f"from its attention kernel {came}",
                    f"{queries.dtype} of shape {expected}",
                )
            self._checked = True
        return out


def check_swiglu(answer: Any, who: Implementation) -> SwiGLU:
    """Something callable."""
    if not callable(answer):
        _refuse(who, _show(answer), "a callable (gate, x) -> out")
    return answer  # type: ignore[no-any-return]


class CheckedSwiGLU:
    """A gate whose first answer is looked at, shape and dtype.

    Args:
        inner: The gate.
        who: Whose it is.
    """

    def __init__(self, inner: SwiGLU, who: Implementation) -> None:
        self.inner = inner
        self.who = who
        self._checked = False

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        """Gate (see `sglang_mlx_plugin.hooks.types.SwiGLU`)."""
        out = self.inner(gate, x)
        if not self._checked:
            _same_form(out, gate, self.who, "gate")
            self._checked = True
        return out


def check_logits_processor(answer: Any, who: Implementation) -> LogitsProcessor:
    """Something callable."""
    if not callable(answer):
        _refuse(who, _show(answer), "a callable (logits, rows) -> logits")
    return answer  # type: ignore[no-any-return]


class CheckedLogitsProcessor:
    """A logits processor whose answers are looked at: two tuples and two names, once a step.

    Args:
        inner: The processor.
        who: Whose it is.
    """

    def __init__(self, inner: LogitsProcessor, who: Implementation) -> None:
        self.inner = inner
        self.who = who

    def __call__(self, logits: mx.array, rows: SamplingRows) -> mx.array:
        """Edit (see `sglang_mlx_plugin.hooks.types.LogitsProcessor`)."""
        out = self.inner(logits, rows)
        _same_form(out, logits, self.who, "logits processor")
        return out


def _same_form(out: Any, given: mx.array, who: Implementation, what: str) -> None:
    """Refuse an answer of another shape or dtype than what was given."""
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
    if shape != given.shape or dtype != given.dtype:
        came = f"{dtype} {tuple(shape)}" if shape is not None else _show(out)
        _refuse(who, f"from its {what} {came}", f"{given.dtype} of shape {given.shape}")


def _refuse(who: Implementation, came: str, expected: str) -> NoReturn:
    raise HookError(f"Hook {who.hook}: the {who.plugin} answered {came}, expected {expected}.")


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _show(value: object) -> str:
    text = repr(value)
    short = text if len(text) <= 80 else text[:77] + "..."
    return f"{short} ({type(value).__name__})"


def _protocol_names(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]
