"""Vendors installed with pip as separate distributions, found by their entry points."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.vendors import (
    EVERYTHING,
    INT8_KV,
    QUIET_QUEUE,
    install_vendor,
    list_hooks,
    run_command,
    run_python,
    vendor_environ,
)

pytestmark = pytest.mark.install

HOOK = "sglang_mlx_resolve_max_running_requests"
CAP = """
from sglang_mlx_plugin.hooks import get_hooks
from sglang_mlx_plugin.hooks.types import ConcurrencyLimits
print(get_hooks().resolve_max_running_requests(ConcurrencyLimits(
    max_total_num_tokens={tokens}, requested={requested})))
"""

Install = Callable[[Path], Path]


def cap(environ: dict[str, str], tokens: int = 1000, requested: int | None = None) -> str:
    done = run_python(CAP.format(tokens=tokens, requested=requested), environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_vendors_every_hook_is_ours() -> None:
    for hook in list_hooks(vendor_environ()).values():
        assert hook["winner"]["distribution"] == "sglang-mlx-plugin"
        assert len(hook["implementations"]) == 1


def test_quiet_queue_changes_one_hook_alone(installed: Install) -> None:
    environ = vendor_environ(installed(QUIET_QUEUE))
    for name, hook in list_hooks(environ).items():
        expected = "sglang-mlx-quiet-queue" if name == HOOK else "sglang-mlx-plugin"
        assert hook["winner"]["distribution"] == expected
    first, second = list_hooks(environ)[HOOK]["implementations"]
    assert (first["distribution"], first["version"]) == ("sglang-mlx-quiet-queue", "1.0.0")
    assert (first["plugin"], first["wins"]) == ("quiet-queue", True)
    assert second["builtin"] and not second["wins"]


@pytest.mark.parametrize(
    ("tokens", "requested", "variables", "expected"),
    [
        (1000, None, {}, "8"),
        (20, None, {}, "5"),
        (1000, 6, {}, "3"),
        (1000, 1, {}, "1"),
        (1000, None, {"QUIET_QUEUE_MAX": "2"}, "2"),
        (1000, None, {"SGLANG_MLX_DISABLE_PLUGINS": "quiet-queue"}, "500"),
        (1000, None, {"SGLANG_MLX_HOOKS": f"{HOOK}=sglang-mlx-plugin"}, "500"),
        (1000, None, {"SGLANG_MLX_HOOKS": f"{HOOK}=sglang_mlx_quiet_queue"}, "8"),
    ],
)
def test_quiet_queue_is_obeyed(
    installed: Install,
    tokens: int,
    requested: int | None,
    variables: dict[str, str],
    expected: str,
) -> None:
    environ = vendor_environ(installed(QUIET_QUEUE), **variables)
    assert cap(environ, tokens, requested) == expected


def test_quiet_queues_failure_is_named(installed: Install) -> None:
    environ = vendor_environ(installed(QUIET_QUEUE), QUIET_QUEUE_MAX="many")
    done = run_python(CAP.format(tokens=1000, requested=None), environ)
    assert done.returncode != 0
    assert "HookError: Hook sglang_mlx_resolve_max_running_requests: the plugin" in done.stderr
    assert "'quiet-queue' (distribution sglang-mlx-quiet-queue 1.0.0)" in done.stderr


def test_everything_answers_every_hook(installed: Install, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    environ = vendor_environ(installed(EVERYTHING), SGLANG_MLX_EVERYTHING_LOG=str(log))
    for hook in list_hooks(environ).values():
        assert hook["winner"]["distribution"] == "sglang-mlx-everything"
        assert hook["winner"]["version"] == "2.5.0"
    assert not log.exists(), "listing hooks calls none of them"
    assert cap(environ) == "500"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["hook"] for record in records] == [HOOK]
    assert records[0]["thread"] == "MainThread"


def test_two_vendors_of_one_hook(installed: Install) -> None:
    both = installed(QUIET_QUEUE), installed(EVERYTHING)
    refused = run_command("hooks", "--json", environ=vendor_environ(*both))
    assert refused.returncode == 1
    assert "sglang-mlx-everything 2.5.0" in refused.stderr
    assert "sglang-mlx-quiet-queue 1.0.0" in refused.stderr
    assert "Traceback" not in refused.stderr
    chosen = vendor_environ(*both, SGLANG_MLX_HOOKS=f"{HOOK}=sglang-mlx-quiet-queue")
    listed = list_hooks(chosen)
    assert listed[HOOK]["winner"]["plugin"] == "quiet-queue"
    assert listed["sglang_mlx_device"]["winner"]["plugin"] == "everything"
    assert [found["state"] for found in listed[HOOK]["implementations"]] == [
        "active",
        "active",
        "not chosen",
    ]
    assert cap(chosen) == "8"
    text = run_command("hooks", environ=chosen).stdout
    assert "  * sglang-mlx-quiet-queue 1.0.0  sglang_mlx_quiet_queue:" in text
    assert "[not chosen]" in text
    assert f"SGLANG_MLX_HOOKS={HOOK}=sglang-mlx-quiet-queue" in text


def test_trace_of_an_installed_vendor(installed: Install) -> None:
    environ = vendor_environ(installed(QUIET_QUEUE), SGLANG_MLX_TRACE_HOOKS="1")
    done = run_python(CAP.format(tokens=1000, requested=None), environ)
    assert "answered by plugin 'quiet-queue' (distribution sglang-mlx-quiet-queue" in done.stderr


def test_new_vendor_installs_and_passes_its_test(tmp_path: Path) -> None:
    written = run_command("new-vendor", "Acme.MLX", environ=vendor_environ(), cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    folder = tmp_path / written.stdout.splitlines()[-1]
    assert folder == tmp_path / "acme-mlx"
    target = install_vendor(folder, tmp_path / "installed")
    environ = vendor_environ(target)
    assert list_hooks(environ)[HOOK]["winner"]["distribution"] == "acme-mlx"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [("3-d", "cannot name"), ("a b", "cannot name"), ("", "cannot name"), ("json", "exists")],
)
def test_new_vendor_refuses_names_that_cannot_work(name: str, reason: str, tmp_path: Path) -> None:
    done = run_command("new-vendor", name, environ=vendor_environ(), cwd=tmp_path)
    assert done.returncode == 1
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())


def test_new_vendor_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    environ = vendor_environ()
    done = run_command("new-vendor", "acme", "--dir", str(tmp_path), environ=environ)
    assert done.returncode == 1
    assert "not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def code_lines(path: Path) -> int:
    """Lines with code on them: no blanks, comments or docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[:1] = [] if len(body) > 1 else [ast.Pass()]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


