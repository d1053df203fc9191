"""Programs at many sizes: the rows that every table of results is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from taccl.bounds import POINT_TO_POINT, any_curves, program_curves
from taccl.collectives import COLLECTIVES, Collective, build_collective, busbw_factor
from taccl.errors import NoScheduleError
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel, floor_networks
from taccl.replay.interpreter import Trace
from taccl.replay.timing import traces
from taccl.topology.graph import Topology, whole
from taccl.units import Time, format_size, gigabytes_per_second, microseconds

BoundAt = Callable[[int], tuple[str, Time] | None]
"""From a size to the kind and time of the best bound for every algorithm."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What a scenario makes of a result, whose time is then the mean of all runs.

    `scenario` is its name, `plain` picoseconds without it, `p50` and `p99` those of the `runs`,
    where something is drawn at random; `other` is the mean of the slowest other program, from
    its own start. `background` has the picoseconds that half and 99 % of the messages of others do
    not exceed, from when they are due to when they are there.
    """

    scenario: str
    plain: Time | None = None
    p50: Time | None = None
    p99: Time | None = None
    runs: int = 1
    other: Time | None = None
    background: tuple[Time | None, Time | None] = (None, None)

    def columns(self) -> dict[str, str | int | float | None]:
        """Return the columns as JSON and CSV name them."""
        times = {
            "plain_us": self.plain, "p50_us": self.p50, "p99_us": self.p99, "other_us": self.other,
            "background_p50_us": self.background[0], "background_p99_us": self.background[1],
        }  # fmt: skip
        return {
            "scenario": self.scenario or None,
            "runs": self.runs if self.scenario else None,
            **{name: None if time is None else microseconds(time) for name, time in times.items()},
        }


NOT_DISTURBED = Disturbed("")


@dataclass(frozen=True, slots=True)
class Row:
    """One result: a program (or an engine's schedule) at one size.

    `file`, `program`, `engine`: where it comes from; empty where unknown.
    `collective`, `topology`, `ranks`, `alpha_rule`: what was run where.
    `size`: bytes of the buffer that nccl-tests counts.
    `time`: picoseconds; None: it can't run at this size, and ``note`` says why.
    `bound`, `bound_kind`: the best lower bound for every algorithm, if known.
    `bottleneck`, `utilisation`: the edge that was held longest, and for which part of the time.
    `in_place`, `out_of_place`: the modes it serves.
    `wrong`: what the verifier found, for ``#wrong``; None: not verified.
    `note`: anything else the reader should know.
    `costs`: the profile, on a machine with measured costs, or how those of an imported topology
    were taken; None: they are its own.
    `disturbed`: what a scenario makes of it; None: nothing disturbs it.
    """

    collective: str
    topology: str
    ranks: int
    size: int
    time: Time | None
    file: str = ""
    program: str = ""
    engine: str = ""
    alpha_rule: str = ""
    bound: Time | None = None
    bound_kind: str = ""
    bottleneck: str = ""
    utilisation: float | None = None
    in_place: bool = True
    out_of_place: bool = False
    wrong: int | None = None
    note: str = ""
    costs: str | None = None
    disturbed: Disturbed | None = None

    @property
    def algbw(self) -> float | None:
        """Size by time in GB/s."""
        return None if not self.time else gigabytes_per_second(self.size, self.time)

    @property
    def busbw(self) -> float | None:
        """What the hardware's links carry, as nccl-tests counts, in GB/s."""
        algbw = self.algbw
        if algbw is None:
            return None
        return algbw * float(busbw_factor(self.collective, self.ranks))

    @property
    def gap(self) -> float | None:
        """Time over bound, less one."""
        return None if self.time is None or not self.bound else self.time / self.bound - 1

    @property
    def rules(self) -> str:
        """The alpha rule and how imported costs were taken, in words."""
        return f"{self.alpha_rule}, {self.costs} costs" if self.costs else self.alpha_rule

    def columns(self) -> dict[str, str | int | float | None]:
        """Return the columns as JSON and CSV name them."""
        return {
            "file": self.file,
            "program": self.program,
            "collective": self.collective,
            "topology": self.topology,
            "ranks": self.ranks,
            "engine": self.engine,
            "alpha_rule": self.alpha_rule,
            "costs": self.costs,
            "size_bytes": self.size,
            "time_us": None if self.time is None else microseconds(self.time),
            "algbw_gbps": self.algbw,
            "busbw_gbps": self.busbw,
            "bound_us": None if self.bound is None else microseconds(self.bound),
            "bound_kind": self.bound_kind,
            "gap": self.gap,
            "bottleneck": self.bottleneck,
            "utilisation": self.utilisation,
            "note": self.note,
            **(self.disturbed or NOT_DISTURBED).columns(),
        }


def sweep(
    programs: Sequence[tuple[str, Program]],
    topology: Topology,
    sizes: Sequence[int],
    model: ReplayModel,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> tuple[Row, ...]:
    """Replay programs, given with their file names, at all sizes.

    `programs` are file names and programs, `sizes` bytes of the counted buffer, and `model` has the
    runtime's constants; `topology`, `route` and `protocol_costs` are as for
    :func:`taccl.replay.interpreter.replay`.

    Raises ProgramError when a program does not fit the topology.
    """
    bounds: dict[tuple[str, int | None, int], BoundAt] = {}
    rows = []
    costs = topology.measured if model.measured else None
    for file, program in programs:
        most, _ = model.of_protocol(program.protocol)
        root = find_root(program)
        asked = (program.collective, root, most)
        if asked not in bounds:
            bounds[asked] = (
                bounds_of(topology, program.collective, root, routed=route, message_bytes=most)
                if costs is None
                else measured_bounds_of(
                    floor_networks(topology, costs), program.collective, root, routed=route
                )
            )
        found = traces(program, topology, sizes, model, route=route, protocol_costs=protocol_costs)
        made = [row_of(trace, program, topology, bounds[asked], file) for trace in found]
        if costs is not None:
            made = [replace(row, alpha_rule="measured", costs="measured") for row in made]
        elif topology.measured is not None:
            made = [replace(row, costs=row.costs or "alpha-beta") for row in made]
        rows += made
    return tuple(rows)


def measured_bounds_of(
    networks: Sequence[Topology], collective: str | Collective,
    root: int | None = None, *, routed: bool = False, world: str = POINT_TO_POINT,
) -> BoundAt:  # fmt: skip
    """Return the least of the best bounds of some `networks`, each with its launch.

    Of :func:`taccl.replay.cost.floor_networks` it is what no program with these costs takes less
    than. `collective`, `root`, `routed` and `world` are as for :func:`bounds_of`.
    """
    floors = [
        (least.local.launch, bounds_of(least, collective, root, routed=routed, world=world))
        for least in networks
    ]

    def at(size: int) -> tuple[str, Time] | None:
        found = [
            (one[0], launch + one[1])
            for launch, bound in floors
            if (one := bound(size)) is not None
        ]
        return min(found, key=lambda one: one[1]) if len(found) == len(floors) else None

    return at


class Named(Protocol):
    """What a row says of a program or plan."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def collective(self) -> str:
        """Return what it does."""

    @property
    def in_place(self) -> bool:
        """Return whether it serves calls in place."""

    @property
    def out_of_place(self) -> bool:
        """Return whether it serves calls out of place."""

    @property
    def min_bytes(self) -> int:
        """Return the smallest size that it is for, in bytes of the counted buffer."""

    @property
    def max_bytes(self) -> int:
        """Return the largest size that it is for, likewise."""


def row_of(trace: Trace, program: Named, topology: Topology, bound: BoundAt, file: str = "") -> Row:
    """Return the row of the replay ``trace`` of a ``program``, from ``file``, on a ``topology``.

    ``bound`` gives the best bound for a size.
    """
    found = bound(trace.size)
    edge, bottleneck, used = trace.busiest_edge, "", None
    if edge is not None and trace.time:
        bottleneck, used = topology.edges[edge].name, trace.edge_busy[edge] / trace.time
    notes = []
    if not trace.in_range:
        low, high = format_size(program.min_bytes), format_size(program.max_bytes)
        notes.append(f"outside the program's range of sizes, {low} to {high}")
    if trace.extrapolated:
        notes.append(f"{trace.extrapolated} iterations extrapolated, equal to those before them")
    return Row(
        program.collective, topology.name, topology.num_ranks, trace.size, trace.time,
        file=file, program=program.name, alpha_rule=topology.alpha_rule_stated,
        costs=topology.costs,
        bound=found[1] if found else None, bound_kind=found[0] if found else "",
        bottleneck=bottleneck, utilisation=used,
        in_place=program.in_place, out_of_place=program.out_of_place,
        note=trace.reason or "; ".join(notes),
    )  # fmt: skip


def bounds_of(
    topology: Topology,
    collective: str | Collective,
    root: int | None = None,
    *,
    routed: bool = False,
    message_bytes: int | None = None,
    world: str = POINT_TO_POINT,
) -> BoundAt:
    """Return the best bound for every algorithm, of a `world`, as a function of the size.

    It gives None for collectives without bounds, where ranks are not connected, and where a
    root should be known and is not. A routed message does not stop at the ranks between, so it can
    be on its last edge from the start, and reach any rank by any port: of the latencies only the
    distance holds for it, and no reach.

    `collective` is a name, or what a file defines; `root` is a rank. With `routed`, pairs of the
    `topology` without a link send through other ranks. `message_bytes` is the largest message of a
    program, for bounds that hold for programs; not for routed ones.
    """
    if isinstance(collective, str):
        kind = COLLECTIVES.get(collective)
        if kind is None or kind.has_root != (root is not None):
            return lambda _: None
        collective = build_collective(collective, topology.num_ranks, 1, root)
    try:
        curves = any_curves(whole(topology), collective, world)
    except NoScheduleError:
        return lambda _: None
    if routed:
        kept = [
            c
            for c in curves
            if c.kind not in ("reach", "rounds") and (c.kind != "latency" or c.is_flat)
        ]
        curves = tuple(kept)
    elif message_bytes is not None:
        curves += program_curves(whole(topology), collective, message_bytes)

    def at(size: int) -> tuple[str, Time]:
        return max(((c.kind, c.at(size)) for c in curves), key=lambda found: found[1])

    return at
