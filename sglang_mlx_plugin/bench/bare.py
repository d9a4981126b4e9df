"""The bare loop: mlx-lm's model and batch generator, no server; the bound of every server.

    python standalone/lent.py LIBRARY sglang_mlx_plugin.bench.bare FOLDER [--layout]

Reads one JSON line a round from stdin (``{"prompts": [[ids]], "max_tokens": [n]}``, prompts
that are all in flight from the start), writes one to stdout: ``{"pieces": [[seconds]],
"tokens": [[ids]], "wall": seconds}``. The first line it writes is ``"ready"``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import IO, Any

__all__ = ["generate", "main"]


def generate(
    model: Any, prompts: list[list[int]], max_tokens: list[int]
) -> tuple[list[list[float]], list[list[int]], float]:
    """Generate for all prompts at once, greedily, with mlx-lm's batch generator.

    Returns:
        When each token came (seconds), the tokens, and the whole time.
    """
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(model)
    times: list[list[float]] = [[] for _ in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    start = time.perf_counter()
    rows = {uid: row for row, uid in enumerate(generator.insert(prompts, max_tokens))}
    left = len(prompts)
    while left:
        _, responses = generator.next()
        now = time.perf_counter() - start
        for response in responses:
            row = rows[response.uid]
            times[row].append(now)
            tokens[row].append(int(response.token))
            left -= response.finish_reason is not None
    wall = time.perf_counter() - start
    generator.close()
    return times, tokens, wall


def main(argv: list[str], source: IO[str], target: IO[str]) -> int:
    """Serve rounds until stdin ends."""
    parser = argparse.ArgumentParser(prog="bare")
    parser.add_argument("folder")
    parser.add_argument("--layout", action="store_true", help="weights laid out for BLAS")
    args = parser.parse_args(argv)

    from mlx_lm.utils import load

    model: Any = load(args.folder)[0]
    if args.layout:
        from sglang_mlx_plugin.engine.cpu_layout import measure_products, to_float32

        to_float32(model)
        measure_products(model)
    _say(target, "ready")
    for line in source:
        job = json.loads(line)
        pieces, tokens, wall = generate(model, job["prompts"], job["max_tokens"])
        _say(target, {"pieces": pieces, "tokens": tokens, "wall": wall})
    return 0


def _say(target: IO[str], what: Any) -> None:
    target.write(json.dumps(what) + "\n")
    target.flush()


if __name__ == "__main__":
    # What libraries print must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.exit(main(sys.argv[1:], sys.stdin, answers))
