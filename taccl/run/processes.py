"""Ranks as processes of one machine, whose connections and buffers lie in memory they share.

The memory has no name, so nothing of it is left behind however a process ends. Layout: a word that
ends all, a gate where ranks meet, a bell a rank; then the connections, each with its counters, the
lengths and the slots of its messages; then what each rank runs and its buffers, which the parent
sees, too: it fills inputs, checks outputs, and tells of a standstill who waits for whom.

A rank ends with its parent (``PR_SET_PDEATHSIG``), and the parent ends all ranks when one ends.
"""

import ctypes
import mmap
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, Self, cast

import numpy as np

from taccl.errors import ProgramError, RunError
from taccl.replay.compile import ROUTED
from taccl.replay.compile import Connection as Line
from taccl.replay.interpreter import Standstill, Wait, deadlock
from taccl.run import loop, words
from taccl.run.job import DTYPES, VERIFY, Bytes, Call, Job, Ran, fill, reference, wrong_elements
from taccl.run.loop import RankPlan, Wire, message_bytes, plan_of, rank_of, wires_of
from taccl.timing.deadline import Deadline
from taccl.timing.jit import jit, report_compilation

LINE = 64
"""Bytes between words that different processes write."""

MAX_SHARED = 1 << 36
"""Bytes of memory that all ranks may have together, above which a call is refused."""

SPINS = 2000
"""Looks of a rank that has a processor to itself before it gives way."""


@cache
def compiled() -> Callable[..., int]:
    """Return :func:`taccl.run.loop.run_calls` as machine code, compiled or from the cache.

    It is called once, with nothing to do, so that no rank compiles.
    """
    made = jit(loop.run_calls, (loop, words), "run")

    def run(rank: loop.Rank, calls: int, patience: int, gate: int = 0, goal: int = 0) -> int:
        with report_compilation(_tell, "taccl: compiling the event loop; once on this machine"):
            return int(made(rank, calls, patience, gate, goal))

    none = np.zeros((0, 1), np.int64)
    run(loop.Rank(none, none, none, none, np.zeros(loop.CONTROLS, np.int64), none), 0, 0)
    return run


def _tell(message: str) -> None:
    os.write(2, f"{message}\n".encode())


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where everything of a call lies in the shared memory, in bytes.

    `counters`, which end at `counted`, `lengths`, `slots` of each connection, `rows` and `control`
    of each rank (what the parent looks at), its `log` and its `memory`. `stride` is of a slot;
    `size` is all together.
    """

    wires: dict[Wire, int]
    plans: tuple[RankPlan, ...]
    counters: list[int]
    counted: int
    lengths: list[int]
    slots: list[int]
    rows: list[int]
    control: list[int]
    log: list[int]
    memory: list[int]
    stride: int
    size: int


ABORT, GATE, BELLS = 0, LINE, 2 * LINE


def layout_of(job: Job, call: Call) -> Layout:
    """Return where a `call` of a `job` has everything."""
    program, model = job.program, job.model
    plans = tuple(
        plan_of(program, rank, call.size, in_place=call.in_place, model=model)
        for rank in range(program.num_ranks)
    )
    end = BELLS + LINE * program.num_ranks
    stride = message_bytes(program, call.size, model)
    stride += -stride % LINE

    def take(size: int) -> int:
        nonlocal end
        at, end = end, end + size + -size % LINE
        return at

    wires = {wire: number for number, wire in enumerate(wires_of(program))}
    held, counters = plans[0].cut.slots, [take(2 * LINE) for _ in wires]
    return Layout(
        wires, plans, counters, end, [take(8 * held) for _ in wires],
        [take(stride * held) for _ in wires],
        [take(plan.blocks.nbytes) for plan in plans], [take(8 * loop.CONTROLS) for _ in plans],
        [take(8 * loop.LOG_FIELDS * call.logged) for _ in plans],
        [take(plan.memory.size) for plan in plans], stride, end,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The memory that all ranks share, as bytes and as an address."""

    bytes: Bytes
    address: int
    owner: mmap.mmap

    @classmethod
    def of(cls, size: int) -> "Shared":
        """Return new memory, all zero, which takes room only where it is touched."""
        owner = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        data = np.frombuffer(owner, np.uint8)
        return cls(data, data.ctypes.data, owner)

    def rows(self, at: int, shape: tuple[int, ...]) -> loop.Rows:
        """Return words from a place on, as rows."""
        count = int(np.prod(shape)) * 8
        return self.bytes[at : at + count].view(np.int64).reshape(shape)


