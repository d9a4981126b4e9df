"""The CPU's own kernels give what MLX's give, and act on the engine's passes alone."""

from __future__ import annotations

import threading

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import activations, base, llama

from sglang_mlx_plugin.engine import cpu_attention, cpu_layout, cpu_products
from sglang_mlx_plugin.engine.cpu_attention import CpuAttention
from sglang_mlx_plugin.engine.cpu_rope import SharedRoPE, share_rope
from sglang_mlx_plugin.engine.kernels import (
    Kernels,
    create_attention,
    create_swiglu,
    fused_attention,
)
from sglang_mlx_plugin.hooks.types import AttentionSpec, DeviceKind, SwiGLUSpec
from sglang_mlx_plugin.torch_cpu import LEAST_TOKENS, TorchAttention, TorchSwiGLU
from tests.support.families import build

RNG = np.random.default_rng(7)


def normal(*shape: int) -> mx.array:
    """float32 normal numbers."""
    return mx.array(RNG.standard_normal(shape).astype(np.float32))


def worst(a: mx.array, b: mx.array) -> float:
    """Largest difference; the shapes must be equal."""
    assert a.shape == b.shape
    return float(mx.abs(a - b).max())


@pytest.mark.parametrize("exp", [mx.exp, cpu_attention._power], ids=["exp", "power"])
@pytest.mark.parametrize(
    ("batch", "heads", "groups", "steps", "columns", "mask"),
    [
        (2, 9, 3, 1, 50, None),
        (3, 4, 4, 1, 7, "ragged"),
        (3, 9, 3, 5, 40, "ragged"),
        (1, 9, 3, 300, 300, "causal"),
        (1, 4, 2, 129, 333, "causal"),
        (1, 4, 1, 1, 9, "causal"),
        (2, 4, 2, 6, 20, "bias"),
        (2, 4, 2, 6, 20, "flat"),
        (2, 4, 2, 6, 20, "heads"),
    ],
)
def test_attention_is_that_of_mlx(
    exp: cpu_attention.Exp,
    batch: int,
    heads: int,
    groups: int,
    steps: int,
    columns: int,
    mask: str | None,
) -> None:
    """Every form of mask, grouped and ungrouped heads, blocks that end within a chunk."""
    queries, keys = normal(batch, heads, steps, 16), normal(batch, groups, columns, 16)
    values = normal(batch, groups, columns, 8)
    given: mx.array | str | None = mask
    seen = mx.array(RNG.random((batch, 1, steps, columns)) < 0.5)
    seen[..., 0] = True
    if mask == "ragged":
        given = seen
    elif mask == "bias":
        given = mx.where(seen, 0.0, -mx.inf) + normal(batch, 1, steps, columns)
    elif mask == "flat":
        given = seen[0, 0]
    elif mask == "heads":
        given = normal(batch, heads, steps, columns)
    found = CpuAttention(exp)(queries, keys, values, scale=0.3, mask=given)
    expected = fused_attention(queries, keys, values, scale=0.3, mask=given)
    assert worst(found, expected) < 2e-6


def never(*arrays: mx.array, **rest: object) -> mx.array:
    """A narrow kernel that must not be asked."""
    raise AssertionError("the narrow kernel was asked")


@pytest.mark.parametrize(
    ("batch", "heads", "groups", "steps", "columns", "mask"),
    [
        (3, 9, 3, 20, 40, "ragged"),
        (1, 9, 3, 300, 300, "causal"),
        (3, 4, 4, 40, 40, "causal"),
        (1, 4, 2, 129, 333, "causal"),
        (2, 4, 2, 16, 20, "bias"),
        (2, 4, 2, 16, 20, "flat"),
        (2, 4, 2, 16, 20, "heads"),
        (40, 4, 2, 1, 20, "ragged"),
        (1, 4, 2, 33, 50, None),
    ],
)
def test_wide_attention_is_that_of_mlx(
    batch: int, heads: int, groups: int, steps: int, columns: int, mask: str | None
) -> None:
    """torch's kernel: every form of mask, queries whose heads are a view of (B, N, H, D)."""
    queries = normal(batch, steps, heads, 16).swapaxes(1, 2)
    keys, values = normal(batch, groups, columns, 16), normal(batch, groups, columns, 16)
    given: mx.array | str | None = mask
    seen = mx.array(RNG.random((batch, 1, steps, columns)) < 0.5)
    seen[..., 0] = True
    if mask == "ragged":
        given = seen
    elif mask == "bias":
        given = mx.where(seen, 0.0, -mx.inf) + normal(batch, 1, steps, columns)
    elif mask == "flat":
        given = seen[0, 0]
    elif mask == "heads":
        given = normal(batch, heads, steps, columns)
    found = TorchAttention(never)(queries, keys, values, scale=0.3, mask=given)
    expected = fused_attention(queries, keys, values, scale=0.3, mask=given)
    assert worst(found, expected) < 3e-6


