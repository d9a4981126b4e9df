"""A contestant for the harness's tests: a tiny asyncio HTTP server that streams pieces.

python fake_server.py PORT [--delay SECONDS] [--short] [--refuse] [--die-after N] [--never]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

ARGS = argparse.ArgumentParser()
ARGS.add_argument("port", type=int)
ARGS.add_argument("--delay", type=float, default=0.002)
ARGS.add_argument("--short", action="store_true", help="end one token early")
ARGS.add_argument("--refuse", action="store_true", help="answer 400 to prompts that are not a ping")
ARGS.add_argument("--die-after", type=int, default=0, help="requests")
ARGS.add_argument("--never", action="store_true", help="end at once with a last word")

served = 0


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global served
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split()[1]
    length = next(
        (int(line.split(":")[1]) for line in head.splitlines() if "content-length" in line.lower()),
        0,
    )
    body = json.loads(await reader.readexactly(length)) if length else {}
    if path == "/health":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    elif args.refuse and body["max_tokens"] != 2:
        writer.write(b"HTTP/1.1 400 Bad\r\nContent-Length: 5\r\nConnection: close\r\n\r\nno no")
    else:
        served += 1
        if args.die_after and served > args.die_after:
            print("out of everything", flush=True)
            os._exit(3)
        await stream(path, body, writer)
    await writer.drain()
    writer.close()


async def stream(path: str, body: dict, writer: asyncio.StreamWriter) -> None:
    chat = path.startswith("/v1/chat")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    writer.write(b": keepalive 1/2\n\n")
    if chat:
        say(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    tokens = body["max_tokens"] - args.short
    for index in range(tokens):
        await asyncio.sleep(args.delay)
        text = f" {index}"
        say(writer, {"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
        await writer.drain()
    turns = len(body.get("messages", [])) or 1
    usage = {"prompt_tokens": turns, "completion_tokens": tokens}
    say(writer, {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}})
    writer.write(b"data: [DONE]\n\n")


def say(writer: asyncio.StreamWriter, event: dict) -> None:
    writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def serve() -> None:
    server = await asyncio.start_server(handle, "127.0.0.1", args.port)
    await server.serve_forever()


if __name__ == "__main__":
    args = ARGS.parse_args()
    if args.never:
        raise SystemExit("there is no such model")
    asyncio.run(serve())
