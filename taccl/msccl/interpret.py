"""Run a program on symbolic chunks: is the data right at the end, does it race or deadlock.

A value is the sorted tuple of the input chunks that were added up, (rank, offset) each; a chunk
that is in it twice was counted twice. The memory is that of one mode: in place, input and output
are one buffer.

Floating-point addition commutes but is not associative. So whether ranks get the same bits is asked
of other values: the trees of their additions, with the two sides of a node unordered. Trees are
numbered as they occur, equal ones alike.

**Data races** are conflicting accesses to one memory cell that nothing orders. Happens-before is
program order in a threadblock, dependences, and the k-th send of a connection before its k-th
receive. That a FIFO has few slots orders nothing. The check follows one run and keeps, for each
cell, the last write and the reads since; whoever comes next must know of them. When accesses are
unordered, some neighbouring pair of them is, so that finds a race if there is one. What
threadblocks know of each other are vector clocks, kept only while a later step needs them. First
without messages: a clock then has one number for each threadblock of its own rank, and what program
order and dependences order already is no race. Only ranks where that leaves something open are
looked at again with messages, as many of them at a time as fit the memory. Where sends post before
all wavefronts have read (LL on rccl, ``Runtime.open_sends``), a wait for one tells of the steps
before it only: the send itself is over when the next step of its threadblock is, or when its
message has been received. (Chunks that a fused step forwards while later ones of the same message
are still to come count as one.)

References
----------
C. Flanagan, S. N. Freund: FastTrack: efficient and precise dynamic race detection. PLDI 2009.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, Collective
from taccl.collectives.chunks import places_in
from taccl.msccl.expected import (
    MOST_TIMES,
    Cell,
    Ends,
    Mode,
    Wrong,
    everything,
    expected_of,
    inputs_of,
    mode_of,
    outputs_of,
    result_findings,
    room_of,
    value_of,
)
from taccl.msccl.limits import check_limits
from taccl.msccl.program import READS_SOURCE, RECEIVES, WRITES_TARGET, Buffer, Finding, Op, Program
from taccl.msccl.run import (
    BUFFERS,
    COMPILING,
    MAX_WORK,
    NONE,
    OPS,
    SMALL,
    Flags,
    Ints,
    Run,
    Safe,
    Steps,
    column_of,
    maximal_run,
    place_of,
    safe_size,
    standstill,
    work_of,
)
from taccl.msccl.runtimes import RUNTIMES
from taccl.timing.jit import is_worth_compiling, jit, telling

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""


MAX_FINDINGS = 20
"""Findings of one rule that are told: some rules are none for collectives that nobody knows."""

KINDS = (*(buffer.value for buffer in BUFFERS), "user")
"""Kinds of memory: the buffers, and the one that is input and output in place."""

_USER, _INPUT = KINDS.index("user"), KINDS.index("i")
_NOP, _COPY, _REDUCE, _SEND = map(OPS.index, (Op.NOP, Op.COPY, Op.REDUCE, Op.SEND))
_READS, _WRITES = (np.array([op in some for op in OPS]) for some in (READS_SOURCE, WRITES_TARGET))


class Cells(NamedTuple):
    """The memory cells that a program touches or a call names, by number; neighbours are next.

    Parameters
    ----------
    rank, kind, offset
        (cells,) whose it is, the position in KINDS, and where it is in that, in chunks.
    source, target
        (steps,) the first cell that a step reads and writes, of as many as it has chunks, or NONE.
    inputs, outputs
        Those of two lists of places, as :func:`cells_of` is given them.
    """

    rank: Ints
    kind: Ints
    offset: Ints
    source: Ints
    target: Ints
    inputs: Ints
    outputs: Ints

    def name(self, number: int) -> Cell:
        """Return a cell as buffer and offset."""
        return KINDS[self.kind[number]], int(self.offset[number])


def cells_of(steps: Steps, mode: Mode, inputs: Ints, outputs: Ints) -> Cells:
    """Return the cells of `steps` in `mode`.

    `inputs` and `outputs` are more places in these buffers, (places, 2): rank and offset.
    """

    def firsts(numbers: Ints, lengths: Ints) -> Ints:
        found = np.full(len(lengths), NONE, dtype=np.int64)
        found[lengths > 0] = numbers[(np.cumsum(lengths) - lengths)[lengths > 0]]
        return found

    moved = np.where(steps.op == _NOP, 0, np.maximum(steps.chunks, 0))
    touched = [np.where(slots[:, 0] == NONE, 0, moved) for slots in (steps.source, steps.target)]
    sides = list(zip((steps.source, steps.target), touched, strict=True))
    named = ((inputs, BUFFERS.index(Buffer.INPUT)), (outputs, BUFFERS.index(Buffer.OUTPUT)))
    rank = np.concatenate([
        *(np.repeat(steps.rank, times) for times in touched), *(places[:, 0] for places, _ in named)
    ])  # fmt: skip
    kind = np.concatenate([
        *(np.repeat(slots[:, 0], times) for slots, times in sides),
        *(np.full(len(places), buffer) for places, buffer in named),
    ])  # fmt: skip
    offset = np.concatenate([
        *(np.repeat(slots[:, 1], times) + places_in(times) for slots, times in sides),
        *(places[:, 1] for places, _ in named),
    ])  # fmt: skip
    if mode.in_place:
        for number, shift in enumerate((mode.input_shift, mode.output_shift)):
            there = kind == number
            offset[there] += np.array(shift, dtype=np.int64)[rank[there]]
            kind[there] = _USER
    low, high = int(offset.min(initial=0)), int(offset.max(initial=0))
    span = high - low + 1
    keys, found = np.unique((rank * len(KINDS) + kind) * span + offset - low, return_inverse=True)
    source, target, first, last = np.split(
        found.astype(np.int64),
        np.cumsum([int(touched[0].sum()), int(touched[1].sum()), len(inputs)]),
    )
    owner, place = np.divmod(keys, span)
    return Cells(
        owner // len(KINDS), owner % len(KINDS), place + low,
        firsts(source, touched[0]), firsts(target, touched[1]), first, last,
    )  # fmt: skip


def find_races(run: Run, cells: Cells, *, open_sends: bool = False) -> list[Finding]:
    """Return races of `run`, a program's :func:`taccl.msccl.run.maximal_run`, at most 20.

    `cells` are those of its steps in one mode; `open_sends`: sends post before all of their
    threadblock have read.
    """
    order = _order_of(run, open_sends=open_sends)
    ranks = np.array([rank for rank, _ in run.blocks], dtype=np.int64)
    _, of, widths = np.unique(ranks, return_inverse=True, return_counts=True)
    begin = np.cumsum(widths) - widths
    within = np.empty(len(ranks), dtype=np.int64)
    by_rank = np.argsort(ranks, kind="stable")
    within[by_rank] = np.arange(len(ranks)) - begin[of[by_rank]]
    several = np.zeros(int(ranks.max(initial=0)) + 1, dtype=np.bool_)
    several[ranks[widths[of] > 1]] = True
    alone = order._replace(sender=np.full(len(order.sender), NONE, dtype=np.int64))
    flagged, _ = _conflicts(run, cells, alone, within, several, 0)
    findings: list[Finding] = []
    for slab in _slabs(run, order, np.flatnonzero(flagged).tolist()):
        asked = np.zeros(len(several), dtype=np.bool_)
        asked[slab] = True
        known = asked[ranks]
        column = np.where(known, np.cumsum(known) - 1, NONE)
        _, found = _conflicts(run, cells, order, column, asked, MAX_FINDINGS - len(findings))
        for step, other, cell in found.tolist():
            findings.append(_race(run, step, other, cells.name(cell), early=order.early[other]))
        if len(findings) == MAX_FINDINGS:
            break
    return findings


class _Order(NamedTuple):
    """What orders steps: they are followed in their `order`.

    By step: `released` and `sender` are those that have to be done before it, or NONE, and `early`
    are those whose posts tell of the steps before them only.
    """

    order: Ints
    released: Ints
    sender: Ints
    early: Flags


def _order_of(run: Run, *, open_sends: bool) -> _Order:
    order = np.array(run.order, dtype=np.int64)
    finished = np.zeros(len(run.steps.op), dtype=np.bool_)
    finished[order] = True

    early = np.zeros(len(finished), dtype=np.bool_)
    if open_sends:
        releasing = np.array(list(run.released_by.values()), dtype=np.int64)
        early[releasing] = run.steps.op[releasing] == _SEND
    released, sender = (
        np.where(finished, column_of(run, before), NONE) for before in (run.released_by, run.sender)
    )
    return _Order(order, released, sender, early)


def _slabs(run: Run, order: _Order, ranks: Sequence[int]) -> Iterator[list[int]]:
    """Yield sets of the ranks whose clocks fit into memory together."""
    widths = np.bincount(np.array([rank for rank, _ in run.blocks], dtype=np.int64))
    room = MAX_CLOCKS // max(1, len(run.blocks) + _most_kept(order))
    slab: list[int] = []
    width = 0
    for rank in ranks:
        if slab and width + widths[rank] > room:
            yield slab
            slab, width = [], 0
        slab.append(rank)
        width += int(widths[rank])
    if slab:
        yield slab


def _most_kept(order: _Order) -> int:
    """Return of how many steps at once it must be known what they knew at their ends."""
    place = np.full(len(order.early), NONE, dtype=np.int64)
    place[order.order] = np.arange(len(order.order))
    last = np.full(len(place), NONE, dtype=np.int64)
    for before in (order.released, order.sender):
        users = np.flatnonzero(before != NONE)
        np.maximum.at(last, before[users], place[users])
    kept = np.flatnonzero(last != NONE)
    change = np.bincount(place[kept], minlength=len(place) + 1) - np.bincount(
        last[kept], minlength=len(place) + 1
    )
    return int(np.cumsum(change).max(initial=0))


def _conflicts(
    run: Run, cells: Cells, order: _Order, column: Ints, asked: Flags, most: int
) -> tuple[Flags, Ints]:
    """Return the ranks that have conflicting accesses which nothing orders, and `most` of these.

    An access is a row: step, earlier step, cell. `column` is the place in a clock of every
    threadblock that others need to know of, or NONE, and `asked` the ranks that are looked at.
    """
    steps = run.steps
    width = int(column.max(initial=NONE)) + 1
    reads = int(steps.chunks[cells.source != NONE].sum())
    uses = np.zeros(len(order.early), dtype=np.int64)
    for before in (order.released, order.sender):
        uses += np.bincount(before[before != NONE], minlength=len(uses))
    most_kept = _most_kept(order) + 1

    def column_of(length: int) -> Ints:
        return np.full(length, NONE, dtype=np.int64)

    flagged, found = np.zeros(len(asked), dtype=np.bool_), np.empty((most, 3), dtype=np.int64)
    told = _loops(len(steps.op))[0](
        steps, cells, order, _Asked(column, asked, flagged, found),
        _Clocks(
            np.zeros((len(column), width), dtype=np.int32),
            np.zeros((most_kept, width), dtype=np.int32), np.arange(most_kept),
            column_of(len(uses)), uses,
        ),
        _Log(
            column_of(len(cells.rank)), column_of(len(cells.rank)), column_of(len(cells.rank)),
            column_of(reads), column_of(reads),
        ),
    )  # fmt: skip
    return flagged, found[:told]


class _Asked(NamedTuple):
    """What is asked of steps, and where it is answered.

    `column` is the place in a clock of every threadblock that others need to know of, or NONE, and
    `ranks` says which are looked at. Those with accesses that conflict and are not ordered are
    `flagged`, and `found` has room for some of these: step, earlier step, cell.
    """

    column: Ints
    ranks: Flags
    flagged: Flags
    found: Ints


class _Clocks(NamedTuple):
    """What threadblocks know of each other: how many steps of each are done, one a column.

    `now` is that of every threadblock, and `kept` of steps at their ends: `place` has the row of
    a step, and the rows that are free are in `spare`. `uses` counts who still needs it.
    """

    now: NDArray[np.int32]
    kept: NDArray[np.int32]
    spare: Ints
    place: Ints
    uses: Ints


class _Log(NamedTuple):
    """Who touched cells: the last write, and the reads since, the last of each threadblock.

    By cell: the step that wrote, and the first and last read. By read: the step, and the next one.
    """

    write: Ints
    first: Ints
    last: Ints
    read: Ints
    next: Ints


def find_conflicts(
    steps: Steps, cells: Cells, order: _Order, asked: _Asked, clocks: _Clocks, log: _Log
) -> int:
    """Follow steps, and write down accesses that conflict with earlier ones and are not ordered.

    Parameters
    ----------
    steps, cells, order
        What is followed.
    asked
        Whose accesses, and where they are told. Without room for any, all are followed, and else
        as many as there is room for.
    clocks, log
        Room.

    Returns how many are told.
    """
    told, reads, kept = 0, 0, 0
    for step in order.order:
        block = steps.block[step]
        kept = _learn(steps, order, asked, clocks, step, kept)
        if asked.ranks[steps.rank[step]] and steps.op[step] != _NOP:
            source, target = cells.source[step], cells.target[step]
            if steps.op[step] == _COPY and source == target:
                target = NONE
            for chunk in range(max(steps.chunks[step], 0)):
                if source != NONE:
                    told = _tell(steps, asked, clocks, log, (step, source + chunk, 0), told)
                    reads = _log_read(steps, log, step, source + chunk, reads)
                if target != NONE:
                    cell = target + chunk
                    told = _tell(steps, asked, clocks, log, (step, cell, 1), told)
                    log.write[cell], log.first[cell], log.last[cell] = step, NONE, NONE
                if told > 0 and told == len(asked.found):
                    return told
        own = asked.column[block]
        if own != NONE:
            clocks.now[block, own] = step - steps.first[block] + 1
        if clocks.uses[step] > 0:
            clocks.place[step] = clocks.spare[kept]
            kept += 1
            for place in range(clocks.now.shape[1]):
                clocks.kept[clocks.place[step], place] = clocks.now[block, place]
    return told


def _learn(
    steps: Steps, order: _Order, asked: _Asked, clocks: _Clocks, step: int, kept: int
) -> int:
    """Have the threadblock of a step learn what those before it knew at their ends.

    `kept` clocks of ends are kept; returns how many are afterwards.
    """
    now = clocks.now[steps.block[step]]
    for turn in range(2):
        before = order.released[step] if turn == 0 else order.sender[step]
        if before == NONE:
            continue
        row, own = clocks.place[before], asked.column[steps.block[before]]
        known = 0 if own == NONE else now[own]
        for place in range(len(now)):
            now[place] = max(now[place], clocks.kept[row, place])
        if own != NONE and turn == 0 and order.early[before]:
            now[own] = max(known, before - steps.first[steps.block[before]])
        clocks.uses[before] -= 1
        if clocks.uses[before] == 0:
            kept -= 1
            clocks.spare[kept] = row
    return kept


def _tell(
    steps: Steps, asked: _Asked, clocks: _Clocks, log: _Log, access: tuple[int, int, int], told: int
) -> int:
    """Write down the accesses that an access (step, cell, whether it writes) is not ordered with.

    Those before it are the last write, and for one that writes the reads since. Returns how many
    are told then.
    """
    step, cell, writes = access
    before, at = log.write[cell], log.first[cell]
    while before != NONE or (writes and at != NONE):
        if before == NONE:
            before, at = log.read[at], log.next[at]
        other = steps.block[before]
        done = steps.first[other] + clocks.now[steps.block[step], asked.column[other]]
        if other != steps.block[step] and before >= done:
            asked.flagged[steps.rank[step]] = True
            if told < len(asked.found):
                asked.found[told, 0], asked.found[told, 1] = step, before
                asked.found[told, 2] = cell
                told += 1
        before = NONE
    return told


def _log_read(steps: Steps, log: _Log, step: int, cell: int, reads: int) -> int:
    """Log that a step reads a cell, in place of its threadblock's last; return all logged reads."""
    at = log.first[cell]
    while at != NONE and steps.block[log.read[at]] != steps.block[step]:
        at = log.next[at]
    if at == NONE:
        at, last = reads, log.last[cell]
        reads += 1
        if last == NONE:
            log.first[cell] = at
        else:
            log.next[last] = at
        log.last[cell] = at
    log.read[at] = step
    return reads


