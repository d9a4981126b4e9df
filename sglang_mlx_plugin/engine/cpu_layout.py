"""Weights made ready for a CPU's BLAS; never used on Metal or CUDA.

MLX's CPU back end sends float32 products to BLAS and nothing else: bfloat16 and quantised
products run tens of times slower. So on a CPU, weights become float32, as far as memory
allows, and each layer multiplies in the order that is measured to be the faster one
(`sglang_mlx_plugin.engine.cpu_products`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from sglang_mlx_plugin.engine import cpu_products
from sglang_mlx_plugin.engine.trees import named_parameters

__all__ = ["float32_bytes", "measure_products", "to_float32"]


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


def measure_products(model: nn.Module) -> int:
    """Let linear layers, and an embedding that is the head too, multiply in the faster order.

    Each shape is measured once, about a second in all for a small model.

    Args:
        model: Its weights are float32.

    Returns:
        How many layers were changed.
    """
    kinds: dict[tuple[int, ...], list[tuple[str, nn.Module]]] = {}
    for path, module in list(_leaves(model)):
        tied = type(module) is nn.Embedding and _is_tied(model, path)
        if type(module) is nn.Linear or tied:
            kinds.setdefault(module.weight.shape, []).append((path, module))
    changed = 0
    for found in kinds.values():
        widths = cpu_products.measure([module.weight for _, module in found])
        if not widths:
            continue
        for path, module in found:
            new: nn.Module
            if type(module) is nn.Linear:
                new = cpu_products.MeasuredLinear(module.weight, module.get("bias"), widths)
            else:
                new = cpu_products.MeasuredEmbedding(module.weight, widths)
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
