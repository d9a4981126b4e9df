"""Hooks cost nothing while requests are served: they are asked at set-up alone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sglang_mlx_plugin.hooks import HookManager, Hooks, Plugin
from sglang_mlx_plugin.hooks.types import LoadedModel


@pytest.fixture
def counted() -> tuple[Hooks, list[str]]:
    """Hooks with an empty vendor beside the built-ins, and the names of hooks called."""
    empty = Plugin("empty", "empty-dist", "1", types.ModuleType("empty"))
    manager = HookManager([empty])
    calls: list[str] = []
    manager.pluggy.add_hookcall_monitoring(
        lambda hook_name, hook_impls, kwargs: calls.append(hook_name),
        lambda outcome, hook_name, hook_impls, kwargs: None,
    )
    return Hooks(manager), calls


def test_no_hook_is_called_in_a_step(counted: tuple[Hooks, list[str]]) -> None:
    from sglang_mlx_plugin.engine.assemble import build_engine, prepare
    from sglang_mlx_plugin.engine.types import SamplingRows, StepRequest
    from tests.support.families import build

    hooks, calls = counted
    model, config = build("llama")
    vocab = int(config["vocab_size"])
    loaded = LoadedModel(
        model=model,
        config=config,
        vocab_size=vocab,
        dtype="float32",
        weight_bytes=0,
        eos_token_ids=(),
        family="llama",
    )
    engine = build_engine(
        prepare(loaded, device="cpu", mem_fraction_static=0.1),
        capacity=64,
        kv_cache_dtype="auto",
        max_rows=1,
        device="cpu",
        create_kv_store=hooks.create_kv_store,
        create_attention=hooks.create_attention,
        create_swiglu=hooks.create_swiglu,
        create_logits_processor=hooks.create_logits_processor,
        create_sampler=hooks.create_sampler,
    )
    assert set(calls) == {
        "sglang_mlx_create_attention",
        "sglang_mlx_create_kv_store",
        "sglang_mlx_create_logits_processor",
        "sglang_mlx_create_swiglu",
        "sglang_mlx_create_sampler",
    }
    calls.clear()

    def step(prefix: int, tokens: list[int]) -> int:
        def row(value: Any, dtype: Callable[..., Any] = np.int32) -> Any:
            return np.array([value], dtype)

        new = len(tokens) or 1
        request = StepRequest(
            rows=row(1),
            prefix_lens=row(prefix),
            new_lens=row(new),
            decode=row(not tokens, np.bool_),
            token_ids=np.array(tokens, np.int32),
            kv_slots=np.arange(1, prefix + new + 1, dtype=np.int32)[None],
            needs_token=row(True, np.bool_),
            sampling=SamplingRows(
                temperature=row(1.0, np.float32),
                top_p=row(1.0, np.float32),
                top_k=row(1),
                min_p=row(0.0, np.float32),
                seeds=row(0, np.uint64),
            ),
        )
        return engine.step(request).read().token_list[0]

    answer = [step(0, [5, 9, 17]), *(step(3 + index, []) for index in range(4))]
    assert len(answer) == 5 and all(0 <= token < vocab for token in answer)
    assert calls == []