def test_wide_attention_hands_on_what_it_does_not_do() -> None:
    """A few tokens, sinks, half precision and values of another width stay with the other."""
    q, k = normal(1, 2, LEAST_TOKENS, 8), normal(1, 2, LEAST_TOKENS, 8)
    wide = TorchAttention(never)
    given = [
        ((q[:, :, 1:], k, k), {}),
        ((q, k, k), {"sinks": normal(2)}),
        (tuple(a.astype(mx.bfloat16) for a in (q, k, k)), {}),
        ((q, k, k[..., :4]), {}),
    ]
    for arrays, rest in given:
        with pytest.raises(AssertionError, match="narrow"):
            wide(*arrays, scale=0.3, mask="causal", **rest)
    assert wide(q, k, k, scale=0.3, mask="causal").shape == q.shape


def test_wide_swiglu_is_that_of_mlx() -> None:
    """torch's gate over the whole range, inputs unchanged; a few tokens stay with the other."""
    gate = mx.broadcast_to(mx.array(np.linspace(-200, 200, 401, dtype=np.float32)), (40, 401))
    x = normal(40, 401)
    before = mx.array(np.array(x))
    found = TorchSwiGLU(never)(gate, x)
    assert worst(found, nn.silu(gate) * x) < 1e-4
    assert worst(x, before) == 0
    for arrays in (
        (gate[:5], x[:5]),
        (gate.astype(mx.bfloat16), x.astype(mx.bfloat16)),
    ):
        with pytest.raises(AssertionError, match="narrow"):
            TorchSwiGLU(never)(*arrays)


def test_attention_hands_on_what_it_does_not_do() -> None:
    """Sinks and half precision go to MLX's kernel."""
    q, k, v = normal(1, 2, 3, 8), normal(1, 2, 3, 8), normal(1, 2, 3, 8)
    own = CpuAttention(mx.exp)
    sinks = normal(2)
    expected = fused_attention(q, k, v, scale=0.3, mask="causal", sinks=sinks)
    assert worst(own(q, k, v, scale=0.3, mask="causal", sinks=sinks), expected) == 0
    half = [a.astype(mx.bfloat16) for a in (q, k, v)]
    assert own(*half, scale=0.3, mask=None).dtype == mx.bfloat16


def test_large_scores_do_not_overflow() -> None:
    """Scores of 1e4, of both signs, and a row that sees one key only."""
    q, k, v = 100 * normal(1, 2, 4, 16), 100 * normal(1, 2, 4, 16), normal(1, 2, 4, 16)
    found = CpuAttention(cpu_attention._power)(q, k, v, scale=1.0, mask="causal")
    assert worst(found, fused_attention(q, k, v, scale=1.0, mask="causal")) < 1e-5


def test_swiglu_over_the_whole_range() -> None:
    """Where the exponential overflows the gate is closed, not NaN."""
    gate = mx.array(np.linspace(-200, 200, 4001, dtype=np.float32))
    x = normal(4001)
    found = cpu_attention.swiglu_of(cpu_attention._power)(gate, x)
    expected = nn.silu(gate) * x
    assert bool(mx.isfinite(found).all())
    scale = mx.maximum(mx.abs(expected), 1.0)
    assert float((mx.abs(found - expected) / scale).max()) < 2e-6


def test_faster_exp_is_an_exponential() -> None:
    """Whichever of the two is chosen."""
    x = mx.array(np.linspace(-80, 80, 1001, dtype=np.float32))
    found = np.array(cpu_attention.faster_exp()(x), np.float64)
    exact = np.exp(np.array(x, np.float64))
    assert np.max(np.abs(found - exact) / exact) < 1e-5


@pytest.mark.parametrize("offset", [0, 7, [3, 8000]])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_shared_rope_is_that_of_mlx(offset: int | list[int], scale: float) -> None:
    """To the last bit, at a position and at each row's own, whole and part of the width."""
    owner = nn.Module()
    owner.whole, owner.part = nn.RoPE(16, base=1e5, scale=scale), nn.RoPE(8, scale=scale)
    plain = owner.whole, owner.part
    assert share_rope(owner) == 2
    assert isinstance(owner.whole, SharedRoPE)
    at = offset if isinstance(offset, int) else mx.array(offset)
    for steps in (1, 5):
        x = normal(2, 3, steps, 16)
        for shared, own in zip((owner.whole, owner.part), plain, strict=True):
            for _ in range(2):
                assert worst(shared(x, offset=at), own(x, offset=at)) == 0


