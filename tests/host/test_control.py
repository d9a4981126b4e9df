"""Requests that steer a server: refused in words, and never its end."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_mlx_plugin.host import control

io_struct = pytest.importorskip("sglang.srt.managers.io_struct")


class Inner:
    """A dispatcher whose every handler fails."""

    marker = "kept"

    def __call__(self, request: Any) -> Any:
        raise AttributeError("no such tensor")


def bare(name: str) -> Any:
    """A request whose type has this name, which is all that is looked at."""
    assert hasattr(io_struct, name)
    return type(name, (), {})()


@pytest.mark.parametrize("name", control.REFUSED)
def test_what_mlx_cannot_do_is_refused_without_trying(name: str) -> None:
    if not hasattr(io_struct, name):
        pytest.skip("another release's")
    answer = control.GuardedDispatcher(Inner())(bare(name))
    fields = {field: getattr(answer, field) for field in answer.__struct_fields__}
    assert fields.get("success", False) is False
    said = [fields[field] for field in ("message", "error_message") if field in fields]
    assert all(text == control.REFUSED[name] for text in said)
    if not said:
        # Answered in the main process, by a hook of its own.
        assert name.startswith(("GetWeightsByName", "Release", "Resume"))


def test_a_failure_is_an_answer_where_it_can_be() -> None:
    guard = control.GuardedDispatcher(Inner())
    answer = guard(bare("ProfileReq"))
    assert answer.success is False and "no such tensor" in answer.message
    # A prompt's failure is the scheduler's, as ever.
    with pytest.raises(AttributeError):
        guard(bare("TokenizedGenerateReqInput"))
    assert guard.marker == "kept"


@pytest.mark.parametrize(
    "hook",
    [
        control.get_weights_by_name,
        control.release_memory_occupation,
        control.resume_memory_occupation,
    ],
)
def test_those_without_room_for_words_raise(hook: Any) -> None:
    with pytest.raises(ValueError, match="MLX"):
        hook(None, None)
