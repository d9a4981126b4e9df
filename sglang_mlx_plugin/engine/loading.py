"""Loads an mlx-lm model folder.

Python from the folder never runs unless ``trust_remote_code`` is given: mlx-lm's own gate on
``model_file`` is used, and everything else is read as data.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from sglang_mlx_plugin.engine import cpu_layout
from sglang_mlx_plugin.engine.cpu_rope import share_rope
from sglang_mlx_plugin.engine.trees import named_parameters
from sglang_mlx_plugin.hooks.types import LoadedModel

if TYPE_CHECKING:
    from sglang_mlx_plugin.hooks.types import LoadRequest

__all__ = ["ModelLoadError", "load_model", "weight_bytes"]

logger = logging.getLogger(__name__)


class ModelLoadError(RuntimeError):
    """A folder that cannot be served; the message is one sentence for the user."""


def load_model(request: LoadRequest) -> LoadedModel:
    """Load the model that `request` names, with its weights in memory.

    On a CPU the weights become float32 and are laid out for BLAS where
    ``memory_limit_bytes`` allows; elsewhere they stay as the folder holds them unless a
    dtype is asked for.

    Raises:
        ModelLoadError: If the folder is not a model that mlx-lm can load.
    """
    from mlx_lm.utils import load_model as mlx_lm_load

    path = request.path
    if not path.is_dir():
        raise ModelLoadError(f"The model path {str(path)!r} is not a folder.")
    try:
        model, config = mlx_lm_load(
            path,
            lazy=True,
            strict=True,
            model_config=dict(request.config_overrides),
            trust_remote_code=request.trust_remote_code,
        )
    except FileNotFoundError as error:
        raise ModelLoadError(f"The model folder {str(path)!r} is incomplete: {error}.") from error
    except Exception as error:
        raise ModelLoadError(
            f"mlx-lm cannot load the model folder {str(path)!r}: {_first_line(error)}"
        ) from error
    model.eval()
    try:
        dtype = _prepare_weights(model, request)
    except Exception as error:
        raise ModelLoadError(
            f"The weights in {str(path)!r} cannot be read: {_first_line(error)}"
        ) from error
    return LoadedModel(
        model=model,
        config=config,
        vocab_size=_vocab_size(model),
        dtype=dtype,
        weight_bytes=weight_bytes(model),
        eos_token_ids=_eos_token_ids(config),
        family=str(config.get("model_type", "unknown")),
    )


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters of `model`."""
    return sum(int(value.nbytes) for _, value in named_parameters(model))


def _prepare_weights(model: nn.Module, request: LoadRequest) -> str:
    if request.device == "cpu" and request.dtype in ("auto", "float32"):
        needed = cpu_layout.float32_bytes(model)
        limit = request.memory_limit_bytes
        if limit is None or needed <= limit:
            cpu_layout.to_float32(model)
            cpu_layout.measure_products(model)
            share_rope(model)
            return "float32"
        logger.warning(
            "float32 weights would take %.1f GB of the %.1f GB that weights may take: the "
            "folder's own dtype is kept, which MLX's CPU back end runs far slower.",
            needed / 1e9,
            limit / 1e9,
        )
    if request.dtype != "auto":
        _cast(model, getattr(mx, request.dtype))
    mx.eval(model.parameters())
    limit = request.memory_limit_bytes
    if limit is not None and weight_bytes(model) > limit:
        raise ModelLoadError(
            f"the weights take {weight_bytes(model) / 1e9:.1f} GB, more than the "
            f"{limit / 1e9:.1f} GB that --mem-fraction-static leaves for them"
        )
    return _activation_dtype(model)


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    keep = getattr(model, "cast_predicate", lambda _: True)

    def cast(path: str, value: Any) -> Any:
        floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return value.astype(dtype) if floating and keep(path) else value

    flat = [(path, cast(path, value)) for path, value in named_parameters(model)]
    model.load_weights(flat, strict=False)


def _activation_dtype(model: nn.Module) -> str:
    """The dtype that hidden states have: that of the embedding's answer."""
    for name, value in named_parameters(model):
        if "norm" in name and mx.issubdtype(value.dtype, mx.floating):
            return str(value.dtype).rsplit(".", 1)[-1]
    for _, value in named_parameters(model):
        if mx.issubdtype(value.dtype, mx.floating):
            return str(value.dtype).rsplit(".", 1)[-1]
    return "float32"


def _vocab_size(model: nn.Module) -> int:
    from mlx_lm.models.cache import make_prompt_cache

    logits = model(mx.array([[1]]), cache=make_prompt_cache(model))
    return int(logits.shape[-1])


def _eos_token_ids(config: dict[str, Any]) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(token) for token in value)


def _first_line(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"config.json is not JSON ({error})."
    text = str(error).strip() or type(error).__name__
    lines = text.splitlines()
    line = lines[0]
    if line.rstrip().endswith(":") and len(lines) > 1:
        # mlx-lm lists missing or unexpected parameters from the second line on.
        more = " and more" if len(lines) > 2 else ""
        line = f"{line.rstrip()} {lines[1].strip().rstrip(',')}{more}"
    if isinstance(error, KeyError):
        line = f"config.json lacks {line}"
    return line if line.endswith(".") else f"{line}."
