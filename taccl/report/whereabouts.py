"""Where each chunk is over time: what every step writes and sends, as chunks of the collective.

What a step moves does not depend on when it runs, as a program without races gives the same data
in every order. So one run without times says it for all iterations, and the page's script adds
the times of the spans. Sums are known by how many of a chunk's sources are in them.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from taccl.collectives import Collective
from taccl.model.schedule import Schedule, Send
from taccl.msccl.expected import Cell, Mode, expected_of, mode_of
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Finding, Op, Program, Slot
from taccl.msccl.run import MAX_WORK, maximal_run, places, work_of
from taccl.units import Time

MAX_CELLS = 300_000
"""Ranks times chunks that a page shows."""

NOTHING = -1
"""Content of a cell that holds no chunk, or a mixture of several."""

Where = dict[str, Any]
"""JSON; the script is what reads it."""


class Content(NamedTuple):
    """A chunk, and the sources that are in it, as bits."""

    chunk: int
    sources: int


Contents = Sequence[Content | None]


@dataclass(frozen=True, slots=True)
class _Moved:
    """Cells that a step writes, what it writes there, and what it sends."""

    cells: list[int]
    writes: Contents
    sends: Contents


def program_where(program: Program) -> Where | None:
    """Return what the script shows of a program; None when it can't be followed."""
    if work_of(program) > MAX_WORK:
        return None
    collective = expected_of(program, find_root(program) or 0)
    if isinstance(collective, Finding):
        return None
    if collective.num_ranks * collective.num_chunks > MAX_CELLS:
        return None
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop,
        in_place=not program.out_of_place,
    )  # fmt: skip
    memory = _Memory(mode)
    start = _inputs(collective)
    for rank, offset, content in start:
        memory.write(rank, [Slot(Buffer.INPUT, offset)], [content])
    cells = memory.numbers
    numbered = [
        (rank, cells[rank][memory.mode.cell(rank, Slot(Buffer.INPUT, offset))], content)
        for rank, offset, content in start
    ]
    effects, codes = _effects(program, memory), _Codes.of(collective)
    blocks = sorted((rank, block.id, block) for rank, block in program.blocks())
    return {
        **_head(collective, numbered),
        "steps": [
            [codes.moved(effects.get((rank, number, at))) for at in range(len(block.steps))]
            for rank, number, block in blocks
        ],
        "ranks": [rank for rank, _, _ in blocks],
        "senders": [-1 if b.recv_from is None else b.recv_from for _, _, b in blocks],
        "receivers": [-1 if b.send_to is None else b.send_to for _, _, b in blocks],
        "cells": max(map(len, memory.numbers.values()), default=0),
        "sent": False,
    }  # fmt: skip


class _Landing(NamedTuple):
    """A message on its way: what it brings where and when, and the list of what is then there."""

    time: Time
    number: int
    rank: int
    contents: list[Content]
    adds: list[bool]
    writes: list[int]


def _land(landing: _Landing, held: dict[tuple[int, int], int], codes: "_Codes") -> None:
    for content, adds in zip(landing.contents, landing.adds, strict=True):
        place = landing.rank, content.chunk
        held[place] = content.sources | (held.get(place, 0) if adds else 0)
        landing.writes.extend(codes.all([Content(content.chunk, held[place])]))


def schedule_where(
    schedule: Schedule, used: Sequence[int], messages: Sequence[Sequence[Send]]
) -> Where | None:
    """Return what the script shows of a `schedule`; its tracks are the links `used`, in order.

    The `messages` are the sends of each, by start; the k-th of a link is its track's step k.
    """
    collective, table = schedule.collective, schedule.topology.links
    codes = _Codes.of(collective)
    cells = collective.num_ranks * collective.num_chunks
    if len(schedule.fans) or cells > MAX_CELLS or sum(map(len, messages)) > MAX_WORK:
        return None
    start = _inputs(collective)
    held = {(rank, content.chunk): content.sources for rank, _, content in start}
    coming: list[_Landing] = []
    steps: dict[int, list[list[list[int]]]] = {link: [] for link in used}
    for number, message in enumerate(messages):
        link, now = message[0].link, message[0].start
        while coming and coming[0].time <= now:
            _land(heapq.heappop(coming), held, codes)
        src, dst = int(table.src[link]), int(table.dst[link])
        sent = [Content(send.chunk, held.get((src, send.chunk), 0)) for send in message]
        writes: list[int] = []
        steps[link].append([[send.chunk for send in message], writes, codes.all(sent)])
        adds = [send.reduce for send in message]
        heapq.heappush(coming, _Landing(message[0].end, number, dst, sent, adds, writes))
    while coming:
        _land(heapq.heappop(coming), held, codes)
    return {
        **_head(collective, [(rank, content.chunk, content) for rank, _, content in start]),
        "steps": [steps[link] for link in used],
        "ranks": [int(table.dst[link]) for link in used],
        "senders": [int(table.src[link]) for link in used],
        "receivers": [int(table.dst[link]) for link in used],
        "cells": collective.num_chunks,
        "sent": True,
    }


