"""The row of the contract table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from .shapes import CallShape

__all__ = ["Contract", "ContractUse", "NotReached", "group"]

ContractUse = Literal[
    "replace", "override", "implement", "call", "construct", "read", "write", "import"
]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One upstream symbol that we lean on.

    Attributes:
        target: Dotted name; class members through the class that we use them on.
        use: What we do with it. ``replace`` is a hook in SGLang's registry, ``implement`` a
            name that upstream asks for by convention and no base class of its own has.
        why: What we need it for.
        breaks: What a user would see if it went.
        ours: Dotted name of our override or hook, where there is one.
        calls: Call shapes that we rely on and that our source does not show by itself.
        kind: What the target must be (``method``, ``property``, ``attribute`` ...), where the
            use alone does not say.
        since: First release that has it, as far back as our window reaches.
        until: Last release that has it.
        gone_when: What would let us drop the row.
    """

    target: str
    use: ContractUse
    why: str
    breaks: str
    ours: str = ""
    calls: tuple[CallShape, ...] = ()
    kind: str = ""
    since: str = ""
    until: str = ""
    gone_when: str = ""

    def applies_to(self, release: Version | None) -> bool:
        """Whether the row speaks of ``release``; an unknown release counts as the newest."""
        if release is None:
            return not self.until
        return (not self.since or release >= Version(self.since)) and (
            not self.until or release <= Version(self.until)
        )


@dataclass(frozen=True, kw_only=True)
class NotReached:
    """An attribute that upstream's source reads off a part of ours, and never does with us.

    Attributes:
        role: The part (``worker``, ``runner`` ...).
        attributes: Names.
        why: What keeps upstream from getting there.
    """

    role: str
    attributes: tuple[str, ...]
    why: str


def group(
    owner: str, use: ContractUse, *names: str, why: str, breaks: str, **more: str
) -> Iterator[Contract]:
    """Rows that share everything but the name: ``owner.name`` for each of ``names``."""
    for name in names:
        yield Contract(
            target=f"{owner}.{name}",
            use=use,
            why=why,
            breaks=breaks,
            **more,  # type: ignore[arg-type]
        )
