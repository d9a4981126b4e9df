"""Weights laid out for a CPU's BLAS; never used on Metal or CUDA.

MLX's CPU back end sends float32 products to BLAS and nothing else: bfloat16 and quantised
products run tens of times slower. And for the few rows of a decode step ``x @ Wt`` with Wt
contiguous is up to three times as fast as ``x @ W.T``. So on a CPU, weights become float32
and linear layers hold theirs transposed, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from sglang_mlx_plugin.engine.trees import named_parameters

__all__ = ["TransposedLinear", "float32_bytes", "to_float32", "transpose_linears"]


class TransposedLinear(nn.Module):
    """``y = x @ wt + bias`` with ``wt`` of shape (inputs, outputs), contiguous."""

    def __init__(self, weight: mx.array, bias: mx.array | None) -> None:
        super().__init__()
        self.wt = mx.contiguous(weight.T)
        if bias is not None:
            self.bias = bias

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self.wt
        return y + self.bias if "bias" in self else y


class _TransposedEmbedding(nn.Module):
    """An embedding whose tied head multiplies by a transposed copy of the table."""

    def __init__(self, weight: mx.array) -> None:
        super().__init__()
        self.weight = weight
        self.wt = mx.contiguous(weight.T)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.weight[tokens]

    def as_linear(self, x: mx.array) -> mx.array:
        return x @ self.wt


def float32_bytes(model: nn.Module) -> int:
    """Bytes that the model's weights take in float32, quantised ones unpacked."""
    total = 0
    for _, module in _leaves(model):
        if "scales" in module and "weight" in module:
            total += int(module.weight.size) * 32 // int(module.bits) * 4
            total += 4 * sum(
                int(value.size)
                for name, value in module.items()
                if isinstance(value, mx.array) and name not in ("weight", "scales", "biases")
            )
        else:
            total += 4 * sum(int(value.size) for _, value in named_parameters(module))
    return total


def to_float32(model: nn.Module) -> None:
    """Unpack quantised layers and cast every floating-point weight to float32, in place."""
    replacements = []
    for path, module in _leaves(model):
        plain = _unpacked(module)
        if plain is not None:
            replacements.append((path, plain))
    for path, plain in replacements:
        _replace(model, path, plain)

    def cast(value: Any) -> Any:
        floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return value.astype(mx.float32) if floating else value

    for _, module in _leaves(model):
        module.update(tree_map(cast, module.parameters()))
        # One layer at a time: never the packed and the unpacked model whole at once.
        mx.eval(module.parameters())


def transpose_linears(model: nn.Module) -> int:
    """Lay linear layers out for BLAS, in place.

    Returns:
        How many layers were changed.
    """
    changed = 0
    for path, module in list(_leaves(model)):
        new: nn.Module | None = None
        if type(module) is nn.Linear:
            new = TransposedLinear(module.weight, module.get("bias"))
        elif type(module) is nn.Embedding and _is_tied(model, path):
            new = _TransposedEmbedding(module.weight)
        if new is not None:
            mx.eval(new.parameters())
            _replace(model, path, new)
            changed += 1
    return changed


def _leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    leaves: Any = tree_flatten(
        model.leaf_modules(), is_leaf=lambda node: isinstance(node, nn.Module)
    )
    for path, module in leaves:
        if isinstance(module, nn.Module):
            yield path, module


def _is_tied(model: nn.Module, path: str) -> bool:
    """Whether the embedding at `path` is also the output head: there is no other."""
    name = path.rsplit(".", 1)[-1]
    if name not in ("embed_tokens", "wte", "tok_embeddings", "embeddings", "word_embeddings"):
        return False
    return not any(other.rsplit(".", 1)[-1] == "lm_head" for other, _ in _leaves(model))


def _unpacked(module: nn.Module) -> nn.Module | None:
    """A plain module with the weights of a quantised one; None if it is not quantised."""
    if "scales" not in module:
        return None
    weight = mx.dequantize(
        module.weight,
        module.scales,
        module.get("biases"),
        group_size=module.group_size,
        bits=module.bits,
        mode=getattr(module, "mode", "affine"),
        **({"global_scale": module.global_scale} if "global_scale" in module else {}),
    ).astype(mx.float32)
    if isinstance(module, nn.QuantizedLinear):
        plain: nn.Module = nn.Linear(1, 1, bias="bias" in module)
    elif isinstance(module, nn.QuantizedEmbedding):
        plain = nn.Embedding(1, 1)
    elif type(module).__name__ == "QuantizedSwitchLinear":
        from mlx_lm.models.switch_layers import SwitchLinear

        plain = SwitchLinear(1, 1, 1, bias="bias" in module)
    else:
        return None
    plain.weight = weight
    if "bias" in module:
        plain.bias = module.bias
    return plain


def _replace(model: nn.Module, path: str, new: nn.Module) -> None:
    *parents, name = path.split(".")
    owner: Any = model
    for part in parents:
        owner = owner[int(part)] if isinstance(owner, list) else owner[part]
    if isinstance(owner, list):
        owner[int(name)] = new
    elif isinstance(owner, nn.Module):
        setattr(owner, name, new)
    else:
        owner[name] = new