@dataclass(slots=True)
class _Memory:
    """What is where; cells are numbered, rank by rank, as they come up."""

    mode: Mode
    content: dict[tuple[int, Cell], Content | None] = field(default_factory=dict)
    numbers: dict[int, dict[Cell, int]] = field(default_factory=dict)

    def read(self, rank: int, slots: Iterable[Slot]) -> list[Content | None]:
        return [self.content.get((rank, self.mode.cell(rank, slot))) for slot in slots]

    def write(self, rank: int, slots: Iterable[Slot], values: Contents) -> list[int]:
        """Write values and return the numbers of their cells."""
        known, found = self.numbers.setdefault(rank, {}), []
        for slot, value in zip(slots, values, strict=False):
            cell = self.mode.cell(rank, slot)
            self.content[rank, cell] = value
            found.append(known.setdefault(cell, len(known)))
        return found


def _effects(program: Program, memory: _Memory) -> dict[tuple[int, int, int], _Moved]:
    """Run a program and return what each step that finishes moves."""
    run = maximal_run(program)
    where = places(run)
    sent: dict[int, Contents] = {}
    found: dict[tuple[int, int, int], _Moved] = {}
    for number in run.order:
        place = where[number]
        block = run.blocks[place.block][1]
        step = block.steps[place.step]
        if step.op is Op.NOP:
            continue
        parts: list[Contents] = [sent[run.sender[number]]] if step.receives else []
        if step.source is not None:
            parts.append(memory.read(place.rank, _slots(step.source, step.count)))
        if step.op is Op.REDUCE:
            parts.append(memory.read(place.rank, _slots(step.dst, step.count)))
        values = [_added(terms) for terms in zip(*parts, strict=False)]
        targets = _slots(step.target, step.count)
        cells = memory.write(place.rank, targets, values)
        if step.sends:
            sent[number] = values
        found[place.rank, block.id, place.step] = _Moved(
            cells, values if cells else (), values if step.sends else ()
        )
    return found


def _slots(slot: Slot | None, count: int) -> list[Slot]:
    if slot is None:
        return []
    return [Slot(slot.buffer, slot.offset + index) for index in range(count)]


def _added(terms: Sequence[Content | None]) -> Content | None:
    """Return the sum of contents: None unless all are parts of one chunk."""
    known = [term for term in terms if term is not None]
    if len(known) < len(terms) or len({term.chunk for term in known}) != 1:
        return None
    sources = 0
    for term in known:
        sources |= term.sources
    return Content(known[0].chunk, sources)


def _inputs(collective: Collective) -> list[tuple[int, int, Content]]:
    """Return (rank, offset of its input, content): of a chunk that is copied any source is all."""
    found = []
    for chunk in range(collective.num_chunks):
        for position, rank in enumerate(collective.sources(chunk)):
            sources = 1 << position if collective.reduces else 1
            found.append((rank, collective.input_offset(chunk, rank), Content(chunk, sources)))
    return found


def _head(collective: Collective, start: Iterable[tuple[int, int, Content]]) -> Where:
    """Return names, what is there at the start, and what is wanted in the end."""
    chunks, codes = range(collective.num_chunks), _Codes.of(collective)
    return {
        "num_ranks": collective.num_ranks,
        "names": [
            f"sum {chunk} of {len(sources)} ranks" if collective.reduces
            else f"input {collective.input_offset(chunk, sources[0])} of rank {sources[0]}"
            for chunk in chunks for sources in [collective.sources(chunk)]
        ],
        "base": codes.base,
        "full": list(codes.full),
        "start": [[rank, cell, *codes.all([content])] for rank, cell, content in start],
        "wanted": [list(collective.targets(chunk)) for chunk in chunks],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Codes:
    """Writes a content as one number: the chunk times ``base``, plus the sources that are in it.

    ``full`` says how many sources each chunk has, 1 where they are copied; ``base`` is above all.
    """

    full: tuple[int, ...]
    base: int

    @staticmethod
    def of(collective: Collective) -> "_Codes":
        chunks = range(collective.num_chunks)
        full = tuple(len(collective.sources(c)) if collective.reduces else 1 for c in chunks)
        return _Codes(full, max(full, default=1) + 1)

    def all(self, contents: Contents) -> list[int]:
        return [
            NOTHING if each is None
            else each.chunk * self.base + min(each.sources.bit_count(), self.full[each.chunk])
            for each in contents
        ]  # fmt: skip

    def moved(self, moved: _Moved | None) -> list[list[int]]:
        """Return [cells, what is written to them, what is sent]."""
        if moved is None:
            return [[], [], []]
        return [moved.cells, self.all(moved.writes), self.all(moved.sends)]
