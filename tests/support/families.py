"""Tiny random models of every mlx-lm family, and what mlx-lm itself says they generate.

    model, config = build("qwen3_next")
    tokens, logits = reference_generate(model, [5, 9, 17], 12)

mlx must be imported with torch's BLAS already in the process for speed (see
`lend_torch_blas`); without it everything works, only slower.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.family_recipes import COMMON, RECIPES, UNTESTED, VOCAB, WINDOW, Recipe


def lend_torch_blas() -> None:
    """Load torch's BLAS before mlx is imported, where torch is there and it is not too late."""
    if "mlx.core" in sys.modules:
        return
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in Path(folder, "lib").glob("libtorch_cpu.so"):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


lend_torch_blas()

import mlx.core as mx  # noqa: E402
import mlx_lm.models  # noqa: E402
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_lm.models.cache import CacheList, make_prompt_cache  # noqa: E402

__all__ = [
    "EOS_TOKEN",
    "FAMILIES",
    "UNTESTED",
    "VOCAB",
    "WINDOW",
    "Recipe",
    "build",
    "cache_kinds",
    "config_of",
    "model_modules",
    "reference_generate",
    "reference_logits",
    "runnable",
    "save",
]

#: Every recipe by name.
FAMILIES: dict[str, Recipe] = RECIPES

#: Id of the end token in the tokenizer that `save` writes.
EOS_TOKEN = 2

# Modules of mlx_lm.models that hold parts of models.
PARTS = frozenset(
    {
        "activations",
        "base",
        "bitlinear_layers",
        "cache",
        "gated_delta",
        "mla",
        "pipeline",
        "rope_utils",
        "ssm",
        "switch_layers",
    }
)

# Parameters that set time constants or biases: the model's own start is kept, with a little
# noise, since other values make the state vanish or explode. `dt_bias` and the decays of
# Mamba-2 and its kin are drawn so that the state remembers some tens of tokens.
KEEP = ("A_log", "D", "sinks", "e_score_correction_bias", "expert_bias")

EMBEDDING = re.compile(r"embed|embd|wte|wpe")


def model_modules() -> list[str]:
    """Names of the modules of ``mlx_lm.models`` that are models, not parts of them."""
    names = (module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))
    return sorted(name for name in names if name not in PARTS)


def runnable(name: str) -> bool:
    """Whether this machine can run the family: a few have Metal kernels only."""
    return not FAMILIES[name].metal or mx.metal.is_available()


def config_of(name: str) -> dict[str, Any]:
    """The whole ``config.json`` of a family's tiny model."""
    recipe = FAMILIES[name]
    known = inspect.signature(_module(recipe).ModelArgs).parameters
    given = {"model_type": recipe.module, **copy.deepcopy(recipe.config)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise KeyError(f"{name}: {recipe.module}.ModelArgs does not know {', '.join(unknown)}")
    common = {} if "text_config" in given else {k: v for k, v in COMMON.items() if k in known}
    return copy.deepcopy({**common, **given})


def build(name: str, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Build a family's tiny model in float32, the same weights for the same seed.

    Returns:
        The model, evaluated, and its ``config.json``.
    """
    recipe = FAMILIES[name]
    module = _module(recipe)
    config = config_of(name)
    # mlx-lm's own starting values are random where they are not constants.
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    weights = [
        (path, _draw(path, value, recipe, seed)) for path, value in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return model, config


def cache_kinds(caches: list[Any]) -> tuple[str, ...]:
    """The cache classes of a model, each once, as `Recipe.kinds` writes them."""
    return tuple(dict.fromkeys(_kind(cache) for cache in caches))


def reference_generate(model: Any, prompt: list[int], n: int) -> tuple[list[int], np.ndarray]:
    """What mlx-lm itself generates for this sequence alone, greedily.

    Its own prompt cache; the prompt but its last token in one piece, then token by token, as
    `mlx_lm.generate.generate_step` does.

    Returns:
        The `n` tokens, and the float32 logits (n, vocabulary) that each was taken from.
    """
    cache = make_prompt_cache(model)
    if len(prompt) > 1:
        model(mx.array([prompt[:-1]]), cache=cache)
        mx.eval([c.state for c in cache if c is not None])
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    last = prompt[-1]
    for _ in range(n):
        logits = model(mx.array([[last]]), cache=cache)[0, -1].astype(mx.float32)
        rows.append(np.array(logits))
        last = int(rows[-1].argmax())
        tokens.append(last)
    return tokens, np.stack(rows)


def reference_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """Logits (len(tokens), vocabulary) of one pass over `tokens` with a fresh cache."""
    logits = model(mx.array([tokens]), cache=make_prompt_cache(model))[0]
    return np.array(logits.astype(mx.float32))


def save(model: Any, config: dict[str, Any], folder: str | Path, *, tokenizer: bool = True) -> Path:
    """Write a folder that mlx-lm, and with a tokenizer SGLang, can load.

    Args:
        model: A model that `build` made.
        config: Its configuration.
        folder: Where to; made if missing.
        tokenizer: Whether to write a tokenizer of one token a character, with a chat
            template, `EOS_TOKEN` as its end.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    if tokenizer:
        config = {"eos_token_id": EOS_TOKEN, "bos_token_id": 1, "pad_token_id": 0, **config}
        _write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _module(recipe: Recipe) -> Any:
    return importlib.import_module(f"mlx_lm.models.{recipe.module}")


def _kind(cache: Any) -> str:
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(_kind(part) for part in cache.caches)})"
    return type(cache).__name__


def _draw(path: str, value: mx.array, recipe: Recipe, seed: int) -> mx.array:
    """A parameter's value, from its path, its shape and the seed alone."""
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    start = np.array(value.astype(mx.float32))
    noise = np.random.default_rng([seed, zlib.crc32(path.encode())]).standard_normal(start.shape)
    leaf = path.rsplit(".", 1)[-1]
    if leaf == "dt_bias":
        drawn = 0.5 * noise - 2.0
    elif leaf == "A_log" and start.ndim == 1:
        drawn = 0.5 * noise
    elif start.ndim < 2 or any(leaf.startswith(name) for name in KEEP):
        drawn = start + 0.1 * noise
    else:
        # A depthwise convolution's weight is (channels, width, 1).
        fan_in = start.shape[-1] if start.shape[-1] > 1 else start.shape[-2]
        gain = recipe.embed if EMBEDDING.search(path) else recipe.gain
        drawn = noise * gain / np.sqrt(fan_in)
    return mx.array(drawn.astype(np.float32))


@functools.cache
def _alphabet() -> dict[str, int]:
    """The vocabulary: special tokens, printable ASCII, then fillers up to `VOCAB`."""
    tokens = ["<pad>", "<bos>", "<eos>", "<unk>", "\n", *map(chr, range(32, 127))]
    tokens += [f"<extra_{i}>" for i in range(VOCAB - len(tokens))]
    return {token: index for index, token in enumerate(tokens)}


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(_alphabet(), unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    outer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    outer.save_pretrained(str(folder))
