"""Splits a step's rows into forward passes.

Decoding rows make one pass of width 1. Prefilling rows are batched by length: right-padding
is work thrown away, and a separate pass is a launch more, so rows share a pass while padding
stays a small part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from sglang_mlx_plugin.engine.types import BatchView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_mlx_plugin.engine.types import StepRequest

__all__ = ["MAX_PADDING", "ForwardPass", "plan", "split_at_borders"]

# Padded tokens in a prefill pass are at most this share of the real ones.
MAX_PADDING = 0.25


@dataclass(slots=True)
class ForwardPass:
    """Some of a step's rows, computed together.

    Attributes:
        members: int64 (b,) indices of the rows in the step.
        rows: int32 (b,) their request rows.
        decode: Whether each row's one token is its last sampled one.
        tokens: int32 (b, N) right-padded new tokens; None when `decode`.
        view: The rows as the KV store sees them.
    """

    members: NDArray[np.int64]
    rows: NDArray[np.int32]
    decode: bool
    tokens: NDArray[np.int32] | None
    view: BatchView


def plan(
    request: StepRequest, *, row_by_row: bool = False, max_padding: float = MAX_PADDING
) -> list[ForwardPass]:
    """Split `request` into forward passes, decoding rows first.

    Args:
        request: The step.
        row_by_row: One pass for each row, for models that cannot be batched exactly.
        max_padding: Padded tokens allowed for each real one; 0 for models whose states
            padding would enter.
    """
    passes = []
    decoding = np.flatnonzero(request.decode)
    prefilling = np.flatnonzero(~request.decode)
    if row_by_row:
        groups = [np.array([row]) for row in decoding]
    else:
        groups = [decoding] if len(decoding) else []
    for members in groups:
        passes.append(_build(request, members, decode=True))
    kinds = [prefilling]
    if not max_padding:
        # Such models may also tell a row that starts from one whose state is zero.
        starts = request.prefix_lens[prefilling] == 0
        kinds = [prefilling[starts], prefilling[~starts]]
    for kind in kinds:
        for members in _by_length(request.new_lens, kind, max_padding, single=row_by_row):
            passes.append(_build(request, members, decode=False))
    return passes


def split_at_borders(request: StepRequest) -> tuple[StepRequest | None, StepRequest]:
    """Cut rows at their borders.

    Returns:
        The pieces up to the borders, which need no tokens, or None if no row has one; and
        the step without them.
    """
    if request.borders is None:
        return None, request
    prefix, new = request.prefix_lens, request.new_lens
    inside = (request.borders > prefix) & (request.borders < prefix + new) & ~request.decode
    rows = np.flatnonzero(inside)
    if not len(rows):
        return None, request
    first = np.where(inside, request.borders - prefix, 0).astype(np.int32)
    before, after = [], []
    for row, start in enumerate(request.token_starts):
        if request.decode[row]:
            continue
        end, cut = int(start) + int(new[row]), int(start) + int(first[row])
        before.append(request.token_ids[start:cut])
        after.append(request.token_ids[cut:end])
    head = replace(
        request,
        rows=request.rows[rows],
        prefix_lens=prefix[rows],
        new_lens=first[rows],
        decode=request.decode[rows],
        token_ids=np.concatenate(before),
        kv_slots=request.kv_slots[rows],
        needs_token=np.zeros(len(rows), np.bool_),
        logprobs=None,
        aux_slots=None if request.aux_slots is None else request.aux_slots[rows],
        borders=None,
    )
    rest = replace(
        request,
        prefix_lens=prefix + first,
        new_lens=new - first,
        token_ids=np.concatenate(after),
        borders=None,
    )
    return head, rest


def _by_length(
    new_lens: NDArray[np.int32], rows: NDArray[np.int64], max_padding: float, *, single: bool
) -> list[NDArray[np.int64]]:
    if single:
        return [np.array([row]) for row in rows]
    order = rows[np.argsort(-new_lens[rows], kind="stable")]
    groups: list[list[int]] = []
    width = real = 0
    for row in order:
        length = int(new_lens[row])
        if groups:
            padded = width * (len(groups[-1]) + 1)
            if padded - (real + length) <= max_padding * (real + length):
                groups[-1].append(int(row))
                real += length
                continue
        groups.append([int(row)])
        width, real = length, length
    return [np.sort(np.array(group)) for group in groups]


def _build(request: StepRequest, members: NDArray[np.int64], *, decode: bool) -> ForwardPass:
    prefix = request.prefix_lens[members]
    new = request.new_lens[members]
    total = prefix + new
    longest = int(total.max())
    width = int(new.max())
    columns = np.arange(longest)
    slots = request.kv_slots[members, :longest]
    ragged = bool((total != longest).any())
    if ragged:
        slots = np.where(columns[None] < total[:, None], slots, slots[:, :1])
    steps = np.arange(width)
    if ragged or bool((new != width).any()):
        at = np.minimum(prefix[:, None] + steps[None], longest - 1)
        write = np.take_along_axis(slots, at, axis=1)
        write = np.where(steps[None] < new[:, None], write, 0)
    else:
        write = slots[:, longest - width :]
    tokens = None
    if not decode:
        tokens = np.zeros((len(members), width), np.int32)
        starts = request.token_starts
        for i, row in enumerate(members):
            start, length = int(starts[row]), int(new[i])
            tokens[i, :length] = request.token_ids[start : start + length]
    aux = request.aux_slots
    view = BatchView(
        prefix_lens=mx.array(prefix),
        new_lens=mx.array(new),
        kv_slots=mx.array(np.ascontiguousarray(slots, dtype=np.int32)),
        write_slots=mx.array(np.ascontiguousarray(write, dtype=np.int32)),
        aux_slots=None if aux is None else aux[members],
        host_prefix_lens=prefix,
        host_new_lens=new,
        host_kv_slots=slots,
        host_write_slots=write,
        decode=decode,
        max_slot=int(slots.max()),
    )
    return ForwardPass(
        members=members, rows=request.rows[members], decode=decode, tokens=tokens, view=view
    )
