"""A GGUF file of the llama architecture as a model folder that mlx-lm and SGLang load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelFileError
from .gguf import GGUFFile
from .llama import read_llama
from .progress import Progress
from .tokenizer import end_tokens, write_tokenizer
from .weights import choose_dtype, quantization, write_weights

__all__ = ["convert_gguf"]


def convert_gguf(source: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write the model folder of a GGUF file; every weight keeps its value exactly.

    Q4_0, Q4_1 and Q8_0 stay packed, as MLX's affine 4 or 8 bits in groups of 32; other
    quantised types are written unpacked in float32; float tensors in the narrowest float type
    that holds the file.

    Args:
        source: The GGUF file; it may be hostile.
        folder: An existing, empty folder.
        progress: Where to show how far it is; nowhere by default.

    Raises:
        ModelFileError: If the file cannot be converted; the folder is then half written.
        OSError: If the folder cannot be written.
    """
    progress = progress or Progress(quiet=True)
    with GGUFFile(source) as file:
        model = read_llama(file)
        ends = end_tokens(file)
        # Small files first: what they refuse costs no weights.
        write_tokenizer(file, folder, model.config["max_position_embeddings"])
        dtype = choose_dtype(file, model.targets)
        eos = ends[0] if len(ends) == 1 else ends
        tokens: dict[str, Any] = {"eos_token_id": eos}
        for theirs, ours in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
            key = f"tokenizer.ggml.{theirs}_token_id"
            if key in file.metadata:
                tokens[ours] = file.metadata.integer(key, 0, model.config["vocab_size"] - 1)
        # Both names of the dtype: older releases of transformers read the second.
        config = model.config | tokens | {"dtype": dtype, "torch_dtype": dtype}
        packing = quantization(model.targets)
        if packing is not None:
            config["quantization"] = packing
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", tokens)
        total = sum(target.source.nbytes for target in model.targets)
        try:
            with progress.bar("Converting", total) as advance:
                write_weights(file, model.targets, dtype, folder / "model.safetensors", advance)
        except MemoryError as error:
            raise ModelFileError(
                f"There is not enough memory to convert {str(source)!r}: close other programs or "
                "use a smaller model."
            ) from error


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
