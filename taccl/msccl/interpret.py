"""Run a program on symbolic chunks: is the data right at the end, does it race or deadlock.

A value is the sorted tuple of the input chunks that were added up, (rank, offset) each; a chunk
that is in it twice was counted twice. The memory is that of one mode: in place, input and output
are one buffer.

Floating-point addition commutes but is not associative. So whether ranks get the same bits is asked
of other values: the trees of their additions, with the two sides of a node unordered. Trees are
numbered as they occur, equal ones alike.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice

from taccl.collectives import COLLECTIVES, Collective
from taccl.msccl.expected import (
    UNDEFINED,
    Cell,
    Mode,
    Value,
    everything,
    expected_of,
    inputs_of,
    mode_of,
    result_findings,
    room_of,
    wrong_outputs,
)
from taccl.msccl.limits import check_limits
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Finding,
    Op,
    Program,
    Slot,
    Step,
)
from taccl.msccl.races import find_races
from taccl.msccl.run import (
    MAX_WORK,
    Place,
    Run,
    Safe,
    maximal_run,
    places,
    safe_size,
    standstill,
    work_of,
)
from taccl.msccl.runtimes import RUNTIMES

MAX_FINDINGS = 20
"""Findings of one rule that are told: some rules are none for collectives that nobody knows."""


def judge(
    program: Program, runtime: str, collective: Collective | None = None, safe: Safe | None = None
) -> list[Finding]:
    """Return all that is wrong with `program`; empty is what it takes to be written.

    Limits of `runtime`, data and races in every claimed mode, and deadlocks at any size of the
    declared range: larger sizes cut steps into more messages, of which a connection holds few.
    `collective` is what it should do, as for :func:`interpret`; `safe` what
    :func:`taccl.msccl.run.safe_size` says of the program's range, where that is known.
    """
    findings = check_limits(program, runtime)
    run = maximal_run(program)
    open_sends = program.protocol in RUNTIMES[runtime].open_sends
    for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
        if claimed:
            findings += interpret(
                program, in_place=in_place, collective=collective, open_sends=open_sends, run=run
            )
    if work_of(program) > MAX_WORK or any(finding.rule == "deadlock" for finding in findings):
        return findings
    safe = safe or safe_size(program, runtime, program.min_bytes, program.max_bytes)
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
    machine = _follow(program, expected, in_place=in_place, run=run)
    run, mode = machine.run, machine.mode
    findings = [
        *machine.findings,
        *([standstill(run)] if run.stuck else _leftovers(run)),
        *find_races(run, mode, open_sends=open_sends),
    ]
    if not run.stuck:
        wrong = wrong_outputs(machine.memory, mode, expected)
        findings += result_findings(run, mode, list(islice(wrong, MAX_FINDINGS)))
    words = "in place" if in_place else "out of place"
    return [replace(finding, explanation=f"{words}: {finding.explanation}") for finding in findings]


def has_open_sends(program: Program) -> bool:
    """Tell whether a step could overwrite what a send of LL still reads, on rccl.

    Programs that are too large to follow count as such.
    """
    if work_of(program) > MAX_WORK:
        return True
    run = maximal_run(program)
    modes = (
        mode_of(program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place)
        for in_place, claimed in ((True, program.in_place), (False, program.out_of_place))
        if claimed
    )
    return any(find_races(run, mode, open_sends=True) for mode in modes)


def count_wrong(program: Program, *, in_place: bool) -> int | None:
    """Return how many chunks of all outputs of `program` are wrong in the end.

    `in_place`: input and output lie in one buffer. None: that can't be told.
    """
    expected = expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding) or work_of(program) > MAX_WORK:
        return None
    machine = _follow(program, expected, in_place=in_place)
    if machine.run.stuck:
        return None
    return sum(1 for _ in wrong_outputs(machine.memory, machine.mode, expected))


def order_findings(program: Program) -> Iterator[Finding]:
    """Yield the chunks of an all-reduce whose additions differ between ranks.

    Other collectives leave a sum on one rank only and are consistent. A `program` that can't end,
    or ends with wrong data, has findings of its own; here it counts as it is.
    """
    if program.collective != "allreduce" or program.chunks_per_loop < 1:
        return
    trees: dict[tuple[Value, Value], Value] = {}

    def join(one: Value, two: Value) -> Value:
        return trees.setdefault((min(one, two), max(one, two)), ((_TREE, len(trees)),))

    machine = _follow(
        program, everything(program), in_place=not program.out_of_place,
        add=lambda *terms: reduce(join, terms),
    )  # fmt: skip
    shown = 0
    for chunk in range(program.chunks_per_loop):
        found: dict[Value, list[int]] = {}
        for rank in range(program.num_ranks):
            cell = machine.mode.cell(rank, Slot(Buffer.OUTPUT, chunk))
            found.setdefault(machine.memory.get((rank, cell), UNDEFINED), []).append(rank)
        if len(found) > 1 and shown < MAX_FINDINGS:
            shown += 1
            first, other = list(found.values())[:2]
            yield Finding(
                "order", f"output {chunk} is added up in another order on gpu {other[0]} than on"
                f" gpu {first[0]}", other[0],
                fix="reduce every chunk in one place and send the sum on",
            )  # fmt: skip


_TREE = -2
"""In place of the rank of an input: what follows is the number of a tree of additions."""


def _add(*terms: Value) -> Value:
    """Return the sum of values."""
    if len(terms) == 1:
        return terms[0]
    if UNDEFINED in terms:
        return UNDEFINED
    return tuple(sorted(part for term in terms for part in term))


def _follow(
    program: Program,
    expected: Collective,
    *,
    in_place: bool,
    run: Run | None = None,
    add: Callable[..., Value] = _add,
) -> "_Machine":
    """Run a program once, from the inputs of a collective."""
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place
    )
    run = run or maximal_run(program)
    machine = _Machine(
        run, mode, inputs_of(expected, mode), room_of(expected, mode),
        [size > 0 for size in expected.output_sizes], add,
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
    if work_of(program) > MAX_WORK:
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


@dataclass(slots=True)
class _Machine:
    """Memory, the room in buffers, who is to get something, sums, messages, and what was found."""

    run: Run
    mode: Mode
    memory: dict[tuple[int, Cell], Value]
    room: Sequence[Mapping[str, int]]
    writable: Sequence[bool]
    add: Callable[..., Value]
    sent: dict[int, list[Value]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    def report(self, rule: str, explanation: str, place: Place, fix: str | None = None) -> None:
        """Record a finding at a step, unless the rule has many already."""
        self.told[rule] += 1
        if self.told[rule] <= MAX_FINDINGS:
            _, block = self.run.blocks[place.block]
            self.findings.append(Finding(rule, explanation, place.rank, block.id, place.step, fix))

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
    if step.op is Op.NOP or step.count == 0:
        return
    sources = machine.mode.cells(place.rank, step.source, step.count)
    targets = machine.mode.cells(place.rank, step.target, step.count)
    _check_operands(machine, step, place, (sources, targets))
    if step.op is Op.COPY and sources == targets:
        machine.read(place, sources)
        return
    parts = [machine.read(place, sources)] if sources else []
    if step.receives:
        message = machine.sent[machine.run.sender[number]]
        if len(message) != step.count:
            machine.report(
                "count", f"receives {step.count} chunks, and its message has {len(message)}",
                place, "give both ends of a message one count",
            )  # fmt: skip
        parts.append(message)
    if step.op is Op.REDUCE:
        parts.append(machine.read(place, targets))
    values = [machine.add(*terms) for terms in zip(*parts, strict=False)]
    for cell, value in zip(targets, values, strict=False):
        machine.memory[place.rank, cell] = value
    if step.sends:
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


def _leftovers(run: Run) -> Iterator[Finding]:
    where = places(run) if run.left else []
    for (_, dst, channel), senders in run.left.items():
        place = where[senders[0]]
        lost = "a message is" if len(senders) == 1 else f"{len(senders)} messages are"
        yield Finding(
            "leftover", f"{lost} never received by gpu {dst} on channel {channel}", place.rank,
            run.blocks[place.block][1].id, place.step, "receive every message that is sent",
        )  # fmt: skip