def _race(run: Run, step: int, earlier: int, cell: Cell, *, early: bool) -> Finding:
    place, other = place_of(run, step), place_of(run, earlier)
    ids = [run.blocks[spot.block][1].id for spot in (place, other)]
    buffer, offset = cell
    if early:
        return Finding(
            "open send",
            f"it may start while the send, step {other.step} of threadblock {ids[1]}, still reads"
            f" chunk {offset} of {_BUFFER_NAMES[buffer]}: a send of LL posts too early on rccl",
            place.rank, ids[0], place.step,
            "depend on a later step of that threadblock, such as a cpy, or use Simple or LL128",
        )  # fmt: skip
    return Finding(
        "race",
        f"nothing orders it and step {other.step} of threadblock {ids[1]}, and both use chunk"
        f" {offset} of {_BUFFER_NAMES[buffer]}",
        place.rank,
        ids[0],
        place.step,
        "make the later of them depend on the other",
    )


_BUFFER_NAMES = {
    "i": "the input",
    "o": "the output",
    "s": "the scratch",
    "user": "the buffer that is input and output",
}


def judge(
    program: Program,
    runtime: str,
    collective: Collective | None = None,
    safe: Safe | None = None,
    steps: Steps | None = None,
) -> list[Finding]:
    """Return all that is wrong with `program`; empty is what it takes to be written.

    Limits of `runtime`, data and races in every claimed mode, and deadlocks at any size of the
    declared range: larger sizes cut steps into more messages, of which a connection holds few.
    `collective` is what it should do, as for :func:`interpret`; `safe` what
    :func:`taccl.msccl.run.safe_size` says of the program's range, and `steps` are its
    :func:`taccl.msccl.run.steps_of`, where they are known.
    """
    run = maximal_run(program, steps=steps)
    findings = check_limits(program, runtime, run.steps)
    open_sends = program.protocol in RUNTIMES[runtime].open_sends
    for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
        if claimed:
            findings += interpret(
                program, in_place=in_place, collective=collective, open_sends=open_sends, run=run
            )
    if work_of(program) > MAX_WORK or any(finding.rule == "deadlock" for finding in findings):
        return findings
    safe = safe or safe_size(program, runtime, program.min_bytes, program.max_bytes, run.steps)
    if safe.stuck is None:
        return findings
    above = f"above {safe.size} bytes in all: " if safe.size else ""
    return [*findings, replace(safe.stuck, explanation=f"{above}{safe.stuck.explanation}")]