def test_rope_tables_follow_the_offset() -> None:
    """A table of one pass is not taken for the next one's, nor one row's for a batch's."""
    owner = nn.Module()
    owner.rope = nn.RoPE(8)
    plain = owner.rope
    share_rope(owner)
    x = normal(1, 1, 3, 8)
    for offset in (0, 1, mx.array([1]), mx.array([2]), mx.array([1]), 1, 0):
        assert worst(owner.rope(x, offset=offset), plain(x, offset=offset)) == 0


def test_interleaved_rope_is_left_alone() -> None:
    """The traditional form rotates neighbours."""
    owner = nn.Module()
    owner.rope = nn.RoPE(8, traditional=True)
    assert share_rope(owner) == 0


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 9, 16, 17, 40])
def test_either_order_gives_the_product(rows: int) -> None:
    """Padded to a width or not, in two or three dimensions."""
    weight, x = normal(48, 24), normal(rows, 24)
    widths = (0, 2, 2, 4, 4, 8, 8, 8, 8, *[16] * 8)
    for shaped in (x, x[None], x[:, None]):
        found = cpu_products.multiply(shaped, weight, widths)
        assert worst(found, shaped @ weight.T) < 2e-5
        assert worst(cpu_products.multiply(shaped, weight, ()), shaped @ weight.T) == 0


def test_a_width_is_taken_where_it_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured times decide, count by count; a tie keeps the plain order."""
    plain = {1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 16: 10.0}
    turned = {2: 2.0, 4: 9.9, 8: 12.0, 16: 5.0}

    def seconds(weights: object, rows: int, *, weight_first: bool) -> float:
        return (turned if weight_first else plain)[rows]

    monkeypatch.setattr(cpu_products, "_seconds", seconds)
    weight = mx.zeros((256, 256))
    assert cpu_products.measure([weight]) == (0, 2, 2, 0, 0, 0, 0, 0, 0, *[16] * 8)
    assert cpu_products.measure([weight[:10, :10]]) == ()
    turned.update(dict.fromkeys(turned, 10.0))
    assert cpu_products.measure([weight]) == ()


def test_measured_layers_keep_biases_and_tied_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a whole model are those before its layers were changed."""
    model, _ = build("qwen2")
    tokens = mx.array([[3, 1, 4, 1, 5]])
    before = model(tokens)
    monkeypatch.setattr(cpu_products, "measure", lambda weights: (0, 2, 2, 4, 4, 8, 8, 8, 8))
    assert cpu_layout.measure_products(model) > 2
    share_rope(model)
    assert worst(model(tokens), before) < 1e-5


def test_kernels_act_inside_their_context_and_thread_only() -> None:
    """mlx-lm's functions are called by whoever else runs the model."""
    model, _ = build("llama")
    calls: list[str] = []

    def attention(*arrays: mx.array, **rest: object) -> mx.array:
        calls.append("attention")
        return fused_attention(*arrays, **rest)  # type: ignore[arg-type]

    def swiglu(gate: mx.array, x: mx.array) -> mx.array:
        calls.append("swiglu")
        return nn.silu(gate) * x

    kernels = Kernels(attention, swiglu)
    assert kernels.install(model) == kernels.install(model) == 2
    tokens = mx.array([[1, 2, 3]])
    expected = model(tokens)
    assert not calls
    with kernels.active():
        other = threading.Thread(target=lambda: model(tokens))
        other.start()
        other.join()
        assert not calls
        found = model(tokens)
    assert calls.count("attention") == calls.count("swiglu") == len(model.layers)
    assert worst(found, expected) < 1e-5
    calls.clear()
    model(tokens)
    assert not calls
    assert base.scaled_dot_product_attention is not vars(llama)["scaled_dot_product_attention"]
    assert activations.swiglu is not vars(llama)["swiglu"]


@pytest.mark.parametrize("device", ["metal", "cuda"])
def test_a_gpu_keeps_the_fused_kernels(device: DeviceKind) -> None:
    """Nothing is bound: mlx-lm calls MLX's kernels itself."""
    attention = create_attention(AttentionSpec(layers=(), dtype="float32", device=device))
    assert attention is fused_attention
    swiglu = create_swiglu(SwiGLUSpec(dtype="float32", device=device))
    kernels = Kernels.of(attention, swiglu)
    assert kernels.attention is None and kernels.swiglu is None


def test_half_precision_on_a_cpu_keeps_the_fused_kernel() -> None:
    """The grouped products are for float32."""
    spec = AttentionSpec(layers=(), dtype="bfloat16", device="cpu")
    assert create_attention(spec) is fused_attention