def _rank(shared: Shared, layout: Layout, call: Call, rank: int, spins: int) -> loop.Rank:
    """Return what a rank runs, its rows in the shared memory."""
    plan, base = layout.plans[rank], shared.address
    ends = np.zeros((len(plan.ends), loop.CONNECTION_FIELDS), np.int64)
    for row, (wire, out) in zip(ends, plan.ends, strict=True):
        number = layout.wires[wire]
        other = wire.dst if out else wire.src
        row[:] = (
            base + layout.counters[number], base + layout.counters[number] + LINE,
            base + layout.lengths[number], base + layout.slots[number],
            shared.rows(layout.counters[number] + (0 if out else LINE), (1,))[0],
            0 if other == rank else base + BELLS + LINE * other,
        )  # fmt: skip
    control = shared.rows(layout.control[rank], (loop.CONTROLS,))
    control[:] = 0
    for field_, value in (
        (loop.SLOTS, plan.cut.slots), (loop.STRIDE, layout.stride), (loop.SPINS, spins),
        (loop.OWN_BELL, base + BELLS + LINE * rank), (loop.ABORT, base + ABORT),
        (loop.DTYPE, DTYPES[call.dtype].code),
    ):  # fmt: skip
        control[field_] = value
    made = rank_of(
        plan, base + layout.memory[rank], ends, control, np.zeros((0, loop.LOG_FIELDS), np.int64)
    )
    blocks = shared.rows(layout.rows[rank], plan.blocks.shape)
    blocks[:] = made.blocks
    return made._replace(blocks=blocks)


_PR_SET_PDEATHSIG = 1


def _serve(
    pipe: Connection, job: Job, calls: Sequence[Call], rank: int, shared: Shared, spins: int
) -> None:
    """Be a rank: run what the parent asks for, until it asks for no more or is gone.

    A request is the number of a call, how many measurements of it, of how many calls each, and
    whether to write down what is done; the answer is the state of the last one, and the times.
    """
    run, current = compiled(), -1
    made: loop.Rank | None = None
    layout: Layout | None = None
    while True:
        number, repeats, times, logs = pipe.recv()
        call = calls[number]
        if number != current or made is None or layout is None:
            layout = layout_of(job, call)
            current, made = number, _rank(shared, layout, call, rank, spins)
        log = shared.rows(layout.log[rank], (call.logged if logs else 0, loop.LOG_FIELDS))
        status, found = loop.FINISHED, []
        made.control[loop.LOGGED] = 0
        for repeat in range(1, repeats + 1):
            goal = repeat * job.program.num_ranks
            status = run(made._replace(log=log), times, -1, shared.address + GATE, goal)
            found.append((int(made.control[loop.STARTED]), int(made.control[loop.ENDED])))
            if status != loop.FINISHED:
                break
        pipe.send((status, found))


def start_rank(body: Callable[[Connection], None], others: Sequence[Connection]) -> "Started":
    """Start a process that is a rank: it runs a `body` with a pipe to this process, and ends.

    It ends with this process, too, and never reads the `others`, pipes to ranks started before.
    """
    ours, theirs = Pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # A rank holds no lock that another thread of this process may have at the moment.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        theirs.close()
        return Started(pid, ours)
    status = 1
    try:
        for pipe in (*others, ours):
            pipe.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            body(theirs)
        status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0
    finally:
        if status:
            # Nothing above a rank can tell it.
            os.write(2, f"taccl: a rank ended: {sys.exception()!r}\n".encode())
        os._exit(status)


class Started(NamedTuple):
    """A process that is a rank: its number, 0 once it is known to have ended, and a pipe to it."""

    pid: int
    pipe: Connection


def end_ranks(ranks: Iterable[Started]) -> None:
    """End processes, whatever they do, and wait until they have."""
    for rank in ranks:
        rank.pipe.close()
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(rank.pid, 0)