def interpret(
    program: Program,
    *,
    in_place: bool,
    collective: Collective | None = None,
    open_sends: bool = False,
    run: Run | None = None,
) -> list[Finding]:
    """Run a program once in one mode and return all that is wrong with what it does.

    `in_place` is the mode: whether input and output of `program` lie in one buffer. `collective` is
    what it should do; None: what its name and its chunk count say, with the root that
    :func:`find_root` finds. `open_sends` is as for :func:`find_races`, and `run` the program's
    :func:`taccl.msccl.run.maximal_run`, which is the same in both modes.
    """
    expected = collective or expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding):
        return [expected]
    if work_of(program) > MAX_WORK:
        problem = "the steps move too many chunks to follow them one by one"
        return [Finding("size", problem, fix="lower --chunks or --instances")]
    end = _follow(program, expected, in_place=in_place, run=run)
    findings = [
        *end.findings,
        *([standstill(end.run)] if end.run.stuck else _leftovers(end.run)),
        *find_races(end.run, end.cells, open_sends=open_sends),
    ]
    if not end.run.stuck:
        wrong = np.flatnonzero(wrong_outputs(end, expected))[:MAX_FINDINGS]
        findings += result_findings(
            end.run, [_described(end, expected, output) for output in wrong.tolist()]
        )
    words = "in place" if in_place else "out of place"
    return [replace(finding, explanation=f"{words}: {finding.explanation}") for finding in findings]


