"""``docs/hooks.md``, made from the specs' docstrings and the dataclasses that hooks receive.

Write it anew with ``sglang-mlx hooks --write-docs docs/hooks.md``; a test fails while the
file in the repository says anything else.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from . import specs, types
from .manager import ENV_CHOOSE, ENV_DISABLE, ENV_TRACE

__all__ = ["SpecDoc", "read_spec", "render"]

INTRODUCTION = f"""\
# Hooks

<!-- Made by `sglang-mlx hooks --write-docs docs/hooks.md`; edit the docstrings instead. -->

Each part of the backend that a vendor of an MLX device might want otherwise stands behind a
hook. A plugin is a distribution with an entry point in the group `sglang_mlx_plugin` that
names a module, and in that module a function with a hook's name:

```python
from sglang_mlx_plugin import hookimpl


@hookimpl
def sglang_mlx_resolve_max_running_requests(limits):
    return min(8, limits.max_total_num_tokens)
```

`sglang-mlx new-vendor NAME` writes such a distribution, with a test. `sglang-mlx hooks` lists
who implements what, and who is asked first.

## Rules

- **First answer wins.** Implementations are asked one after the other until one answers
  something other than `None`. Vendors come before built-ins, so a vendor that returns `None`
  leaves the built-in in place. An implementation names only the arguments it wants.
- **Order.** Vendors are called in the order of their distributions' names; one that says
  `hookimpl(tryfirst=True)` comes before the others. Two vendors for one hook are an error
  unless exactly one says `tryfirst`, or the user chooses. `trylast` is refused: the built-in,
  which always answers, would come before it.
- **Choice.** `{ENV_DISABLE}=a,b` leaves out plugins by their own or their distribution's name;
  they are not even imported. `{ENV_CHOOSE}=hook=distribution,...` lets one distribution alone
  answer a hook, with the built-in behind it; `sglang-mlx-plugin` names the built-in.
- **Wrappers.** `hookimpl(wrapper=True)` observes any hook, before and after, and may change the
  answer, which is then its own. Any number may wrap one hook.
- **Answers are validated where they enter.** The error names the hook, the plugin, its
  distribution and version, what came and what was expected.
- **Failures stop the launch.** A plugin that fails to import, implements a hook or an argument
  that does not exist, forgets the decorator, or raises in a hook, is named; nothing falls back
  in silence.
- **Cost.** Hooks are asked at start-up only. While requests are served no hook is called; what
  a hook answered (a KV store, a sampler) is called once a step.
- **Trace.** `{ENV_TRACE}=1` logs each call: who was asked, who answered, how long it took.
- **Import.** Plugins are imported in every process of the server, also in those that never run a
  model: import MLX inside the implementation, not at the top of the module.

## What is stable

The hooks' names and arguments, the dataclasses below, and `hookimpl`, `hookspec` and `hookspecs`
of `sglang_mlx_plugin`. A release may add a hook, an argument, or a field with a default. One is
removed, or changes its meaning, only after at least one minor release in which using it warns
with `DeprecationWarning` and says what to use instead; while the version begins with 0, a minor
release counts as 0.x. `tests/hooks/public_api.json` records the interface, so that a break is a
decision.
"""


@dataclasses.dataclass(frozen=True)
class SpecDoc:
    """One spec's docstring, in parts.

    Attributes:
        name: The hook.
        signature: As a call, arguments without types.
        summary: First line.
        sections: Section name to text, in the docstring's order.
    """

    name: str
    signature: str
    summary: str
    sections: dict[str, str]


def read_spec(name: str) -> SpecDoc:
    """Take the docstring of a hook apart.

    Raises:
        ValueError: If a section is missing, empty or out of order, or an argument is not
            described.
    """
    function = getattr(specs, name)
    text = inspect.getdoc(function) or ""
    parts = re.split(rf"^({'|'.join(specs.SECTIONS)}):\n", text, flags=re.MULTILINE)
    sections = {
        heading: inspect.cleandoc("\n" + body)
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    missing = [heading for heading in specs.SECTIONS if not sections.get(heading)]
    if missing:
        raise ValueError(f"{name} lacks the section {', '.join(missing)}")
    if tuple(sections) != specs.SECTIONS:
        raise ValueError(f"{name} has its sections in another order: {', '.join(sections)}")
    arguments = list(inspect.signature(function).parameters)
    described = re.findall(r"^(\w+): ", sections["Args"], flags=re.MULTILINE)
    if described != arguments:
        raise ValueError(f"{name} takes {arguments} and describes {described}")
    return SpecDoc(name, f"{name}({', '.join(arguments)})", parts[0].strip(), sections)


def render() -> str:
    """The whole document."""
    documents = [read_spec(name) for name in specs.__all__]
    lines = [INTRODUCTION, "## All hooks", "", "| hook | what it is for |", "|---|---|"]
    lines += [f"| [`{doc.name}`](#{doc.name}) | {doc.summary} |" for doc in documents]
    for doc in documents:
        lines += ["", f"### {doc.name}", "", f"`{doc.signature}`", "", _markdown(doc.summary)]
        for heading, body in doc.sections.items():
            gap = "\n\n" if heading == "Args" else " "
            lines += ["", f"**{heading}.**{gap}{_markdown(_body(heading, body))}"]
    lines += ["", "## What hooks receive and answer", ""]
    lines += ["All of these are in `sglang_mlx_plugin.hooks.types`."]
    for name in types.__all__:
        lines += ["", *_render_type(name, getattr(types, name))]
    return "\n".join(lines) + "\n"


def _body(heading: str, body: str) -> str:
    if heading != "Args":
        return body
    return re.sub(r"^(\w+): ", r"- `\1`: ", body, flags=re.MULTILINE)


def _markdown(text: str) -> str:
    """Docstring markup as Markdown: code in single backticks, arguments as a list."""
    flat = re.sub(r"\n\s+", "\n  ", text) if text.startswith("- ") else text
    return flat.replace("``", "`")


def _render_type(name: str, kind: Any) -> list[str]:
    summary, _, rest = (inspect.getdoc(kind) or "").partition("\n")
    lines = [f"### {name}", "", _markdown(summary)]
    if not dataclasses.is_dataclass(kind):
        return [*lines, "", *_render_protocol(kind)]
    described = dict(_attributes(rest))
    lines += ["", "| field | type | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        text = " ".join(described.get(field.name, "").split())
        lines.append(
            f"| `{field.name}` | `{_type_name(field.type)}` | {_default(field)} | "
            f"{_markdown(text)} |"
        )
    return lines


def _type_name(annotation: Any) -> str:
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.replace("|", "\\|")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    return ""


def _attributes(text: str) -> list[tuple[str, str]]:
    body = inspect.cleandoc(text.partition("Attributes:")[2])
    parts = re.split(r"^(\w+): ", body, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _render_protocol(kind: type) -> list[str]:
    lines = []
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if name != "__call__" and name.startswith("_"):
            continue
        if not inspect.isfunction(function):
            continue
        arguments = [each for each in inspect.signature(function).parameters if each != "self"]
        shown = name if isinstance(member, property) else f"{name}({', '.join(arguments)})"
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        lines.append(f"- `{shown}`: {_markdown(summary)}")
    return lines