def how_ended(rank: Started) -> str:
    """Return how a process that is gone ended, in words."""
    try:
        _, status = os.waitpid(rank.pid, 0)
    except ChildProcessError:
        return "is gone"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


class Group:
    """The ranks of a program as processes, from when it is entered until it is left.

    `job` is what they run, with `calls`.

    Raises ProgramError when they need more memory than there is.
    """

    def __init__(self, job: Job, calls: Sequence[Call]) -> None:
        self.job, self.calls = job, calls
        self.layouts = [layout_of(job, call) for call in calls]
        most = max((layout.size for layout in self.layouts), default=LINE)
        room = min(MAX_SHARED, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 9 // 10)
        if most > room:
            raise ProgramError(
                f"{job.program.num_ranks} ranks need {most >> 20} MiB of memory together, of which"
                f" at most {room >> 20} are taken here", fix="run smaller sizes",
            )  # fmt: skip
        self.shared = Shared.of(most)
        self.ranks: list[Started] = []

    def __enter__(self) -> Self:
        """Start the ranks."""
        compiled()
        count = self.job.program.num_ranks
        spins = SPINS if (os.cpu_count() or 1) >= count else 0
        for number in range(count):
            body = partial(
                _serve, job=self.job, calls=self.calls, rank=number, shared=self.shared, spins=spins
            )
            self.ranks.append(start_rank(body, [rank.pipe for rank in self.ranks]))
        return self

    def __exit__(self, *_: object) -> None:
        """End all ranks."""
        self.shared.rows(ABORT, (1,))[0] = 1
        end_ranks(self.ranks)

    def run(self, number: int, repeats: int, times: int, *, logged: bool = False) -> list[int]:
        """Run a call, and return the nanoseconds of each measurement.

        `number`: of the call.
        `repeats`: measurements.
        `times`: calls in each of them.
        `logged`: whether ranks write down what they do.

        Raises RunError when a rank ends, or all wait for one another.
        """
        shared = self.shared
        if repeats:
            shared.rows(GATE, (1,))[0] = 0
        pipes = [rank.pipe for rank in self.ranks]
        for rank, pipe in enumerate(pipes):
            try:
                pipe.send((number, repeats, times, logged))
            except OSError:
                raise self._gone(rank) from None
        layout, answers = self.layouts[number], dict[int, tuple[int, list[tuple[int, int]]]]()
        controls = [shared.rows(at, (loop.CONTROLS,)) for at in layout.control]
        before, deadline = -1, Deadline.after(self.job.patience)
        while len(answers) < len(pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in answers}
            for ready in wait(list(waiting), timeout=0.2):
                pipe = cast("Connection", ready)
                rank = waiting[pipe]
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise self._gone(rank) from None
                if answers[rank][0] == loop.WRONG_LENGTH:
                    wanted, found = (
                        int(controls[rank][at]) for at in (loop.LENGTH_WANTED, loop.LENGTH_FOUND)
                    )
                    raise RunError(
                        f"rank {rank} should receive {wanted} bytes, and the message has {found}",
                        fix=VERIFY,
                    )
            progress = sum(int(control[loop.PROGRESS]) for control in controls) + len(answers)
            if progress != before:
                before, deadline = progress, Deadline.after(self.job.patience)
            elif deadline.over:
                rows = [
                    shared.rows(at, plan.blocks.shape)
                    for at, plan in zip(layout.rows, layout.plans, strict=True)
                ]
                raise RunError(waits_told(self.job, layout.plans, rows), fix=VERIFY)
        pairs = zip(*(found for _, found in answers.values()), strict=True)
        return [max(end for _, end in each) - min(begin for begin, _ in each) for each in pairs]

    def _gone(self, rank: int) -> RunError:
        """Return what to say of a rank that has ended."""
        how = how_ended(self.ranks[rank])
        return RunError(f"rank {rank} {how}, and the others with it", fix="run it again")

    def lost(self, number: int) -> int:
        """Return how many messages of the call of that `number` nobody took."""
        pairs = [self.shared.rows(at, (2 * LINE // 8,)) for at in self.layouts[number].counters]
        return sum(int(pair[0] - pair[LINE // 8]) for pair in pairs)

    def memories(self, number: int) -> list[Bytes]:
        """Return the memory of each rank in the call of that `number`."""
        layout = self.layouts[number]
        return [
            self.shared.bytes[at : at + plan.memory.size]
            for at, plan in zip(layout.memory, layout.plans, strict=True)
        ]

    def logs(self, number: int) -> tuple[loop.Rows, ...]:
        """Return what ranks wrote down in the call of that `number`."""
        layout, call = self.layouts[number], self.calls[number]
        found = []
        for at, control in zip(layout.log, layout.control, strict=True):
            used = int(self.shared.rows(control, (loop.CONTROLS,))[loop.LOGGED])
            found.append(self.shared.rows(at, (call.logged, loop.LOG_FIELDS))[:used].copy())
        return tuple(found)


def run_processes(job: Job, calls: Sequence[Call]) -> Iterator[Ran]:
    """Run a program with a process a rank that share memory, and yield what becomes of each call.

    `job`: what is run.
    `calls`: how, one after the other.

    Raises RunError when a rank ends, or all wait for one another; ProgramError when the program
    can't be run at a size.
    """
    if not calls:
        return
    with Group(job, calls) as group:
        for number, call in enumerate(calls):
            memories, layout = group.memories(number), group.layouts[number]
            for rank, (memory, plan) in enumerate(zip(memories, layout.plans, strict=True)):
                fill(memory, plan.memory, call.dtype, rank)
            group.shared.bytes[BELLS : layout.counted] = 0
            group.run(number, 1, 1)
            if lost := group.lost(number):
                raise RunError(f"{lost} messages were sent that nobody received", fix=VERIFY)
            wanted = reference(job, call, layout.plans)
            wrong = None if wanted is None else sum(
                wrong_elements(memory, plan.memory, chunks, call.dtype)
                for memory, plan, chunks in zip(memories, layout.plans, wanted, strict=True)
            )  # fmt: skip
            times = group.run(number, call.repeats, call.calls)
            if call.logged:
                group.run(number, 1, 1, logged=True)
            logs = group.logs(number) if call.logged else ()
            yield Ran(call, tuple(time / call.calls for time in times), wrong, logs)


def waits_told(job: Job, plans: Sequence[RankPlan], rows: Sequence[loop.Rows]) -> str:
    """Return that a `job` hangs, and who waits for whom from the first threadblock that waits on.

    `plans` are what each rank runs, and `rows` how far its threadblocks are.
    """
    first = np.cumsum([0, *(len(each) for each in rows)]).tolist()
    wires = {wire: number for number, wire in enumerate(wires_of(job.program))}
    senders, receivers = [-1] * len(wires), [-1] * len(wires)
    ends, inbound, outbound, waits = [], [], [], {}
    for rank, (plan, own) in enumerate(zip(plans, rows, strict=True)):
        for index, row in enumerate(own):
            block = first[rank] + index
            ends.append((rank, plan.ids[index]))
            sides = [
                -1 if row[side] < 0 else wires[plan.ends[row[side]][0]]
                for side in (loop.INBOUND, loop.OUTBOUND)
            ]
            inbound.append(sides[0])
            outbound.append(sides[1])
            for numbers, number in ((receivers, sides[0]), (senders, sides[1])):
                if number >= 0:
                    numbers[number] = block
            if row[loop.STATE] == loop.DONE:
                continue
            step, need = plan.steps[row[loop.STEP]], None
            if row[loop.STATE] == loop.NEEDS and step[loop.NEEDS_FROM] < step[loop.NEEDS_TO]:
                awaited, position = plan.needs[step[loop.NEEDS_FROM] + row[loop.NEED]].tolist()
                need = (first[-1] if awaited < 0 else first[rank] + awaited, position)
            receives = row[loop.STATE] == loop.RECEIVES_FROM
            waits[block] = Wait(int(step[loop.POSITION]), need, bool(receives))
    links = tuple(Line(*wire, link=ROUTED, alpha=0, overhead=0, held=()) for wire in wires)
    told = deadlock(Standstill(ends, links, inbound, outbound, senders, receivers, waits))
    return f"nothing has happened for {job.patience:g} s: {told}"
