"""SGLang's server arguments on MLX: defaults, and what is refused at start-up."""

from __future__ import annotations

from typing import Any

__all__ = ["refuse_unsupported", "server_args_defaults"]


def server_args_defaults(server_args: Any) -> None:
    """Set the defaults."""
    server_args.attention_backend = "torch_native"
    server_args.sampling_backend = "pytorch"
    server_args.disable_custom_all_reduce = True


def refuse_unsupported(server_args: Any) -> None:
    """Refuse."""
