"""Each answer is validated where it enters, and a mistake is its vendor's by name."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest

from sglang_mlx_plugin import hookimpl
from sglang_mlx_plugin.hooks import HookError, HookManager, Hooks, Plugin, check_sampled
from sglang_mlx_plugin.hooks.types import (
    AttentionSpec,
    ConcurrencyLimits,
    DeviceChoice,
    KVLayerSpec,
    KVStoreSpec,
    LoadedModel,
    LogitsProcessorSpec,
    RequestPoolSpec,
    SamplerSpec,
    SwiGLUSpec,
)

LIMITS = ConcurrencyLimits(max_total_num_tokens=1000)
KV_SPEC = KVStoreSpec(
    layers=(
        KVLayerSpec(index=0, heads=2, key_dim=8, value_dim=8),
        KVLayerSpec(index=1, heads=1, key_dim=16, value_dim=0),
    ),
    capacity=100,
    dtype="float32",
    kv_cache_dtype="auto",
    device="cpu",
)
NUMBERS = 2 * 16 + 16
POOL_SPEC = RequestPoolSpec(size=4, max_context_len=32)
MODEL = LoadedModel(
    model=print,
    config={},
    vocab_size=10,
    dtype="float32",
    weight_bytes=0,
    eos_token_ids=(2,),
    family="llama",
)
DEVICE = DeviceChoice(active=True, kind="cpu", reason="a test")

Make = Callable[..., Plugin]


@pytest.fixture
def hooks(vendor: Make) -> Callable[[str, Any], Hooks]:
    """Hooks of which a vendor answers one, with a given value."""

    def make(hook: str, answer: Any) -> Hooks:
        def implementation() -> Any:
            return answer

        marked = hookimpl(specname=hook)(implementation)
        return Hooks(HookManager([vendor("bad", marked)]))

    return make


def assert_refused(ask: Callable[[], Any], hook: str, *parts: str) -> None:
    with pytest.raises(HookError) as caught:
        ask()
    text = str(caught.value)
    head = f"Hook {hook}: the plugin 'bad' (distribution bad-dist 3.2.1) answered "
    assert text.startswith(head), text
    assert "expected" in text
    for part in parts:
        assert part in text


@pytest.mark.parametrize("answer", [0, -1, True, False, 2.0, "8", [8], 1001])
def test_cap(hooks: Callable[..., Hooks], answer: Any) -> None:
    hook = "sglang_mlx_resolve_max_running_requests"
    asked = hooks(hook, answer)
    assert_refused(
        lambda: asked.resolve_max_running_requests(LIMITS),
        hook,
        f"{answer!r} ({type(answer).__name__})",
        "an int from 1 to 1000",
    )


@pytest.mark.parametrize("answer", [0, True, 4.0])
def test_auxiliary_slots(hooks: Callable[..., Hooks], answer: Any) -> None:
    hook = "sglang_mlx_auxiliary_slots_per_request"
    asked = hooks(hook, answer)
    hybrid = dataclasses.replace(LIMITS, is_hybrid=True)
    assert_refused(lambda: asked.auxiliary_slots_per_request(LIMITS), hook, "an int above 0")
    assert_refused(lambda: asked.resolve_max_running_requests(hybrid), hook, "an int above 0")


def test_slots_of_a_vendor_reach_the_resolver(hooks: Callable[..., Hooks]) -> None:
    asked = hooks("sglang_mlx_auxiliary_slots_per_request", 2)
    hybrid = dataclasses.replace(LIMITS, is_hybrid=True, max_mamba_cache_size=16)
    assert asked.resolve_max_running_requests(hybrid) == 8
    assert asked.with_auxiliary_slots(hybrid).auxiliary_slots_per_request == 2
    assert asked.with_auxiliary_slots(LIMITS) is LIMITS


@pytest.mark.parametrize("answer", [False, 1, "handled"])
def test_memory_pool(hooks: Callable[..., Hooks], answer: Any) -> None:
    hook = "sglang_mlx_alloc_memory_pool"
    asked = hooks(hook, answer)
    assert_refused(lambda: asked.alloc_memory_pool(None, None, None), hook, "True")


def test_memory_pool_of_the_built_in_does_nothing() -> None:
    """The runner is not even looked at."""
    Hooks(HookManager([])).alloc_memory_pool(object(), None, None)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ("metal", "a DeviceChoice"),
        (dataclasses.replace(DEVICE, kind="npu"), "'npu', expected one of metal, cuda, cpu"),  # type: ignore[arg-type]
        (dataclasses.replace(DEVICE, active=1), "a bool"),  # type: ignore[arg-type]
        (dataclasses.replace(DEVICE, reason=" "), "a reason in words"),
    ],
)
def test_device(hooks: Callable[..., Hooks], answer: Any, part: str) -> None:
    hook = "sglang_mlx_device"
    asked = hooks(hook, answer)
    assert_refused(lambda: asked.device({}), hook, part)


def test_device_that_fits(hooks: Callable[..., Hooks]) -> None:
    assert hooks("sglang_mlx_device", DEVICE).device({}) is DEVICE


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ([("page_size", 1)], "a dict"),
        ({"page-size": 1}, "'page-size'"),
        ({"no_such_field": 1}, "'no_such_field'"),
        ({3: 1}, "3"),
    ],
)
def test_server_args_defaults(hooks: Callable[..., Hooks], answer: Any, part: str) -> None:
    hook = "sglang_mlx_server_args_defaults"
    asked = hooks(hook, answer)
    server_args = types.SimpleNamespace(page_size=16)
    assert_refused(lambda: asked.server_args_defaults(server_args), hook, part)


@pytest.mark.parametrize("answer", [{}, {"page_size": 1}, {"page_size": None}])
def test_server_args_defaults_that_fit(hooks: Callable[..., Hooks], answer: Any) -> None:
    asked = hooks("sglang_mlx_server_args_defaults", answer)
    assert asked.server_args_defaults(types.SimpleNamespace(page_size=16)) == answer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("vocab_size", 0),
        ("vocab_size", 10.0),
        ("weight_bytes", -1),
        ("eos_token_ids", [2]),
        ("eos_token_ids", ("</s>",)),
        ("config", None),
        ("dtype", object()),
        ("family", ""),
    ],
)
def test_loaded_model(hooks: Callable[..., Hooks], field: str, value: Any) -> None:
    hook = "sglang_mlx_load_model"
    asked = hooks(hook, dataclasses.replace(MODEL, **{field: value}))
    assert_refused(lambda: asked.load_model(None), hook, field)  # type: ignore[arg-type]


def test_loaded_model_of_another_type(hooks: Callable[..., Hooks]) -> None:
    hook = "sglang_mlx_load_model"
    asked = hooks(hook, (print, None))
    assert_refused(lambda: asked.load_model(None), hook, "a LoadedModel")  # type: ignore[arg-type]


class Store:
    """A KV store on paper."""

    def __init__(self, **changes: Any) -> None:
        self.capacity = 100
        self.bytes_per_token = NUMBERS
        self.nbytes = 101 * NUMBERS
        self.caches: Any = lambda view: []
        self.arrays: Any = list
        vars(self).update(changes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"capacity": 99}, "99 (int) tokens, expected one for the 100"),
        ({"bytes_per_token": 0}, "bytes_per_token 0"),
        ({"bytes_per_token": True}, "bytes_per_token True"),
        ({"bytes_per_token": float(NUMBERS)}, "bytes_per_token 48.0"),
        ({"bytes_per_token": NUMBERS // 8 - 1}, f"from {NUMBERS // 8} to {NUMBERS * 8}"),
        ({"bytes_per_token": NUMBERS * 8 + 1}, f"a token has {NUMBERS} numbers in 2 layers"),
        ({"nbytes": 1 << 30}, "nbytes 1073741824"),
        ({"nbytes": None}, "nbytes None"),
        ({"caches": []}, "caches is []"),
    ],
)
def test_kv_store(hooks: Callable[..., Hooks], changes: dict[str, Any], part: str) -> None:
    hook = "sglang_mlx_create_kv_store"
    asked = hooks(hook, Store(**changes))
    assert_refused(lambda: asked.create_kv_store(KV_SPEC), hook, part)


def test_kv_store_that_lacks_a_part(hooks: Callable[..., Hooks]) -> None:
    hook = "sglang_mlx_create_kv_store"
    store = Store()
    del store.arrays, store.nbytes
    asked = hooks(hook, store)
    assert_refused(lambda: asked.create_kv_store(KV_SPEC), hook, "without nbytes, arrays")


@pytest.mark.parametrize("cost", [NUMBERS // 8, NUMBERS // 2, NUMBERS, NUMBERS * 4 + 20])
def test_kv_stores_from_one_bit_to_float32_fit(hooks: Callable[..., Hooks], cost: int) -> None:
    store = Store(bytes_per_token=cost, nbytes=0)
    assert hooks("sglang_mlx_create_kv_store", store).create_kv_store(KV_SPEC) is store


def test_bytes_per_token_are_asked_of_a_store_of_one_token(vendor: Make) -> None:
    asked: list[int] = []

    @hookimpl
    def sglang_mlx_create_kv_store(spec: KVStoreSpec) -> Any:
        asked.append(spec.capacity)
        return Store(capacity=spec.capacity, nbytes=0)

    hooks = Hooks(HookManager([vendor("a", sglang_mlx_create_kv_store)]))
    assert hooks.kv_bytes_per_token(KV_SPEC) == NUMBERS
    assert asked == [1]


def test_built_in_kv_store_passes_its_own_check() -> None:
    hooks = Hooks(HookManager([]))
    assert hooks.kv_bytes_per_token(KV_SPEC) == NUMBERS * 4
    assert hooks.create_kv_store(KV_SPEC).capacity == 100


class Pool:
    """A request pool on paper."""

    def __init__(self, room: Any = 4) -> None:
        self.room = room
        self.alloc = self.free = self.clear = print

    def available_size(self) -> Any:
        return self.room


@pytest.mark.parametrize("missing", ["alloc", "free", "available_size", "clear"])
def test_pool_that_lacks_a_method(hooks: Callable[..., Hooks], missing: str) -> None:
    hook = "sglang_mlx_create_request_pool"
    pool = Pool()
    setattr(pool, missing, None)
    asked = hooks(hook, pool)
    assert_refused(lambda: asked.create_request_pool(POOL_SPEC), hook, f"without {missing},")


@pytest.mark.parametrize("room", [3, 0, None, "4", 4.0])
def test_pool_without_room(hooks: Callable[..., Hooks], room: Any) -> None:
    hook = "sglang_mlx_create_request_pool"
    asked = hooks(hook, Pool(room))
    assert_refused(lambda: asked.create_request_pool(POOL_SPEC), hook, "at least 4")


def test_pool_that_fits(hooks: Callable[..., Hooks]) -> None:
    pool = Pool()
    assert hooks("sglang_mlx_create_request_pool", pool).create_request_pool(POOL_SPEC) is pool


ATTENTION_SPEC = AttentionSpec(layers=(), dtype="float32", device="cpu")


def test_attention_that_cannot_be_called(hooks: Callable[..., Hooks]) -> None:
    hook = "sglang_mlx_create_attention"
    asked = hooks(hook, 3)
    assert_refused(lambda: asked.create_attention(ATTENTION_SPEC), hook, "a callable")


@pytest.mark.parametrize(
    ("shape", "dtype", "came"),
    [
        ((2, 4, 3, 8), "float32", "float32 (2, 4, 3, 8)"),
        ((2, 4, 3, 6), "float16", "float16 (2, 4, 3, 6)"),
    ],
)
def test_attention_that_returns_another_shape(
    hooks: Callable[..., Hooks], shape: tuple[int, ...], dtype: str, came: str
) -> None:
    import mlx.core as mx

    hook = "sglang_mlx_create_attention"
    asked = hooks(hook, lambda *arrays, **rest: mx.zeros(shape, getattr(mx, dtype)))
    attention = asked.create_attention(ATTENTION_SPEC)
    queries, keys, values = mx.zeros((2, 4, 3, 8)), mx.zeros((2, 2, 5, 8)), mx.zeros((2, 2, 5, 6))
    assert_refused(
        lambda: attention(queries, keys, values, scale=1.0, mask=None), hook, came, "(2, 4, 3, 6)"
    )


@pytest.mark.parametrize(
    ("hook", "spec"),
    [
        ("sglang_mlx_create_swiglu", SwiGLUSpec(dtype="float32", device="cpu")),
        ("sglang_mlx_create_logits_processor", LogitsProcessorSpec(vocab_size=5, device="cpu")),
    ],
)
@pytest.mark.parametrize(
    ("answer", "came"),
    [
        (3, "a callable"),
        (lambda *arrays: arrays[0][:, :3], "float32 (2, 3)"),
        (lambda *arrays: arrays[0].astype("float16"), "float16 (2, 5)"),
        (lambda *arrays: None, "None"),
    ],
)
def test_a_gate_or_a_logits_processor_of_another_form(
    hooks: Callable[..., Hooks], hook: str, spec: Any, answer: Any, came: str
) -> None:
    import mlx.core as mx

    if came.startswith("float16"):
        answer = lambda *arrays: arrays[0].astype(mx.float16)  # noqa: E731
    asked = hooks(hook, answer)
    create = getattr(asked, hook.removeprefix("sglang_mlx_"))
    assert_refused(lambda: create(spec)(mx.zeros((2, 5)), mx.zeros((2, 5))), hook, came)


def test_sampler_that_cannot_be_called(hooks: Callable[..., Hooks]) -> None:
    hook = "sglang_mlx_create_sampler"
    asked = hooks(hook, 3)
    spec = SamplerSpec(vocab_size=10, device="cpu")
    assert_refused(lambda: asked.create_sampler(spec), hook, "a callable")


@pytest.mark.parametrize(
    ("shape", "dtype", "came"),
    [
        ((3, 1), "int32", "int32 (3, 1)"),
        ((2,), "int32", "int32 (2,)"),
        ((3,), "uint32", "uint32 (3,)"),
        ((3,), "int64", "int64 (3,)"),
        ((), "int32", "int32 ()"),
    ],
)
def test_sampler_that_returns_the_wrong_shape(
    hooks: Callable[..., Hooks], shape: tuple[int, ...], dtype: str, came: str
) -> None:
    hook = "sglang_mlx_create_sampler"
    tokens = types.SimpleNamespace(shape=shape, dtype=f"mlx.core.{dtype}")
    asked = hooks(hook, lambda logits, rows, positions: tokens)
    sampler = asked.create_sampler(SamplerSpec(vocab_size=10, device="cpu"))
    logits: Any = types.SimpleNamespace(shape=(3, 10))
    assert_refused(
        lambda: sampler(logits, None, None),  # type: ignore[arg-type]
        hook,
        came,
        "int32 array of shape (3,)",
    )
    with pytest.raises(HookError, match="The sampler answered"):
        check_sampled(tokens, 3)


def test_sampled_tokens_are_checked_while_they_are_lazy() -> None:
    import mlx.core as mx

    check_sampled(mx.argmax(mx.zeros((3, 10)), axis=-1).astype(mx.int32), 3)
    with pytest.raises(HookError, match="uint32"):
        check_sampled(mx.argmax(mx.zeros((3, 10)), axis=-1), 3)
    with pytest.raises(HookError, match="list"):
        check_sampled([1, 2, 3], 3)