@pytest.mark.parametrize("folder", [QUIET_QUEUE, INT8_KV])
def test_example_is_short(folder: Path) -> None:
    assert sum(code_lines(path) for path in folder.rglob("*.py")) < 100


CHECK_INT8 = "import runpy; runpy.run_module('tests.vendors.check_int8_kv', run_name='__main__')"


@pytest.mark.parametrize("family", ["llama", "llama-sliding"])
def test_int8_kv_rounds_and_does_nothing_else(installed: Install, family: str) -> None:
    """Half a step of 1/127 is lost, no slot and no window; and it holds what it says."""
    done = run_python(CHECK_INT8, vendor_environ(installed(INT8_KV)), family)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0 < found["rounding"] < 0.5 / 127 + 0.001
    assert found["unrounded"] < 1e-4 < found["moved"]
    assert found["int8"] < 0.3 * found["float32"]
    assert found["nbytes"] == found["held"] <= found["room"]


def test_int8_kv_leaves_the_store_alone_where_the_user_chose_a_dtype(installed: Install) -> None:
    code = (
        "from sglang_mlx_plugin.hooks import get_hooks\n"
        "from sglang_mlx_plugin.hooks.types import KVLayerSpec, KVStoreSpec\n"
        "spec = KVStoreSpec(layers=(KVLayerSpec(index=0, heads=1, key_dim=8, value_dim=8),),\n"
        "    capacity=10, dtype='float32', kv_cache_dtype='float16', device='cpu')\n"
        "print(type(get_hooks().create_kv_store(spec)).__module__)\n"
    )
    done = run_python(code, vendor_environ(installed(INT8_KV)))
    assert done.stdout.strip() == "sglang_mlx_plugin.engine.kv_store", done.stderr
