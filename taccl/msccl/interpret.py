"""Run a program on symbolic chunks: is the data right at the end, does it race or deadlock.

A value is the sorted tuple of the input chunks that were added up, (rank, offset) each; a chunk
that is in it twice was counted twice. The memory is that of one mode: in place, input and output
are one buffer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice

from taccl.collectives import COLLECTIVES, Collective
from taccl.msccl.aliasing import Cell, Mode, mode_of
from taccl.msccl.expected import (
    MAX_WORK,
    Value,
    everything,
    expected_of,
    inputs_of,
    room_of,
    value_of,
)
from taccl.msccl.findings import Finding
from taccl.msccl.limits import check_limits
from taccl.msccl.program import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_TARGET,
    Buffer,
    Op,
    Program,
    Slot,
    Step,
)
from taccl.msccl.races import find_races
from taccl.msccl.run import Place, Run, maximal_run, places
from taccl.msccl.runtimes import LOADED_BY, RUNTIMES, Runtime, message_chunks

UNDEFINED: Value = ((-1, -1),)

MAX_CUT_WORK = 10_000_000
"""Chunks moved in all runs of the deadlock check, above which only two ways of cutting are run."""

MAX_FINDINGS = 20


def judge(program: Program, runtime: str, collective: Collective | None = None) -> list[Finding]:
    """Return all that is wrong with a program; empty is what it takes to be written.

    Limits of the runtime, data and races in every claimed mode, and deadlocks at any size of the
    declared range: larger sizes cut steps into more messages, of which a connection holds few.
    ``collective`` is what it should do, as for :func:`interpret`.
    """
    findings = check_limits(program, runtime)
    for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
        if claimed:
            findings += interpret(program, in_place=in_place, collective=collective)
    first = _first_deadlock(program, runtime, program.min_bytes, program.max_bytes)
    if first is None or any(finding.rule == "deadlock" for finding in findings):
        return findings
    size, stuck = first
    explanation = f"above {size} bytes in all: {stuck.explanation}" if size else stuck.explanation
    return [*findings, replace(stuck, explanation=explanation)]


def interpret(
    program: Program, *, in_place: bool, collective: Collective | None = None
) -> list[Finding]:
    """Run a program once in one mode and return all that is wrong with what it does.

    ``collective`` is what it should do; None: what its name and its chunk count say, with the
    root that :func:`find_root` finds.
    """
    expected = collective or expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding):
        return [expected]
    if _work(program) > MAX_WORK:
        return [Finding("size", "the steps move too many chunks to follow them one by one")]
    machine = _follow(program, expected, in_place=in_place)
    run, mode = machine.run, machine.mode
    findings = [*machine.findings, *_run_findings(run), *find_races(run, mode)]
    if not run.stuck:
        findings += islice(_wrong_results(machine, expected), MAX_FINDINGS)
    return [_in_mode(finding, in_place=in_place) for finding in findings]


def count_wrong(program: Program, *, in_place: bool) -> int | None:
    """Return how many chunks of all outputs are wrong in the end; None: that can't be told."""
    expected = expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding) or _work(program) > MAX_WORK:
        return None
    machine = _follow(program, expected, in_place=in_place)
    return None if machine.run.stuck else sum(1 for _ in _wrong_results(machine, expected))


def _follow(program: Program, expected: Collective, *, in_place: bool) -> "_Machine":
    """Run a program once, from the inputs of a collective."""
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place
    )
    run = maximal_run(program)
    machine = _Machine(
        run, mode, inputs_of(expected, mode), room_of(expected, mode),
        [size > 0 for size in expected.output_sizes],
    )  # fmt: skip
    where = places(run)
    for number in run.order:
        _step(machine, where[number], number)
    return machine


def find_root(program: Program) -> int | None:
    """Return the rank that a broadcast comes from or a reduction goes to, as no file says it.

    Each rank is given an input. The root of a broadcast is the rank whose input most outputs
    have in the end, that of a reduction the one whose output has most inputs in it; of equals
    the first. None for collectives without a root, and for what can't be followed.
    """
    kind = COLLECTIVES.get(program.collective)
    if kind is None or not kind.has_root or isinstance(expected_of(program), Finding):
        return None
    if _work(program) > MAX_WORK:
        return None
    machine = _follow(program, everything(program), in_place=not program.out_of_place)
    votes = dict.fromkeys(range(program.num_ranks), 0)
    for rank in range(program.num_ranks):
        for chunk in range(program.chunks_per_loop):
            cell = machine.mode.cell(rank, Slot(Buffer.OUTPUT, chunk))
            value = machine.memory.get((rank, cell), UNDEFINED)
            if value is UNDEFINED:
                continue
            if program.collective == "reduce":
                votes[rank] += len(set(value))
            elif len(value) == 1 and value[0][0] in votes:
                votes[value[0][0]] += 1
    return max(votes, key=lambda rank: votes[rank])