def has_open_sends(program: Program) -> bool:
    """Tell whether a step could overwrite what a send of LL still reads, on rccl.

    Programs that are too large to follow count as such.
    """
    if work_of(program) > MAX_WORK:
        return True
    run, nowhere = maximal_run(program), np.empty((0, 2), dtype=np.int64)
    modes = (
        mode_of(program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place)
        for in_place, claimed in ((True, program.in_place), (False, program.out_of_place))
        if claimed
    )
    return any(
        find_races(run, cells_of(run.steps, mode, nowhere, nowhere), open_sends=True)
        for mode in modes
    )


def count_wrong(program: Program, *, in_place: bool) -> int | None:
    """Return how many chunks of all outputs of `program` are wrong in the end.

    `in_place`: input and output lie in one buffer. None: that can't be told.
    """
    expected = expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding) or work_of(program) > MAX_WORK:
        return None
    end = _follow(program, expected, in_place=in_place)
    return None if end.run.stuck else int(wrong_outputs(end, expected).sum())


def order_findings(program: Program) -> Iterator[Finding]:
    """Yield the chunks of an all-reduce whose additions differ between ranks.

    Other collectives leave a sum on one rank only and are consistent. A `program` that can't end,
    or ends with wrong data, has findings of its own; here it counts as it is.
    """
    if program.collective != "allreduce" or program.chunks_per_loop < 1:
        return
    end = _follow(program, everything(program), in_place=not program.out_of_place)
    tree = list(range(end.sums.first))
    trees: dict[tuple[int, int], int] = {}
    for number, terms in enumerate(end.sums.terms.tolist(), end.sums.first):
        one, two = sorted(tree[term] for term in terms)
        tree.append(trees.setdefault((one, two), number))
    shown = 0
    values, ranks = end.at_outputs().tolist(), end.outputs.rank.tolist()
    for chunk, (begin, until) in enumerate(pairwise(end.outputs.first.tolist())):
        found: dict[int, list[int]] = {}
        for value, rank in zip(values[begin:until], ranks[begin:until], strict=True):
            found.setdefault(tree[max(value, UNDEFINED)], []).append(rank)
        if len(found) > 1 and shown < MAX_FINDINGS:
            shown += 1
            first, other = list(found.values())[:2]
            yield Finding(
                "order", f"output {chunk} is added up in another order on gpu {other[0]} than on"
                f" gpu {first[0]}", other[0],
                fix="reduce every chunk in one place and send the sum on",
            )  # fmt: skip


