"""The one client of all servers: streaming completions over HTTP, every piece timed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from .types import Call, CallResult, Lane, Scenario

if TYPE_CHECKING:
    import aiohttp

__all__ = ["run_scenario"]

# A round on a busy CPU may take long; a server that says nothing for this long is stuck.
SILENCE_S = 600


async def run_scenario(
    base: str, scenario: Scenario, *, body: Mapping[str, Any]
) -> tuple[float, list[CallResult]]:
    """Send a scenario to a server.

    Args:
        base: ``http://HOST:PORT``.
        scenario: What to send.
        body: Fields of every request's body (``model`` and what the server needs).

    Returns:
        Seconds from the first request to the end of the last, and the answers in the order
        of lanes and turns. An error of the server is in its answer, not raised.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(base, timeout=timeout, connector=connector) as session:
        run = _Run(session, scenario, body)
        lanes = await asyncio.gather(*map(run.lane, range(len(scenario.lanes))))
    results = [result for lane in lanes for result in lane]
    return max(result.start_s + result.wall_s for result in results), results


class _Run:
    """One run of a scenario."""

    def __init__(
        self, session: aiohttp.ClientSession, scenario: Scenario, body: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._scenario = scenario
        self._body = body
        self._start = time.perf_counter()
        self._pieces = [0] * len(scenario.lanes)
        self._ended = [False] * len(scenario.lanes)
        self._progress = asyncio.Condition()

    async def lane(self, index: int) -> list[CallResult]:
        """Send one lane's calls in order."""
        lane = self._scenario.lanes[index]
        if lane.after_pieces:
            async with self._progress:
                await self._progress.wait_for(lambda: self._streams_have(lane.after_pieces))
        messages = None
        if lane.system is not None:
            messages = [{"role": "system", "content": lane.system}] if lane.system else []
        results = []
        for turn, call in enumerate(lane.calls):
            result = CallResult(
                label=lane.label,
                lane=index,
                turn=turn,
                start_s=time.perf_counter() - self._start,
            )
            if messages is not None:
                messages.append({"role": "user", "content": call.text})
            await self._send(lane, call, messages, result)
            if messages is not None:
                messages.append({"role": "assistant", "content": result.text})
            results.append(result)
            if result.error is not None:
                break
        await self._note(index, ended=True)
        return results

    def _streams_have(self, pieces: int) -> bool:
        return all(
            ended or seen >= pieces
            for seen, ended, lane in zip(
                self._pieces, self._ended, self._scenario.lanes, strict=True
            )
            if not lane.after_pieces
        )

    async def _note(self, index: int, *, ended: bool = False) -> None:
        self._pieces[index] += not ended
        self._ended[index] |= ended
        # Most scenarios wait for nothing: the condition costs them nothing.
        if any(lane.after_pieces for lane in self._scenario.lanes):
            async with self._progress:
                self._progress.notify_all()

    async def _send(
        self, lane: Lane, call: Call, messages: list[dict[str, str]] | None, result: CallResult
    ) -> None:
        body: dict[str, Any] = {
            "max_tokens": call.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._body,
            **call.options,
        }
        if messages is None:
            path, body["prompt"] = "/v1/completions", call.text
        else:
            path, body["messages"] = "/v1/chat/completions", messages
        sent = time.perf_counter()
        try:
            async with self._session.post(path, json=body) as answer:
                if answer.status != 200:
                    result.error = f"HTTP {answer.status}: {(await answer.text())[:500]}"
                else:
                    await self._read(answer, result, sent)
        except Exception as error:  # whatever a server under test does is a result
            result.error = f"{type(error).__name__}: {error}"
        result.wall_s = time.perf_counter() - sent
        if result.error is None and call.exact and result.tokens != call.max_tokens:
            result.error = f"{result.tokens} tokens instead of {call.max_tokens}"

    async def _read(self, answer: aiohttp.ClientResponse, result: CallResult, sent: float) -> None:
        text: list[str] = []
        async for event in _events(answer):
            now = time.perf_counter()
            if "error" in event:
                result.error = str(event["error"])[:500]
                break
            piece = _text_of(event)
            if piece:
                text.append(piece)
                result.pieces_s.append(now - sent)
                await self._note(result.lane)
            usage = event.get("usage")
            if usage:
                result.tokens = int(usage.get("completion_tokens") or 0)
                result.prompt_tokens = int(usage.get("prompt_tokens") or 0)
                details = usage.get("prompt_tokens_details") or {}
                if details.get("cached_tokens") is not None:
                    result.cached_tokens = int(details["cached_tokens"])
        result.text = "".join(text)
        if not result.tokens:
            # A server without usage in its stream: a piece a token is the usual case.
            result.tokens = len(result.pieces_s)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a stream; comments (mlx_lm.server's keep-alive) are passed over."""
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


def _text_of(event: Mapping[str, Any]) -> str:
    choices = event.get("choices") or [{}]
    choice = choices[0]
    delta = choice.get("delta") or {}
    return str(
        choice.get("text")
        or delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or ""
    )
