"""What hooks receive and answer.

These dataclasses are the stable part of the plugin interface: a field may be added in any
release, and is removed or changed in meaning only after one minor release that warns.
This module imports neither SGLang nor MLX, so that a vendor can import it anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import mlx.core as mx

    from sglang_mlx_plugin.engine.types import BatchView, SamplingRows

__all__ = [
    "Attention",
    "AttentionSpec",
    "ConcurrencyLimits",
    "DeviceChoice",
    "KVLayerSpec",
    "KVStore",
    "KVStoreSpec",
    "LoadRequest",
    "LoadedModel",
    "LogitsProcessor",
    "LogitsProcessorSpec",
    "RequestPoolSpec",
    "Sampler",
    "SamplerSpec",
    "SwiGLU",
    "SwiGLUSpec",
]

DeviceKind = Literal["metal", "cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """Which MLX device serves, and whether this backend takes part at all.

    Attributes:
        active: False leaves SGLang to its own platforms.
        kind: MLX back end: ``metal``, ``cuda`` or ``cpu``; meaningless when not active.
        reason: One clause for the log and for ``sglang-mlx doctor``.
    """

    active: bool
    kind: DeviceKind
    reason: str


@dataclass(frozen=True, kw_only=True)
class ConcurrencyLimits:
    """The numbers that bound how many requests run at once.

    Attributes:
        max_total_num_tokens: KV capacity of this worker, in tokens.
        requested: ``--max-running-requests`` as the user gave it, or None.
        attn_dp_size: Workers that split one KV budget under data-parallel attention;
            1 for pure data-parallel replicas, each of which keeps the whole value.
        is_hybrid: The model holds auxiliary state (recurrent layers, windows).
        max_mamba_cache_size: ``--max-mamba-cache-size`` over all workers, or None.
        disable_radix_cache: ``--disable-radix-cache``.
        auxiliary_slots_per_request: Answer of ``sglang_mlx_auxiliary_slots_per_request``;
            None while that hook itself is being asked.
    """

    max_total_num_tokens: int
    requested: int | None = None
    attn_dp_size: int = 1
    is_hybrid: bool = False
    max_mamba_cache_size: int | None = None
    disable_radix_cache: bool = False
    auxiliary_slots_per_request: int | None = None


@dataclass(frozen=True, kw_only=True)
class RequestPoolSpec:
    """What a request-to-token pool must hold.

    Attributes:
        size: Requests that can run at once (rows 1..size; row 0 is SGLang's padding row).
        max_context_len: Tokens a row can name.
        device: torch device string of the table; always ``"cpu"`` here.
        enable_memory_saver: SGLang's flag, passed through.
        is_hybrid: True asks for a pool that also hands out auxiliary-state slots.
        auxiliary_size: Auxiliary-state slots, 0 for full-attention models.
        auxiliary_slot_bytes: Bytes of one auxiliary slot.
        disable_radix_cache: With the radix cache off the pool releases auxiliary slots in
            ``free(req)``; with it on, the tree's component does.
    """

    size: int
    max_context_len: int
    device: str = "cpu"
    enable_memory_saver: bool = False
    is_hybrid: bool = False
    auxiliary_size: int = 0
    auxiliary_slot_bytes: int = 0
    disable_radix_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """Which model to load and how.

    Attributes:
        path: Folder with ``config.json`` and safetensors weights.
        device: Device that will run the model.
        dtype: ``"auto"``, ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        trust_remote_code: Whether Python from the folder may run.
        config_overrides: ``--json-model-override-args``, merged over ``config.json``.
        memory_limit_bytes: Bytes that weights may take; None for no limit.
    """

    path: Path
    device: DeviceKind
    dtype: str = "auto"
    trust_remote_code: bool = False
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    memory_limit_bytes: int | None = None


@dataclass(kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        model: An ``mlx_lm`` model: callable as ``model(tokens (B, N), cache=caches)`` with
            logits (B, N, vocab) as the answer, and with ``layers``.
        config: The parsed ``config.json``.
        vocab_size: Width of the logits.
        dtype: Name of the activations' dtype, e.g. ``"float32"``.
        weight_bytes: Bytes of all parameters.
        eos_token_ids: End-of-sequence ids that the folder names.
        family: ``model_type`` of the config.
    """

    model: Any
    config: dict[str, Any]
    vocab_size: int
    dtype: str
    weight_bytes: int
    eos_token_ids: tuple[int, ...]
    family: str


@dataclass(frozen=True, kw_only=True)
class KVLayerSpec:
    """Shape of one attention layer's keys and values for one token.

    Attributes:
        index: Position in the model's cache list.
        heads: KV heads.
        key_dim: Width of a head's key.
        value_dim: Width of a head's value.
    """

    index: int
    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class KVStoreSpec:
    """What the KV store must hold.

    Attributes:
        layers: One entry for each attention layer, in the model's order.
        capacity: Tokens that can be held; slots are numbered 1..capacity, slot 0 takes
            the writes of padding.
        dtype: Name of the dtype that the model computes keys and values in.
        kv_cache_dtype: ``--kv-cache-dtype`` as the user gave it (``"auto"`` by default).
        device: MLX back end.
    """

    layers: tuple[KVLayerSpec, ...]
    capacity: int
    dtype: str
    kv_cache_dtype: str
    device: DeviceKind


@runtime_checkable
class KVStore(Protocol):
    """Keys and values of all attention layers, addressed by token slot."""

    @property
    def capacity(self) -> int:
        """Tokens that can be held."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token of capacity costs, over all layers."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes allocated now."""
        ...

    def caches(self, view: BatchView) -> list[Any]:
        """One mlx-lm cache object for each attention layer, for one forward pass.

        A layer that the model sees through a sliding window is asked for it with
        ``cache.with_window(tokens)``, which answers a cache of the same layer.
        """
        ...

    def arrays(self) -> list[mx.array]:
        """The arrays that hold the state, to be evaluated with a step's results."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """What the attention kernel must handle.

    Attributes:
        layers: Shape of each attention layer whose keys and values the KV store holds; a
            layer that it does not hold may call the kernel too.
        dtype: Name of the MLX dtype of activations.
        device: MLX back end.
    """

    layers: tuple[KVLayerSpec, ...]
    dtype: str
    device: DeviceKind


@runtime_checkable
class Attention(Protocol):
    """Scaled dot-product attention, as `mlx.core.fast.scaled_dot_product_attention`."""

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Attend.

        Args:
            queries: (B, heads, N, key_dim).
            keys: (B, kv_heads, S, key_dim); ``kv_heads`` divides ``heads``.
            values: (B, kv_heads, S, value_dim).
            scale: Scores are multiplied by this before the softmax.
            mask: None; ``"causal"``: query i sees the keys up to S - N + i; bool, true where
                a key is seen; or floating, added to the scores. An array is broadcast to
                (B, heads, N, S).
            sinks: (heads,) scores that take part in the softmax and have no value, or None.

        Returns:
            (B, heads, N, value_dim), lazy, of the dtype of `queries`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SwiGLUSpec:
    """What the gate of feed-forward layers must handle.

    Attributes:
        dtype: Name of the MLX dtype of activations.
        device: MLX back end.
    """

    dtype: str
    device: DeviceKind


@runtime_checkable
class SwiGLU(Protocol):
    """The gate of a feed-forward layer, as `mlx_lm.models.activations.swiglu`."""

    def __call__(self, gate: mx.array, x: mx.array) -> mx.array:
        """``silu(gate) * x``.

        Args:
            gate: (..., width).
            x: Of the same shape and dtype.

        Returns:
            Of the same shape and dtype, lazy.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LogitsProcessorSpec:
    """What the logits processor must handle.

    Attributes:
        vocab_size: Logits a row.
        device: MLX back end.
    """

    vocab_size: int
    device: DeviceKind


@runtime_checkable
class LogitsProcessor(Protocol):
    """Edits logits before they are sampled, and before logprobs are taken of them."""

    def __call__(self, logits: mx.array, rows: SamplingRows) -> mx.array:
        """Edit: apply each row's grammar mask and bias, in this order.

        Args:
            logits: float32 (B, vocab), penalties applied.
            rows: Sampling parameters, one entry a row; ``allowed`` is the grammar mask, bool
                (B, vocab) or None, ``bias`` is float32 (B, vocab) or None.

        Returns:
            float32 (B, vocab), lazy; minus infinity where a token must not be chosen.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """What the sampler must handle.

    Attributes:
        vocab_size: Logits a row.
        device: MLX back end.
    """

    vocab_size: int
    device: DeviceKind


@runtime_checkable
class Sampler(Protocol):
    """Chooses one token for each row."""

    def __call__(self, logits: mx.array, rows: SamplingRows, positions: mx.array) -> mx.array:
        """Sample: one token for each row of logits.

        Args:
            logits: float32 (B, vocab), already edited (penalties, bias, grammar masks).
            rows: Sampling parameters, one entry a row.
            positions: int32 (B,), index of the token being chosen within its sequence;
                with the row's seed it fixes the draw, whatever else is in the batch.

        Returns:
            int32 (B,), lazy.
        """
        ...