UNDEFINED = 0
"""The number of the value that is made of memory which nobody wrote."""


class Sums(NamedTuple):
    """Values by number: UNDEFINED, inputs, and then sums of two earlier values each.

    Parameters
    ----------
    first
        The number of the first sum.
    terms
        (sums, 2) the values that were added up.
    size
        (values,) how many inputs a value has, counted as often as they were added up, MOST_TIMES at
        most.
    """

    first: int
    terms: Ints
    size: Ints


@dataclass(frozen=True, slots=True)
class End:
    """What a run leaves: `values` has the number of the value of each cell, NONE: never written.

    `inputs` are rank and offset of the inputs by the numbers of their values. The values that chunk
    c is made of are ``wanted[1][wanted[0][c] : wanted[0][c + 1]]``, and `outputs` say who wants it.
    """

    run: Run
    cells: Cells
    values: Ints
    sums: Sums
    inputs: Ints
    outputs: Ends
    wanted: tuple[Ints, Ints]
    findings: list[Finding]

    def at_outputs(self) -> Ints:
        """Return the value at every output."""
        return self.values[self.cells.outputs]


def _follow(
    program: Program, expected: Collective, *, in_place: bool, run: Run | None = None
) -> End:
    """Run a program once, from the inputs of a collective."""
    run = run or maximal_run(program)
    steps, order = run.steps, np.array(run.order, dtype=np.int64)
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place
    )
    held, outputs = inputs_of(expected), outputs_of(expected)
    cells = cells_of(
        steps, mode, *(np.stack((ends.rank, ends.offset), axis=1) for ends in (held, outputs))
    )
    # Copies of one chunk are one value, that of the first source.
    entries = np.arange(len(held.chunk))
    named = entries if expected.reduces else held.first[held.chunk]
    width = int(held.offset.max(initial=0)) + 1
    keys, value = np.unique((held.rank * width + held.offset)[named], return_inverse=True)
    value = value.reshape(-1).astype(np.int64) + 1
    inputs = np.concatenate([np.full((1, 2), NONE), np.stack(np.divmod(keys, width), axis=1)])
    once = named == entries
    wanted = np.append(0, np.cumsum(once))[held.first], value[once]
    values = np.full(len(cells.rank), NONE, dtype=np.int64)
    values[cells.inputs] = value
    moved = np.where(steps.op == _NOP, 0, np.maximum(steps.chunks, 0))
    room = np.empty((int(moved[_ADDS[steps.op]].sum()), 2), dtype=np.int64)
    sums = Sums(len(inputs), room, np.ones(len(inputs) + len(room), dtype=np.int64))
    told = np.empty((2 * MAX_FINDINGS, 3), dtype=np.int64)
    count = np.zeros(3, dtype=np.int64)
    _loops(len(steps.op))[1](
        steps, cells, order,
        _Messages(
            column_of(run, run.sender), np.cumsum(moved) - moved,
            np.zeros(len(moved), dtype=np.int64), np.empty(int(moved.sum()), dtype=np.int64),
        ),
        _Memory(values, sums, told, count),
    )  # fmt: skip
    problems = _Problems(run, cells, mode, room_of(expected, mode), order)
    writable = np.array([size > 0 for size in expected.output_sizes])
    return End(
        run, cells, values, sums._replace(terms=room[: count[0]]), inputs, outputs, wanted,
        list(_findings(problems, writable, told[: count[1] + count[2]])),
    )  # fmt: skip


