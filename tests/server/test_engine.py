"""`sglang.Engine` embedded in a program, and used from a thread that is not the main one."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

PROGRAM = textwrap.dedent(
    """
    import json, sys, threading

    def work(engine, found):
        params = {"temperature": 0, "max_new_tokens": 8}
        found.append(engine.generate("The capital of France is", params)["text"])
        found.append([a["text"] for a in engine.generate(["The capital of France is"] * 2, params)])

    def main():
        import sglang

        found = []
        engine = sglang.Engine(model_path=sys.argv[1], mem_fraction_static=0.2)
        thread = threading.Thread(target=work, args=(engine, found))
        thread.start()
        thread.join()
        engine.shutdown()
        print("FOUND " + json.dumps(found))

    if __name__ == "__main__":
        main()
    """
)


def test_used_from_a_worker_thread(default_model: Path, tmp_path: Path) -> None:
    program = tmp_path / "embedded.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), str(default_model)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, run.stdout[-2000:] + run.stderr[-3000:]
    first, both = json.loads(lines[0].removeprefix("FOUND "))
    assert "Paris" in first
    assert both == [first, first]
