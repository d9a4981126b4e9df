"""Progress on standard error; silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress"]


class Progress:
    """Bars and notes on a terminal.

    Args:
        quiet: Show nothing. Without a terminal on standard error nothing is shown either.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.shown = not quiet and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """One line."""
        if self.shown:
            print(text, file=sys.stderr)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over ``total`` bytes; gives the function that adds to it."""
        if not self.shown:
            yield lambda count: None
            return
        from tqdm import tqdm

        with tqdm(
            desc=f"{label:<11}", total=total, unit="B", unit_scale=True, file=sys.stderr
        ) as bar:
            yield lambda count: (bar.update(count), None)[1]