def _in_mode(finding: Finding, *, in_place: bool) -> Finding:
    words = "in place" if in_place else "out of place"
    return Finding(
        finding.rule, f"{words}: {finding.explanation}", finding.gpu, finding.threadblock,
        finding.step, finding.fix,
    )  # fmt: skip


def _work(program: Program) -> int:
    return sum(step.count for _, block in program.blocks() for step in block.steps)


@dataclass(slots=True)
class _Machine:
    """Memory, the room in buffers, who is to get something, messages, and what was found."""

    run: Run
    mode: Mode
    memory: dict[tuple[int, Cell], Value]
    room: Sequence[Mapping[str, int]]
    writable: Sequence[bool]
    sent: dict[int, list[Value]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def report(self, rule: str, explanation: str, place: Place, fix: str | None = None) -> None:
        """Record a finding at a step, unless there are many already."""
        if len(self.findings) < MAX_FINDINGS:
            _, block = self.run.blocks[place.block]
            self.findings.append(Finding(rule, explanation, place.rank, block.id, place.step, fix))

    def cells(self, place: Place, slot: Slot | None, count: int) -> list[Cell]:
        """Return the memory cells of an operand."""
        if slot is None:
            return []
        return [
            self.mode.cell(place.rank, Slot(slot.buffer, slot.offset + index))
            for index in range(count)
        ]

    def read(self, place: Place, cells: Sequence[Cell]) -> list[Value]:
        """Return the values of cells; undefined ones are a finding."""
        values = [self.memory.get((place.rank, cell), UNDEFINED) for cell in cells]
        for cell, value in zip(cells, values, strict=True):
            if (place.rank, cell) not in self.memory:
                self.report(
                    "undefined", f"reads chunk {cell[1]} of buffer {cell[0]}, which nothing wrote",
                    place, "receive or copy something there first",
                )  # fmt: skip
                break
            if value is UNDEFINED:
                break
        return values


def _step(machine: _Machine, place: Place, number: int) -> None:
    """Do what one step does to memory and messages."""
    step = machine.run.blocks[place.block][1].steps[place.step]
    if step.op is Op.NOP:
        return
    sources = machine.cells(place, step.src if step.op in READS_SOURCE else None, step.count)
    targets = machine.cells(place, step.dst if step.op in WRITES_TARGET else None, step.count)
    _check_operands(machine, step, place, (sources, targets))
    if step.op is Op.COPY and sources == targets:
        machine.read(place, sources)
        return
    parts = [machine.read(place, sources)] if sources else []
    if step.op in RECEIVES:
        parts.append(_received(machine, step, place, number))
    if step.op is Op.REDUCE:
        parts.append(machine.read(place, targets))
    values = [_add(*terms) for terms in zip(*parts, strict=False)]
    if step.op in WRITES_TARGET:
        for cell, value in zip(targets, values, strict=False):
            machine.memory[place.rank, cell] = value
    if step.op in SENDS:
        machine.sent[number] = values


def _check_operands(
    machine: _Machine, step: Step, place: Place, cells: tuple[list[Cell], list[Cell]]
) -> None:
    sources, targets = cells
    if (step.op in READS_SOURCE and not sources) or (step.op in WRITES_TARGET and not targets):
        machine.report("operands", f"{step.op.value} of no chunk", place, "give slots and a count")
    room = machine.room[place.rank]
    if not machine.mode.in_place and any(buffer == "i" for buffer, _ in targets):
        machine.report(
            "input", "writes the input buffer", place, "write the output or scratch instead"
        )
    if not machine.writable[place.rank] and any(buffer == "user" for buffer, _ in targets):
        machine.report(
            "input", "writes the buffer of a rank that is to get nothing", place,
            "write scratch instead",
        )  # fmt: skip
    # Element by element, everything but re may work where it reads; shifted, data is lost.
    harmless = step.op is not Op.REDUCE and sources == targets
    if not harmless and not set(sources).isdisjoint(targets):
        machine.report("overlap", "source and target overlap", place, "use scratch for one of them")
    for buffer, offset in (*sources, *targets):
        if not 0 <= offset < room.get(buffer, offset + 1):
            machine.report(
                "outside", f"uses chunk {offset} of buffer {buffer}, and a call has only"
                f" {room.get(buffer, 0)}", place, "use scratch for what the call has no"
                " room for",
            )  # fmt: skip
            break


def _received(machine: _Machine, step: Step, place: Place, number: int) -> list[Value]:
    values = machine.sent[machine.run.sender[number]]
    if len(values) != step.count:
        machine.report(
            "count", f"receives {step.count} chunks, and its message has {len(values)}", place,
            "give both ends of a message one count",
        )  # fmt: skip
    return values


def _add(*terms: Value) -> Value:
    """Return the sum of values."""
    if len(terms) == 1:
        return terms[0]
    if UNDEFINED in terms:
        return UNDEFINED
    return tuple(sorted(part for term in terms for part in term))


def _run_findings(run: Run) -> Iterator[Finding]:
    if run.stuck:
        yield _deadlock(run)
    for (src, dst, channel), count in run.left.items():
        if not run.stuck:
            yield Finding(
                "leftover",
                f"{count} messages from gpu {src} on channel {channel} are never received",
                dst, fix="receive every message that is sent",
            )  # fmt: skip


def _deadlock(run: Run) -> Finding:
    waits = [
        f"gpu {rank} threadblock {block.id} at step {position} waits for {why}"
        for number, position, why in run.stuck
        for rank, block in [run.blocks[number]]
    ]
    more = f"; and {len(waits) - 4} more" if len(waits) > 4 else ""
    rank, block = run.blocks[run.stuck[0][0]]
    return Finding(
        "deadlock", "; ".join(waits[:4]) + more, rank, block.id, run.stuck[0][1],
        "reorder the steps, or lower --max-bytes",
    )  # fmt: skip


def _wrong_results(machine: _Machine, collective: Collective) -> Iterator[Finding]:
    for chunk in range(collective.num_chunks):
        expected = value_of(collective, chunk)
        for rank in collective.targets(chunk):
            target_at = collective.output_offset(chunk, rank)
            cell = machine.mode.cell(rank, Slot(Buffer.OUTPUT, target_at))
            found = machine.memory.get((rank, cell))
            if found != expected:
                yield Finding(
                    "result",
                    f"output {target_at} should be {_words(expected)}, and is {_words(found)}",
                    rank,
                )


def _words(value: Value | None) -> str:
    """Return a value such as ``input 3 of ranks 0, 1 (twice) and 2``."""
    if value is None:
        return "never written"
    if value is UNDEFINED or value == UNDEFINED:
        return "made of undefined data"
    times = Counter(value)
    parts: dict[int, list[str]] = {}
    for rank, offset in sorted(times):
        count = times[rank, offset]
        again = {1: "", 2: " (twice)"}.get(count, f" ({count} times)")
        parts.setdefault(offset, []).append(f"{rank}{again}")
    return " + ".join(
        f"input {offset} of rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        for offset, ranks in parts.items()
    )


def deadlock(program: Program, chunks_per_message: int, slots: int) -> Finding | None:
    """Return who waits for what when a program can't end, or None.

    A step of count c is ceil(c / chunks_per_message) messages, and a connection holds ``slots``.
    """
    run = maximal_run(program, chunks_per_message, slots)
    return _deadlock(run) if run.stuck else None


def largest_safe_size(program: Program, runtime: str, low: int, high: int) -> int:
    """Return the largest counted size from ``low`` to ``high`` bytes that can't deadlock.

    It is 0 when already ``low`` deadlocks. Larger sizes cut steps into more messages, which is
    all that size changes; the sizes below the result are safe, too.
    """
    first = _first_deadlock(program, runtime, low, high)
    return high if first is None else first[0]


def _first_deadlock(
    program: Program, runtime: str, low: int, high: int
) -> tuple[int, Finding] | None:
    """Return the largest size before the first deadlock (0: there is none), and who waits.

    What ends with one chunk a message and one message a connection ends at every size.
    """
    if _work(program) > MAX_WORK or deadlock(program, 1, 1) is None:
        return None
    rows = [RUNTIMES[name] for name in LOADED_BY.get(runtime, (runtime,))]
    # Runtimes with equal messages and slots are alike here: one of them is looked at.
    kinds = {(r.message_bytes[program.protocol], r.fifo_slots[program.protocol]): r for r in rows}
    found = [_first_deadlock_of(program, row, low, high) for row in kinds.values()]
    return min((one for one in found if one), key=lambda one: one[0], default=None)


def _first_deadlock_of(
    program: Program, runtime: Runtime, low: int, high: int
) -> tuple[int, Finding] | None:
    chunks = max(program.chunks_per_loop, 1)
    first, last = (
        message_chunks(runtime.name, program.protocol, Fraction(size, chunks))
        for size in (low, high)
    )
    for held in _ways_to_cut(program, first, last):
        stuck = deadlock(program, held, runtime.fifo_slots[program.protocol])
        if stuck is not None:
            largest = chunks * (runtime.message_bytes[program.protocol] // (held + 1))
            return (0 if held == first else largest), stuck
    return None


def _ways_to_cut(program: Program, most: int, least: int) -> list[int]:
    """Return chunks in a message, descending, that cut some step into more messages than before."""
    counts = {step.count for _, block in program.blocks() for step in block.steps}
    ways: dict[frozenset[tuple[int, int]], int] = {}
    for held in range(most, least - 1, -1):
        ways.setdefault(frozenset((count, -(-count // held)) for count in counts), held)
    if len(ways) * _work(program) > MAX_CUT_WORK:
        return sorted({most, least}, reverse=True)
    return list(ways.values())
