"""What every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's folder, in the user's cache as `sglang-mlx fetch-model` leaves it.

    Safe with many workers: the folder is built under a lock, by whoever comes first.
    """
    from sglang_mlx_plugin.models import fetch_model

    return fetch_model()