class _Messages(NamedTuple):
    """Values in flight: those of a step are ``values[at[step]:]``, and ``chunks[step]`` of them.

    ``sender[step]`` is whose message a step receives.
    """

    sender: Ints
    at: Ints
    chunks: Ints
    values: Ints


class _Memory(NamedTuple):
    """What steps change: values by cell and sums, with room for all, and what went wrong.

    `told` has rows of step, position in _RULES, and a cell that nothing wrote, or the chunks of a
    message; `counts` says how many sums there are, and how many rows, by rule.
    """

    values: Ints
    sums: Sums
    told: Ints
    counts: Ints


def follow(steps: Steps, cells: Cells, order: Ints, sent: _Messages, end: _Memory) -> None:
    """Do what steps do to memory and messages.

    Parameters
    ----------
    steps, cells, order
        What is done, and in which order.
    sent
        Who receives from whom, and room for messages.
    end
        What the memory is before; what it is in the end is written there.
    """
    for step in order:
        chunks, op = steps.chunks[step], steps.op[step]
        source, target = cells.source[step], cells.target[step]
        if op == _NOP or chunks == 0:
            continue
        if source != NONE:
            _check_written(end, step, source, chunks, _UNWRITTEN)
        length = 0 if source == NONE else chunks
        if steps.receives[step]:
            length = sent.chunks[sent.sender[step]]
            if length != chunks:
                _tell_step(end, step, _UNEVEN, length)
            length = min(chunks, length)
        if op == _REDUCE:
            if target != NONE:
                _check_written(end, step, target, chunks, _UNWRITTEN_TOO)
            length = 0 if target == NONE else chunks
        if op == _COPY and source == target:
            continue
        # All is read before anything is written.
        at = sent.at[step]
        for chunk in range(length):
            value = NONE
            if source != NONE:
                value = max(end.values[source + chunk], UNDEFINED)
            if steps.receives[step]:
                value = _add(end, value, sent.values[sent.at[sent.sender[step]] + chunk])
            if op == _REDUCE:
                value = _add(end, value, max(end.values[target + chunk], UNDEFINED))
            sent.values[at + chunk] = value
        if target != NONE:
            for chunk in range(length):
                end.values[target + chunk] = sent.values[at + chunk]
        sent.chunks[step] = length


def _add(end: _Memory, one: int, two: int) -> int:
    """Return the number of a sum; NONE adds nothing."""
    if one == NONE:
        return two
    if UNDEFINED in (one, two):
        return UNDEFINED
    sums, number = end.sums, end.counts[0]
    sums.terms[number, 0], sums.terms[number, 1] = one, two
    sums.size[sums.first + number] = min(sums.size[one] + sums.size[two], MOST_TIMES)
    end.counts[0] += 1
    return int(sums.first + number)


def _check_written(end: _Memory, step: int, first: int, chunks: int, rule: int) -> None:
    """Tell the first cell that a step reads and nobody wrote, unless another is undefined."""
    for cell in range(first, first + chunks):
        if end.values[cell] == NONE:
            _tell_step(end, step, rule, cell)
        if end.values[cell] == NONE or end.values[cell] == UNDEFINED:
            break


def _tell_step(end: _Memory, step: int, rule: int, detail: int) -> None:
    kind = 1 if rule == _UNEVEN else 2
    if end.counts[kind] < len(end.told) // 2:
        row = end.counts[1] + end.counts[2]
        end.told[row, 0], end.told[row, 1], end.told[row, 2] = step, rule, detail
        end.counts[kind] += 1


_ADDS = np.array([op in (Op.REDUCE, *RECEIVES) and op in READS_SOURCE for op in OPS])

_NOT_THERE = (
    "undefined", "reads chunk {offset} of buffer {buffer}, which nothing wrote",
    "receive or copy something there first",
)  # fmt: skip

_RULES = (
    ("operands", "{op} of no chunk", "give slots and a count"),
    ("input", "writes the input buffer", "write the output or scratch instead"),
    ("input", "writes the buffer of a rank that is to get nothing", "write scratch instead"),
    ("overlap", "source and target overlap", "use scratch for one of them"),
    (
        "outside", "uses chunk {offset} of buffer {buffer}, and a call has only {room}",
        "use scratch for what the call has no room for",
    ),
    _NOT_THERE,
    (
        "count", "receives {chunks} chunks, and its message has {found}",
        "give both ends of a message one count",
    ),
    _NOT_THERE,
)  # fmt: skip
"""What can be wrong with a step, in the order in which it is told: rule, explanation, fix.

What is not there may be what it reads or, after the message, what it adds to.
"""

