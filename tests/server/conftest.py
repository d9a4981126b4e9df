"""Servers are slow to start: each module shares one, under ``server``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, launched

# What most modules launch with: the chunk size of the exactness tests, metrics, and a KV
# budget that a shared machine holds twice.
ARGS = (
    *("--chunked-prefill-size", "128", "--mem-fraction-static", "0.3"),
    *("--enable-metrics", "--enable-cache-report"),
)


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The default model on the standard launch; a module's ``SERVER_ARGS`` replace ours."""
    args = getattr(request.module, "SERVER_ARGS", ARGS)
    with launched(default_model, tmp_path_factory.mktemp("server"), *args) as running:
        yield running
