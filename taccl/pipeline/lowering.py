"""From a schedule to the program that is written: lowered, scored by replay, judged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from taccl.collectives import COLLECTIVES, Collective
from taccl.errors import LoweringError, ScheduleError
from taccl.msccl.dependencies import ORDERS
from taccl.msccl.interpret import judge, largest_safe_size
from taccl.msccl.lower import LowerOptions, lower, modes_served
from taccl.msccl.program import Program
from taccl.msccl.runtimes import RUNTIMES
from taccl.schedule import Schedule
from taccl.sim.cost import model_of
from taccl.sim.timing import traces
from taccl.units import MAX_SIZE, Time


@dataclass(frozen=True)
class Target:
    """What program is wanted.

    Parameters
    ----------
    runtime
        A name of RUNTIMES.
    protocol
        ``Simple``, ``LL`` or ``LL128``.
    modes
        ``auto`` (what one program serves at no cost), ``inplace``, ``outofplace`` or ``both``.
    instances, channels
        Copies of the program; the most channels.
    min_bytes, max_bytes
        The size range; None: from a quarter of the size to four times it.
    element_bytes
        Bytes of an element.
    """

    runtime: str = "portable"
    protocol: str = "Simple"
    modes: str = "auto"
    instances: int = 1
    channels: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    element_bytes: int = 4

    def within(self, channels: int | None) -> "Target":
        """Return the target with no more channels than a sketch allows."""
        given = [limit for limit in (self.channels, channels) if limit is not None]
        return replace(self, channels=min(given, default=None))

    def divisor(self, chunks: int) -> int:
        """Return what the bytes of a buffer of so many chunks must be a multiple of."""
        return chunks * self.instances * self.element_bytes

    def whole_size(self, size: int, chunks: int) -> int:
        """Return the largest size up to ``size`` that cuts into whole chunks of elements."""
        return size - size % self.divisor(chunks)

    def claimed(self, schedule: Schedule) -> tuple[bool, bool]:
        """Return (in place, out of place): the modes to be served."""
        if self.modes == "auto":
            return modes_served(schedule.collective)
        return self.modes != "outofplace", self.modes != "inplace"


@dataclass(frozen=True, eq=False)
class Lowering:
    """A schedule's programs for one target, at one size.

    Parameters
    ----------
    schedule
        What is lowered.
    target
        For what.
    size
        Bytes, a multiple of ``target.divisor``.
    name
        The program's label.
    """

    schedule: Schedule
    target: Target
    size: int
    name: str

    @cached_property
    def best(self) -> tuple[Program, Time]:
        """The fastest program by replay, with its time in picoseconds.

        Raises
        ------
        LoweringError
            When no program fits the runtime.
        """
        found: list[tuple[Time, int, Program]] = []
        refused: LoweringError | None = None
        for number, (order, slots) in enumerate(self._ways()):
            try:
                program = lower(self.schedule, self._options(order, slots))
            except LoweringError as error:
                refused = refused or error
                continue
            time = self.replay(program)
            if time is not None:
                found.append((time, number, program))
                if time <= self.schedule.makespan:
                    break
        if not found:
            raise refused or LoweringError(
                f"no program for {self.target.runtime} runs at {self.size} bytes",
                fix="use another size or protocol",
            )
        time, _, program = min(found, key=lambda entry: entry[:2])
        return program, time

    def _ways(self) -> Iterator[tuple[str, int | None]]:
        """Yield the orders to try, each with all the connections that links need, then with one."""
        slots = RUNTIMES[self.target.runtime].fifo_slots[self.target.protocol]
        for order in ORDERS:
            yield order, None
            yield order, slots

    def _options(self, order: str, slots: int | None) -> LowerOptions:
        limits, target = RUNTIMES[self.target.runtime], self.target
        in_place, out_of_place = target.claimed(self.schedule)
        low = self.size // 4 if target.min_bytes is None else target.min_bytes
        high = min(self.size * 4, MAX_SIZE) if target.max_bytes is None else target.max_bytes
        return LowerOptions(
            name=self.name,
            protocol=target.protocol,
            in_place=in_place,
            out_of_place=out_of_place,
            instances=target.instances,
            channels=target.channels,
            min_bytes=low,
            max_bytes=high,
            order=order,
            slots=slots,
            max_steps=limits.max_steps,
            max_threadblocks=limits.max_threadblocks,
        )

    def replay(self, program: Program) -> Time | None:
        """Return what a program takes at the size, or None where it can't run."""
        model = model_of(self.target.runtime, self.target.element_bytes)
        topology = self.schedule.topology
        return next(traces(program, topology, [self.size], model)).time

    def proved(self) -> Program:
        """Return the best program, cut to the sizes it is safe at, after every judge agreed.

        Raises
        ------
        ScheduleError
            When a judge objects.
        LoweringError
            When no program fits the runtime, or the size range is empty.
        """
        program, _ = self.best
        runtime = self.target.runtime
        if program.min_bytes > program.max_bytes:
            raise LoweringError(
                f"the size range {program.min_bytes}..{program.max_bytes} is empty",
                fix="give --min-bytes below --max-bytes",
            )
        safe = largest_safe_size(program, runtime, program.min_bytes, program.max_bytes)
        if safe < program.max_bytes:
            if safe < program.min_bytes or safe <= 0:
                raise LoweringError(
                    f"the program deadlocks at every size of {program.min_bytes}.."
                    f"{program.max_bytes} bytes",
                    fix="lower --min-bytes, or use --batch none",
                )
            program = replace(program, max_bytes=safe)
        findings = judge(program, runtime, self._asked())
        if findings:
            raise ScheduleError(f"program {program.name}", findings)
        return program

    def _asked(self) -> Collective | None:
        """Return what the program should do; None where its name and chunk count say it."""
        collective = self.schedule.collective
        if collective.name in COLLECTIVES and collective.root is None:
            return None
        return collective.cut(self.target.instances)


def serves(runtime: str, collective: Collective) -> bool:
    """Tell whether a runtime has files for a collective."""
    kind = COLLECTIVES.get(collective.name)
    name = kind.xml_name if kind is not None else "custom"
    return name is not None and (kind is not None or name in RUNTIMES[runtime].collectives)


def program_name(topology: str, collective: str, engine: str, chunks: int) -> str:
    """Return the label that a program carries."""
    return f"{collective}-{topology}-{engine}-k{chunks}"