_OUTSIDE, _UNWRITTEN, _UNEVEN, _UNWRITTEN_TOO = 4, 5, 6, 7


class _Problems(NamedTuple):
    """What it takes to say what is wrong with the steps of a run."""

    run: Run
    cells: Cells
    mode: Mode
    room: Sequence[Mapping[str, int]]
    order: Ints


def _findings(problems: _Problems, writable: Flags, told: Ints) -> Iterator[Finding]:
    """Yield what is wrong with steps, in their order, up to MAX_FINDINGS of each rule.

    `writable` says whose buffers a call may write, and `told` is what :func:`follow` found.
    """
    run, cells, mode, room, order = problems
    steps = run.steps
    moves = (steps.op != _NOP) & (steps.chunks != 0)
    reads, writes = cells.source != NONE, cells.target != NONE
    kind = np.where(writes, cells.kind[cells.target] if len(cells.kind) else NONE, NONE)
    near = reads & writes & (np.abs(cells.source - cells.target) < steps.chunks)
    limits = np.full((len(room) + 1, len(KINDS)), np.iinfo(np.int64).max)
    for rank, sizes in enumerate(room):
        for name, chunks in sizes.items():
            limits[rank, KINDS.index(name)] = chunks
    bad_cell = (cells.offset < 0) | (cells.offset >= limits[cells.rank, cells.kind])
    bad, bad_before = np.flatnonzero(bad_cell), np.append(0, np.cumsum(bad_cell))
    outside = np.zeros(len(moves), dtype=np.bool_)
    for first in (cells.source, cells.target):
        begin = np.where(first != NONE, first, 0)
        end = np.where(first != NONE, first + steps.chunks, 0)
        outside |= bad_before[end] > bad_before[begin]
    masks = (
        (_READS[steps.op] & ~reads) | (_WRITES[steps.op] & ~writes),
        (kind == _INPUT) & (not mode.in_place),
        (kind == _USER) & ~writable[steps.rank],
        near & ((steps.op == _REDUCE) | (cells.source != cells.target)),
        outside,
    )
    rows = [(step, rule, detail) for step, rule, detail in told.tolist()]
    for rule, mask in enumerate(masks):
        for step in order[(mask & moves)[order]][:MAX_FINDINGS].tolist():
            spots = (  # the first bad cell of each side
                bad[np.searchsorted(bad, first)]
                for first in (cells.source[step], cells.target[step])
                if rule == _OUTSIDE and first != NONE
                and bad_before[first + steps.chunks[step]] > bad_before[first]
            )  # fmt: skip
            rows.append((step, rule, int(next(spots, NONE))))
    place = np.full(len(moves), NONE, dtype=np.int64)
    place[order] = np.arange(len(order))
    often: Counter[str] = Counter()
    for step, rule, detail in sorted(rows, key=lambda row: (place[row[0]], row[1])):
        often[_RULES[rule][0]] += 1
        if often[_RULES[rule][0]] <= MAX_FINDINGS:
            yield _said(problems, step, rule, detail)


def _said(problems: _Problems, step: int, rule: int, detail: int) -> Finding:
    """Return what is wrong with a step; the detail is a cell, or the chunks of a message."""
    run, cells, room = problems.run, problems.cells, problems.room
    place = place_of(run, step)
    block = run.blocks[place.block][1]
    of_cell = rule in (_OUTSIDE, _UNWRITTEN, _UNWRITTEN_TOO)
    buffer, offset = cells.name(detail) if of_cell else ("", 0)
    name, explanation, fix = _RULES[rule]
    explanation = explanation.format(
        op=block.steps[place.step].op.value, offset=offset, buffer=buffer, found=detail,
        room=room[place.rank].get(buffer, 0), chunks=int(run.steps.chunks[step]),
    )  # fmt: skip
    return Finding(name, explanation, place.rank, block.id, place.step, fix)


def wrong_outputs(end: End, expected: Collective) -> Flags:
    """Tell of every output of a run's `end` whether it is not what `expected` says."""
    values = end.at_outputs()
    asked = np.flatnonzero(values > UNDEFINED)
    pairs, pair = np.unique(
        values[asked] * expected.num_chunks + end.outputs.chunk[asked], return_inverse=True
    )
    value, chunk = np.divmod(pairs, max(expected.num_chunks, 1))
    right = np.zeros(len(pairs), dtype=np.bool_)
    _loops(len(pairs))[2](end.sums, _room(end), (value, chunk), end.wanted, right)
    wrong = np.ones(len(values), dtype=np.bool_)
    wrong[asked] = ~right[pair.reshape(-1)]
    return wrong


class _Room(NamedTuple):
    """Room to look for the inputs of values.

    By value, which question saw it, and which one wants it; values to be looked at; inputs.
    """

    seen: Ints
    wanted: Ints
    open: Ints
    found: Ints


def _room(end: End) -> _Room:
    values = end.sums.first + len(end.sums.terms)
    seen, wanted = (np.full(values, NONE, dtype=np.int64) for _ in range(2))
    return _Room(seen, wanted, np.empty(values, dtype=np.int64), np.empty(values, dtype=np.int64))


