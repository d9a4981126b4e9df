"""Records how the engine runs each family: ``python -m tests.support.family_table --write``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from tests.support.families import FAMILIES, UNTESTED, build, runnable

# isort: split

from mlx_lm.models.cache import make_prompt_cache

from sglang_mlx_plugin.engine.caches import UnsupportedModelError
from sglang_mlx_plugin.engine.layout_check import choose_layout
from sglang_mlx_plugin.families import table
from sglang_mlx_plugin.families.table import Family
from sglang_mlx_plugin.hooks.types import LoadedModel
from tests.support.families import cache_kinds

TABLE = Path(table.__file__).with_name("table.json")


def line(name: str) -> Family:
    """How the engine runs a family's tiny model."""
    recipe = FAMILIES[name]
    module = recipe.module
    shown = module if name == module else f"{module} ({name})"
    if not runnable(name):
        return Family(
            name=shown, module=module, kinds=recipe.kinds, tested="no: runs on Metal alone"
        )
    model, config = build(name)
    loaded = LoadedModel(
        model=model,
        config=config,
        vocab_size=int(config.get("vocab_size") or 128),
        dtype="float32",
        weight_bytes=0,
        eos_token_ids=(),
        family=str(config["model_type"]),
    )
    kinds = cache_kinds(make_prompt_cache(model))
    try:
        layout = choose_layout(loaded, context_len=512)
    except UnsupportedModelError:
        return Family(name=shown, module=module, kinds=kinds, batched="refused", quantised="-")
    batched = "yes" if layout.padded else "equal lengths"
    return Family(
        name=shown,
        module=module,
        kinds=kinds,
        batched="row by row" if layout.row_by_row else batched,
        reuse="snapshots" if layout.has_state else "tokens",
        quantised="no",
    )


def lines() -> list[Family]:
    """Every family with a recipe, and those without, with the reason."""
    found = [line(name) for name in FAMILIES]
    found += [
        Family(name=module, module=module, tested=f"no: {why}") for module, why in UNTESTED.items()
    ]
    return sorted(found, key=lambda each: each.name)


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    data = {"mlx_lm": version("mlx-lm"), "families": [asdict(each) for each in lines()]}
    if args.write:
        TABLE.write_text(json.dumps(data, indent=1) + "\n")
        print(TABLE)
    else:
        print(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
