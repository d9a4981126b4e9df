"""Waits for a server and prints a request that can be pasted: `make serve` runs this.

Usage: announce.py HOST PORT
"""

from __future__ import annotations

import os
import sys
import time
import urllib.request

PATIENCE_S = 600


def main(host: str, port: str) -> int:
    """Poll ``/health`` until it answers; give up when the server's shell is gone."""
    base = f"http://{host}:{port}"
    parent = os.getppid()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if os.getppid() != parent:
            return 1
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5) as answer:
                if answer.status == 200:
                    break
        except OSError:
            pass
        time.sleep(0.5)
    else:
        return 1
    body = (
        '{"model": "default", "messages": '
        '[{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'
    )
    print(
        f"\nReady. Try:\n\n  curl {base}/v1/chat/completions \\\n"
        f"    -H 'Content-Type: application/json' \\\n    -d '{body}'\n",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