def find_right(
    sums: Sums, room: _Room, pairs: tuple[Ints, Ints], wanted: tuple[Ints, Ints], right: Flags
) -> None:
    """Write for pairs of values and chunks whether the value is the chunk's, each input once.

    Parameters
    ----------
    sums, room
        What values are made of, and room.
    pairs
        The values, and the chunks.
    wanted
        Chunk c is made of the values ``wanted[1][wanted[0][c] : wanted[0][c + 1]]``.
    right
        (pairs,) where it is written.
    """
    (value, chunk), (first, inputs) = pairs, wanted
    for pair in range(len(value)):
        begin, end = first[chunk[pair]], first[chunk[pair] + 1]
        right[pair] = sums.size[value[pair]] == end - begin
        if not right[pair]:
            continue
        for one in inputs[begin:end]:
            room.wanted[one] = pair
        count = find_inputs(sums, room, value[pair], pair)
        right[pair] = count == end - begin
        for one in room.found[:count]:
            right[pair] = right[pair] and room.wanted[one] == pair


def find_inputs(sums: Sums, room: _Room, value: int, question: int) -> int:
    """Write the inputs of a value into ``room.found``, each once, and return how many they are.

    `sums` says what values are made of, and `question` is a number for each call.
    """
    room.open[0] = value
    room.seen[value] = question
    left, count = 1, 0
    while left > 0:
        left -= 1
        one = room.open[left]
        if one < sums.first:
            room.found[count] = one
            count += 1
            continue
        for term in sums.terms[one - sums.first]:
            if room.seen[term] != question:
                room.seen[term] = question
                room.open[left] = term
                left += 1
    return count


_LOOPS = (find_conflicts, follow, find_right, find_inputs)


def _loops(turns: int) -> Sequence[Callable[..., Any]]:
    """Return the loops over steps and values, for so many of them."""
    return compiled() if is_worth_compiling("judge", turns, SMALL) else _LOOPS


@cache
def compiled() -> Sequence[Callable[..., Any]]:
    """Return the loops over steps and values as machine code."""
    parts = [sys.modules[__name__]]
    return [telling(jit(loop, parts, loop.__name__), COMPILING) for loop in _LOOPS]


def _described(end: End, expected: Collective, output: int) -> Wrong:
    """Return what an output should be, and what it is."""
    sums, value = end.sums, int(end.at_outputs()[output])
    chunk, cell = int(end.outputs.chunk[output]), end.cells.outputs[output]
    below, left = set[int](), [value]
    while left:
        one = left.pop()
        if one >= sums.first and one not in below:
            below.add(one)
            left += sums.terms[one - sums.first].tolist()
    times: dict[int, int] = {value: 1}
    for one in sorted(below, reverse=True):
        for term in sums.terms[one - sums.first].tolist():
            times[term] = min(times.get(term, 0) + times[one], MOST_TIMES)
    found = {
        (int(end.inputs[one, 0]), int(end.inputs[one, 1])): often
        for one, often in times.items()
        if UNDEFINED < one < sums.first
    }
    steps, order = end.run.steps, np.array(end.run.order, dtype=np.int64)
    target = end.cells.target[order]
    writers = np.flatnonzero(
        (target != NONE) & (target <= cell) & (cell < target + steps.chunks[order])
    )
    return Wrong(
        int(end.outputs.rank[output]), int(end.outputs.offset[output]),
        Counter(value_of(expected, chunk)), None if value == NONE else found,
        place_of(end.run, int(order[writers[-1]])) if len(writers) else None,
    )  # fmt: skip


def find_root(program: Program) -> int | None:
    """Return the rank that a broadcast comes from or a reduction goes to, as no file says it.

    Each rank is given an input. The root of a broadcast is the rank whose input most outputs
    have in the end, that of a reduction the one whose output has most inputs in it; of equals
    the first. None for collectives without a root, and for what can't be followed.
    """
    kind = COLLECTIVES.get(program.collective)
    if kind is None or not kind.has_root or isinstance(expected_of(program), Finding):
        return None
    if work_of(program) > MAX_WORK:
        return None
    end = _follow(program, everything(program), in_place=not program.out_of_place)
    values, votes = end.at_outputs(), np.zeros(program.num_ranks, dtype=np.int64)
    if program.collective == "reduce":
        some, which = np.unique(values, return_inverse=True)
        room, find = _room(end), _loops(len(some))[3]
        sizes = [find(end.sums, room, one, one) if one > UNDEFINED else 0 for one in some.tolist()]
        np.add.at(votes, end.outputs.rank, np.array(sizes, dtype=np.int64)[which.reshape(-1)])
    else:
        whole = (values > UNDEFINED) & (values < end.sums.first)
        np.add.at(votes, end.inputs[values[whole], 0], 1)
    return int(votes.argmax())


def _leftovers(run: Run) -> Iterator[Finding]:
    for (_, dst, channel), senders in run.left.items():
        place = place_of(run, senders[0])
        lost = "a message is" if len(senders) == 1 else f"{len(senders)} messages are"
        yield Finding(
            "leftover", f"{lost} never received by gpu {dst} on channel {channel}", place.rank,
            run.blocks[place.block][1].id, place.step, "receive every message that is sent",
        )  # fmt: skip
