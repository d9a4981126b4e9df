"""A contestant on pipes: answers like `sglang_mlx_plugin.bench.bare`, without a model."""

from __future__ import annotations

import json
import sys

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    tokens = [list(range(5, 5 + n)) for n in job["max_tokens"]]
    pieces = [[0.01 * (i + 1) for i in range(n)] for n in job["max_tokens"]]
    wall = max(times[-1] for times in pieces)
    print(json.dumps({"pieces": pieces, "tokens": tokens, "wall": wall}), flush=True)
