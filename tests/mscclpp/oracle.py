"""A slow, literal judge of MSCCL++ plans, to check the verifier against.

It plays a plan for two calls in a row (three with double scratch), one operation after the other,
and writes down every event with the events that it certainly comes after. Two orders follow: in
the full order a later event sees what an earlier one wrote; in the execution order it only runs
later. Then any two accesses to one cell are compared, and the values are computed as they come.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.mscclpp.oracle_steps import (
    Block,
    Cell,
    Channel,
    Loop,
    Part,
    Plan,
    Step,
    cell,
    cells,
    elements,
    has_pipeline,
    read_plan,
)

Later = dict[int, list[tuple[int, bool]]]
"""For each event: those that it comes after beside its own list, and whether in the full order."""
Value = tuple[tuple[tuple[int, int, int], int], ...] | None
"""How often each (call, rank, grain of the input) went in; None: nobody wrote it."""
Packet = tuple[int, Cell]
"""Call, and the first cell."""

_MANY = 20


@dataclass
class Operand:
    """What an event accesses: one cell, or two that a packet takes."""

    cells: tuple[Cell, ...]
    packet: bool


@dataclass
class Event:
    """One element of a data operation, or one act of another, in one call of its rank."""

    name: str
    call: int
    after: list[int]
    reads: list[Operand] = field(default_factory=list)
    writes: list[Operand] = field(default_factory=list)
    relaxed: bool = False
    user: int | None = None
    fence: int = -1


@dataclass
class Position:
    """Where a threadblock is: its last fence, and its events since then.

    The i-th semaphore of an operation is the i-th thread's, whose last such event is kept.
    """

    at: int = 0
    fence: int = -1
    since: list[int] = field(default_factory=list)
    semaphores: dict[int, int] = field(default_factory=dict)


@dataclass
class Trace:
    """Everything that happened, in the order in which it did."""

    events: list[Event] = field(default_factory=list)
    signals: dict[Channel, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[Channel, list[int]] = field(default_factory=lambda: defaultdict(list))
    releases: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    acquires: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    pushes: dict[Channel, list[tuple[int, list[int]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    writers: dict[Packet, list[int]] = field(default_factory=lambda: defaultdict(list))
    readers: dict[Packet, list[int]] = field(default_factory=lambda: defaultdict(list))
    calls: list[int] = field(default_factory=list)
    positions: dict[Block, Position] = field(default_factory=dict)


def problems(text: str) -> list[str]:
    """Return what is wrong with a plan, given as JSON: each line begins with its category."""
    found = _problems(text, 1)
    if not any(line.startswith("refused") for line in found) and has_pipeline(text):
        found += _problems(text, 2)
    return list(dict.fromkeys(found))


def _problems(text: str, slices: int) -> list[str]:
    plan, found = read_plan(text, slices)
    if plan is None:
        return found
    found += _balance(plan)
    trace, stuck = played(plan)
    found += stuck
    if stuck:
        return found
    later, unsure = _later(plan, trace)
    found += unsure
    found += _few(_twice_written(trace))
    found += _few(_races(trace, later))
    return found + _few(_results(plan, trace))


def _few(lines: list[str]) -> list[str]:
    different = list(dict.fromkeys(lines))
    return different[:_MANY]


# What happens.


def played(plan: Plan) -> tuple[Trace, list[str]]:
    """Return what happens when all threadblocks run as far as they can, and who is stuck."""
    trace = Trace(calls=[0] * plan.ranks, positions={block: Position() for block in plan.programs})
    for rank in range(plan.ranks):
        _begin(plan, trace, rank)
    moved = True
    while moved:
        moved = any(_advance(plan, trace, rank) for rank in range(plan.ranks))
    stuck = []
    for block, position in trace.positions.items():
        call = trace.calls[block[0]]
        if call < plan.calls and position.at < len(plan.programs[block]):
            name = plan.programs[block][position.at].name
            stuck.append(f"deadlock: {name} waits for ever in call {call}")
    return trace, stuck


def _begin(plan: Plan, trace: Trace, rank: int) -> None:
    """Let the user of a rank read what the call before left, and write the next input."""
    mine = {b: position for b, position in trace.positions.items() if b[0] == rank}
    past = [i for i, event in enumerate(trace.events) if event.user == rank][-1:]
    past += [i for one in mine.values() for i in (*one.since, one.fence) if i >= 0]
    call = trace.calls[rank]
    reads = [
        Operand((cell(plan, rank, "o", unit, call),), packet=False)
        for unit in range(plan.outputs[rank] * plan.grain)
    ]
    writes = [
        Operand((cell(plan, rank, "i", unit, call),), packet=False)
        for unit in range(plan.inputs[rank] * plan.grain)
    ]
    event = Event(f"the user of rank {rank}", call, past, reads, writes, user=rank)
    trace.events.append(event)
    for position in mine.values():
        position.at, position.fence, position.since = 0, len(trace.events) - 1, []


def _advance(plan: Plan, trace: Trace, rank: int) -> bool:
    if trace.calls[rank] == plan.calls:
        return False
    mine = [block for block in plan.programs if block[0] == rank]
    moved = False
    for block in mine:
        while _fire(plan, trace, block):
            moved = True
    if all(trace.positions[block].at == len(plan.programs[block]) for block in mine):
        trace.calls[rank] += 1
        _begin(plan, trace, rank)
        return True
    return moved


def _fire(plan: Plan, trace: Trace, block: Block) -> bool:
    """Run the next step of a threadblock, if there is one that can run."""
    position, steps = trace.positions[block], plan.programs[block]
    if position.at == len(steps):
        return False
    step = steps[position.at]
    if step.kind == "barrier":
        return _meet(plan, trace, block[0], step)
    if not _ready(plan, trace, block, step):
        return False
    position.at += 1
    if step.kind == "fence":
        _fence(trace, [position], step.name, trace.calls[block[0]])
    for channel in step.channels:
        _sync(plan, trace, block, step, channel)
    for thread, number in enumerate(step.numbers):
        last = position.semaphores.get(thread, position.fence)
        one = _event(trace, block, step, [max(position.fence, last)])
        position.semaphores[thread] = one
        trace.events[one].fence = position.fence
        position.since.append(one)
        (trace.acquires if step.kind == "acquire" else trace.releases)[block[0], number].append(one)
    for loop in step.loops:
        if loop.channel is None:
            for element in elements(plan, loop):
                one = _access(plan, trace, block, step, loop, element)
                position.since.append(one)
        else:
            _transfer(plan, trace, block, step, loop, loop.channel)
    return True


def _fence(trace: Trace, positions: list[Position], name: str, call: int) -> None:
    after = [i for one in positions for i in (*one.since, one.fence)]
    trace.events.append(Event(name, call, after))
    for one in positions:
        one.fence, one.since = len(trace.events) - 1, []


def _meet(plan: Plan, trace: Trace, rank: int, step: Step) -> bool:
    blocks = plan.meetings[rank, step.numbers[0]]
    positions = [trace.positions[block] for block in blocks]
    for block, position in zip(blocks, positions, strict=True):
        rest = plan.programs[block][position.at :]
        if not rest or (rest[0].kind, rest[0].numbers) != ("barrier", step.numbers):
            return False
    for position in positions:
        position.at += 1
    _fence(trace, positions, step.name, trace.calls[rank])
    return True


def _ready(plan: Plan, trace: Trace, block: Block, step: Step) -> bool:
    """Tell whether all that a step waits for is there."""
    if step.kind == "wait":
        return all(
            len(trace.signals[channel]) >= len(trace.waits[channel]) + number
            for channel, number in Counter(step.channels).items()
        )
    if step.kind == "acquire":
        return all(
            plan.semaphores[block[0], index]
            + len(trace.releases[block[0], index])
            - len(trace.acquires[block[0], index])
            >= number
            for index, number in Counter(step.numbers).items()
        )
    call = trace.calls[block[0]]
    return all(
        trace.writers.get((call, cells(plan, part, element, call)[0]))
        for loop in step.loops
        for part in loop.reads
        if part.packet
        for element in elements(plan, loop)
    )


def _event(trace: Trace, block: Block, step: Step, after: list[int]) -> int:
    trace.events.append(Event(step.name, trace.calls[block[0]], list(after), relaxed=step.relaxed))
    return len(trace.events) - 1


def _sync(plan: Plan, trace: Trace, block: Block, step: Step, channel: Channel) -> None:
    """Signal, or wait, on one channel: a thread of its own does it."""
    position = trace.positions[block]
    one = _event(trace, block, step, [position.fence])
    position.since.append(one)
    if step.kind == "wait":
        trace.waits[channel].append(one)
        return
    if channel[1] == "port":
        delivery = _event(trace, block, step, [one])
        trace.pushes[channel].append((one, [delivery]))
        one = delivery
    partner = plan.partners[channel]
    if partner is not None:
        trace.signals[partner].append(one)


def _access(plan: Plan, trace: Trace, block: Block, step: Step, loop: Loop, element: int) -> int:
    """Read one element of a local or memory-mapped loop, and write it."""
    one = _event(trace, block, step, [trace.positions[block].fence])
    _touch(plan, trace, one, loop.reads, loop.writes, element)
    return one


def _touch(
    plan: Plan,
    trace: Trace,
    one: int,
    reads: tuple[Part, ...],
    writes: tuple[Part, ...],
    element: int,
) -> None:
    event = trace.events[one]
    for parts, operands, users in (
        (reads, event.reads, trace.readers),
        (writes, event.writes, trace.writers),
    ):
        for part in parts:
            where = cells(plan, part, element, event.call)
            if parts is writes and Operand(where, part.packet) in event.reads and part.packet:
                # A packet that comes back to where it was read is there, flag and all.
                continue
            operands.append(Operand(where, part.packet))
            if part.packet:
                users[event.call, where[0]].append(one)


def _transfer(
    plan: Plan, trace: Trace, block: Block, step: Step, loop: Loop, channel: Channel
) -> None:
    """Push a transfer into the queue of a port: its bytes are read and written some time later."""
    position = trace.positions[block]
    arrivals = []
    for element in elements(plan, loop):
        packets = tuple(part for part in loop.reads if part.packet)
        if packets:
            arrivals.append(_event(trace, block, step, [position.fence]))
            _touch(plan, trace, arrivals[-1], packets, (), element)
    push = _event(trace, block, step, [position.fence, *arrivals])
    position.since += [*arrivals, push]
    done = []
    for element in elements(plan, loop):
        done.append(_event(trace, block, step, [push]))
        _touch(plan, trace, done[-1], loop.reads, loop.writes, element)
    if step.signals:
        done.append(_event(trace, block, step, [push, *done]))
        partner = plan.partners[channel]
        if partner is not None:
            trace.signals[partner].append(done[-1])
    trace.pushes[channel].append((push, done))
    if step.flushes:
        position.since.append(_event(trace, block, step, done))


# What is certain to come before what.


def _later(plan: Plan, trace: Trace) -> tuple[Later, list[str]]:
    """Return what comes after what because of signals, semaphores, queues and packets.

    What is certain depends on the order, and the order on what is certain: as long as more is
    certain than a moment ago, ask again.
    """
    later: Later = {}
    while True:
        before = _before(trace, later)
        more, unsure = _certain(plan, trace, before)
        if more == later:
            return later, unsure
        later = more


def _walk(trace: Trace, later: Later) -> Iterator[tuple[int, int, int]]:
    """Yield each event with what comes before it: by execution and in full, as sets of bits.

    A kernel's start releases all that its rank has seen so far: who runs after it sees that too.
    """
    events = trace.events
    last = list(range(len(events)))
    for i, event in enumerate(events):
        for j in (*event.after, *(j for j, _ in later.get(i, []))):
            last[j] = i
    drop: dict[int, list[int]] = defaultdict(list)
    for j, i in enumerate(last):
        drop[i].append(j)
    run: dict[int, int] = {}
    full: dict[int, int] = {}
    released: dict[int, int] = {}
    for i, event in enumerate(events):
        runs = fulls = frees = 0
        for j, is_full in (*((j, True) for j in event.after), *later.get(i, [])):
            runs |= run[j] | 1 << j
            frees |= released[j]
            if events[j].user is not None:
                frees |= full[j] | 1 << j
            if is_full:
                fulls |= full[j] | 1 << j
        run[i], full[i], released[i] = runs, fulls | frees, frees
        yield i, runs, fulls | frees
        for j in drop[i]:
            del run[j], full[j], released[j]


def _groups(trace: Trace) -> Iterator[list[int]]:
    """Yield the events among which the order matters."""
    for table in (trace.signals, trace.waits):
        yield from table.values()
    for uses in (trace.releases, trace.acquires):
        yield from uses.values()
    for queue in trace.pushes.values():
        yield [push for push, _ in queue]
    for packet, writers in trace.writers.items():
        if len(writers) > 1:
            yield sorted({*writers, *trace.readers.get(packet, [])})


def _before(trace: Trace, later: Later) -> dict[int, set[int]]:
    mates: dict[int, set[int]] = defaultdict(set)
    for group in _groups(trace):
        for one in group:
            mates[one].update(other for other in group if other < one)
    return {
        i: {j for j in mates[i] if runs >> j & 1}
        for i, runs, _ in _walk(trace, later)
        if i in mates
    }


def _certain(plan: Plan, trace: Trace, before: dict[int, set[int]]) -> tuple[Later, list[str]]:
    later: Later = defaultdict(list)
    unsure = []
    for channel, waits in trace.waits.items():
        unsure += [
            f"race: {trace.events[i].name} and {trace.events[j].name} count in no order"
            for place, i in enumerate(waits)
            for j in waits[:place]
            if j not in before[i]
        ]
        _count(trace, trace.signals.get(channel, []), waits, 0, before, later)
    for semaphore, acquires in trace.acquires.items():
        releases = trace.releases.get(semaphore, [])
        _count(trace, releases, acquires, plan.semaphores[semaphore], before, later)
    for queue in trace.pushes.values():
        for place, (push, entry) in enumerate(queue):
            for past, done in queue[:place]:
                if past in before[push]:
                    for i in entry:
                        later[i] += [(j, True) for j in done]
    for packet, readers in trace.readers.items():
        for reader in readers:
            for writer in _certain_writers(trace.writers.get(packet, []), reader, before):
                later[reader].append((writer, False))
    return dict(later), _few(unsure)


def _count(
    trace: Trace,
    givers: list[int],
    takers: list[int],
    stock: int,
    before: dict[int, set[int]],
    later: Later,
) -> None:
    """Order each taker after the givers that are certain to be among the first that it counts."""
    latest = {j: len(givers) - sum(j in before[i] for i in givers) for j in givers}
    for taker in takers:
        number = 1 + sum(other in before[taker] for other in takers) - stock
        for giver in givers:
            if latest[giver] <= number:
                is_full = not trace.events[giver].relaxed and not trace.events[taker].relaxed
                later[taker].append((giver, is_full))
        # The first so many are among those that have fewer before them: what is before more of
        # these than may be left out is before the taker.
        able = [giver for giver in givers if len(before[giver]) < number]
        fences = Counter(trace.events[giver].fence for giver in able)
        later[taker] += [
            (fence, True) for fence, shared in fences.items()
            if fence >= 0 and shared > len(able) - number
        ]  # fmt: skip


def _certain_writers(writers: list[int], reader: int, before: dict[int, set[int]]) -> Iterator[int]:
    """Yield the writers of a packet that its reader comes after, whichever of them it saw."""
    if len(writers) == 1:
        if writers[0] != reader:
            yield writers[0]
        return
    seen = [one for one in writers if one != reader and reader not in before[one]]
    for one in seen:
        if all(one == other or one in before[other] for other in seen):
            yield one


# What is wrong.


def _balance(plan: Plan) -> Iterator[str]:
    sent: Counter[Channel] = Counter()
    awaited: Counter[Channel] = Counter()
    stock: Counter[tuple[int, int]] = Counter()
    for (rank, _), steps in plan.programs.items():
        for step in steps:
            told = [loop.channel for loop in step.loops if loop.channel and step.signals]
            told += step.channels if step.kind == "signal" else []
            for channel in told:
                partner = plan.partners[channel]
                if partner is None:
                    yield f"balance: {step.name} signals on a channel that its peer does not list"
                else:
                    sent[partner] += 1
            if step.kind == "wait":
                awaited.update(step.channels)
            if step.kind in {"release", "acquire"}:
                change = 1 if step.kind == "release" else -1
                for number in step.numbers:
                    stock[rank, number] += change
    for channel in sorted({*sent, *awaited}):
        if sent[channel] != awaited[channel]:
            yield (
                f"balance: channel {channel} has {sent[channel]} signals and "
                f"{awaited[channel]} waits in a call"
            )
    for semaphore, rest in sorted(stock.items()):
        if rest:
            yield f"balance: semaphore {semaphore} ends a call {rest} above where it began"


def _twice_written(trace: Trace) -> list[str]:
    lines = []
    for packet in trace.readers:
        names = [trace.events[one].name for one in trace.writers.get(packet, [])]
        if len(names) > 1:
            lines.append(f"packet: written twice, by {' and by '.join(names)}")
    return lines


@dataclass(frozen=True, slots=True)
class Access:
    """One access to a cell: which event, how, and of a read the writes that it has surely seen."""

    event: int
    is_write: bool
    packet: bool
    seen: frozenset[int] = frozenset()


def _races(trace: Trace, later: Later) -> list[str]:
    """Compare each access with all earlier ones to the same cell."""
    lines: dict[tuple[str, str, str], str] = {}
    accesses: dict[Cell, list[Access]] = defaultdict(list)
    for i, runs, full in _walk(trace, later):
        event = trace.events[i]
        for is_write, operands in ((False, event.reads), (True, event.writes)):
            for operand in operands:
                for where in operand.cells:
                    now = accesses[where]
                    seen = set()
                    for past in now:
                        j = past.event
                        if j == i or not (is_write or past.is_write):
                            continue
                        arrives = operand.packet and past.packet and not is_write
                        if (runs if arrives or not past.is_write else full) >> j & 1:
                            seen.add(j)
                            continue
                        # A write that somebody has seen is over: one that runs later comes after.
                        over = any(j in one.seen and runs >> one.event & 1 for one in now)
                        if not (is_write and past.is_write and over):
                            other = trace.events[j]
                            key = other.name, event.name, where[1]
                            lines.setdefault(
                                key,
                                f"race: {other.name} (call {other.call}) and {event.name} (call "
                                f"{event.call}) at {where}: "
                                f"{'write' if past.is_write else 'read'} and "
                                f"{'write' if is_write else 'read'}",
                            )
                    read = frozenset() if is_write else frozenset(seen)
                    now.append(Access(i, is_write, operand.packet, read))
    return list(lines.values())


def _results(plan: Plan, trace: Trace) -> list[str]:
    if not plan.judged:
        return []
    rooted = plan.collective in {"broadcast", "reduce"}
    wrong: dict[int, list[str]] = {root: [] for root in range(plan.ranks if rooted else 1)}
    memory: dict[Cell, tuple[Value, int]] = {}
    for event in trace.events:
        if event.user is None:
            value = _sum([_read(memory, operand) for operand in event.reads])
            for operand in event.writes:
                for place, where in enumerate(operand.cells):
                    memory[where] = value, place + operand.packet
            continue
        for root, lines in wrong.items():
            lines += _differences(plan, event, event.user, root, memory)
        for unit, operand in enumerate(event.writes):
            memory[operand.cells[0]] = (((event.call, event.user, unit), 1),), 0
    return min(wrong.values(), key=len)


def _read(memory: dict[Cell, tuple[Value, int]], operand: Operand) -> Value:
    """Return what is in memory; what was written in another layout is nothing."""
    found = [memory.get(where, (None, -1)) for where in operand.cells]
    if [place for _, place in found] != [place + operand.packet for place in range(len(found))]:
        return None
    return found[0][0] if len({value for value, _ in found}) == 1 else None


def _sum(values: list[Value]) -> Value:
    total: Counter[tuple[int, int, int]] = Counter()
    for value in values:
        if value is None:
            return None
        total.update(dict(value))
    return tuple(sorted(total.items()))


def _differences(
    plan: Plan, event: Event, rank: int, root: int, memory: dict[Cell, tuple[Value, int]]
) -> Iterator[str]:
    if not event.call:
        return
    for unit, operand in enumerate(event.reads):
        inputs = _wanted(plan, rank, unit, root)
        if inputs is None:
            continue
        wanted = tuple(sorted(((event.call - 1, *one), 1) for one in inputs))
        value = _read(memory, operand)
        if value != wanted:
            category = "undefined" if value is None else "result"
            yield (
                f"{category}: rank {rank} output chunk {unit // plan.grain} of call "
                f"{event.call - 1} is the sum of {value}, not of {wanted}"
            )


def _wanted(plan: Plan, rank: int, unit: int, root: int) -> list[tuple[int, int]] | None:
    """Return the (rank, grain of the input) whose sum an output is; None: anything will do."""
    ranks = range(plan.ranks)
    size = plan.inputs[rank] * plan.grain
    match plan.collective:
        case "allgather":
            return [divmod(unit, size)]
        case "reducescatter":
            return [(q, rank * plan.outputs[rank] * plan.grain + unit) for q in ranks]
        case "alltoall":
            q, rest = divmod(unit, size // plan.ranks)
            return [(q, rank * (size // plan.ranks) + rest)]
        case "broadcast":
            return [(root, unit)]
        case "reduce" if rank != root:
            return None
        case _:
            return [(q, unit) for q in ranks]
