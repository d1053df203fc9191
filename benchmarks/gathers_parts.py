"""The parts of the gather benchmark: rows, what each prints, and what it misses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from benchmarks.gathers_cases import (
    BANDWIDTHS,
    EXPONENT,
    FAMILIES,
    GATHERS,
    SMALLS,
    SUMS,
    Bandwidth,
    Gather,
    Machine,
    Small,
    Sum,
)
from benchmarks.gathers_runs import (
    CLASSICAL,
    COUNTS,
    best_of,
    classical,
    exponent,
    greedy,
    request,
    series,
    timed,
)
from taccl.units import Time

MB = 10**6

SEARCH = 10.0
"""Seconds for each chunk count where the best one is asked for."""

LARGE_SEARCH = 30.0
"""The same above 256 ranks."""

EACH_MB = 64
"""MB for each rank at which the gap to the bound for all algorithms is told."""

HUGE = 100 * 10**9

STARTS = ("latency", "reach", "port")
"""The bounds that small messages are compared with."""


@dataclass(frozen=True)
class Line:
    """One row of a table, and by how much it misses its targets."""

    cells: tuple[str, ...]
    misses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A table: its heading, the names of its columns, and its rows by name.

    Parameters
    ----------
    rows
        Makes a line, given what time limits are multiplied with.
    """

    heading: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Machine, Callable[[float], Line]]]


def micros(time: Time | None) -> str:
    """Return picoseconds as microseconds, or a dash."""
    return "-" if time is None else f"{time / 1e6:.2f}"


def times(other: Time | None, ours: Time) -> str:
    """Return how many times as long another takes, or a dash."""
    return "-" if other is None else f"{other / ours:.2f}"


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share, or a dash."""
    return "-" if value is None else f"{value:.{digits}%}"


def above(what: str, value: float | None, most: float, form: str = ".2%") -> list[str]:
    """Return what is to be said of a value that should be at most so much."""
    if value is None:
        return [f"{what} is not known"]
    return [f"{what} {value:{form}} > {most:{form}}"] if value > most else []


def gather_line(case: Gather, slow: float) -> Line:
    """Return a row of the main table."""
    logical = case.machine.load()
    ranks = logical.topology.num_ranks
    asked = request(logical, "allgather", ranks * MB, case.chunks, seconds=slow * case.seconds)
    run = timed(asked)
    found, ours = run.found, run.found.schedule.makespan
    large = replace(
        asked, size=EACH_MB * ranks * MB,
        time_limit=slow * (SEARCH if ranks <= 256 else LARGE_SEARCH),
    )  # fmt: skip
    best = best_of(series(large))
    fixed = found.bound_fixed
    cells = (
        case.machine.name, str(case.chunks), micros(ours), micros(fixed.time if fixed else None),
        percent(found.gap_fixed), f"{run.wall:.1f}", f"{run.cpu:.1f}",
        percent(best.gap), str(best.request.chunks),
        *(times(classical(asked, name), ours) for name in CLASSICAL),
        times(greedy(asked), ours),
    )  # fmt: skip
    misses = [
        *above("gap_fixed", found.gap_fixed, case.gap_fixed),
        *above("seconds", run.seconds, case.seconds, ".1f"),
        *above("gap at the best k", best.gap, case.gap),
    ]
    return Line(cells, tuple(misses))


def bandwidth_line(case: Bandwidth, slow: float) -> Line:
    """Return a row of the table of bandwidths."""
    asked = request(case.machine.load(), "allgather", HUGE, 1, seconds=slow * SEARCH)
    best = best_of(series(asked, enough=(1 / case.part - 1) / 2))
    bound = HUGE * 1000 / best.bound.time
    part = best.algbw / bound
    misses = [] if part >= case.part else [f"{part:.1%} of the bound < {case.part:.0%}"]
    if f"{bound:#.4g}" != case.bound:
        misses.append(f"bound {bound:#.4g} GB/s, not {case.bound}")
    cells = (
        case.machine.name, case.bound, f"{bound:#.4g}", best.bound.kind, f"{best.algbw:#.4g}",
        percent(part, 1), str(best.request.chunks),
    )  # fmt: skip
    return Line(cells, tuple(misses))


def small_line(case: Small, slow: float) -> Line:
    """Return a row of the table of small messages."""
    logical = case.machine.load(case.rule)
    size = 1000 * logical.topology.num_ranks
    asked = request(logical, "allgather", size, 1, seconds=slow * 2 * SEARCH, batch=True)
    run = timed(asked)
    ours = run.found.schedule.makespan
    bound = max(one.time for one in run.found.bounds if one.kind in STARTS)
    others = {name: classical(asked, name) for name in CLASSICAL[:2]}
    # One rule has the target, both are told.
    misses = above("ratio", ours / bound, case.ratio, ".3f") if case.rule == "occupy" else []
    for name, other in others.items():
        if other is not None and ours > other:
            misses.append(f"{name} is {ours / other:.3f} times as fast")
    cells = (
        case.machine.name, case.rule, micros(ours), micros(bound), f"{ours / bound:.3f}",
        *(micros(other) for other in others.values()), f"{run.wall:.1f}",
    )  # fmt: skip
    return Line(cells, tuple(misses))


def sum_line(case: Sum, slow: float) -> Line:
    """Return a row of the table of allreduces."""
    engines = ("guided", "taccl")
    counts = (case.chunks,) if case.chunks else COUNTS
    asked = request(
        case.machine.load(), "allreduce", case.megabytes * MB, 1, seconds=slow * 4 * SEARCH,
        batch=case.batch,
    )  # fmt: skip
    half = replace(asked, time_limit=slow * SEARCH)  # the sum looks for both, and for more
    halves = [
        best_of(series(replace(half, collective=name), enough=0.005, counts=counts))
        for name in ("reducescatter", "allgather")
    ]
    enough = 0.005 if case.gap is None else case.gap / 2
    best = best_of(series(asked, engines, enough, counts))
    total = sum(one.schedule.makespan for one in halves)
    ours, bound = best.schedule.makespan, best.bound
    fixed = best.bound_fixed if case.chunks else None
    proved = max(bound.time, fixed.time if fixed else 0) / total
    target = case.ratio if proved <= case.ratio else 1.0
    misses = above("ratio to the sum", ours / total, target, ".4f")
    misses += [] if case.gap is None else above("gap", best.gap, case.gap)
    count = f"{best.request.chunks}{'' if case.chunks else ', best'}"
    cells = (
        case.title, str(case.megabytes), micros(ours), count, best.result.engine,
        micros(total), f"{ours / total:.4f}", f"{proved:.4f}",
        f"{case.ratio}{' is impossible' if target > case.ratio else ''}", bound.kind,
        percent(best.gap),
    )  # fmt: skip
    return Line(cells, tuple(misses))


def growth_line(family: Sequence[Machine], slow: float) -> Line:
    """Return a row of the table of seconds against sends."""
    points: list[tuple[int, float]] = []
    for machine in family:
        logical = machine.load()
        size = logical.topology.num_ranks * MB
        asked = request(logical, "allgather", size, 1, seconds=slow * LARGE_SEARCH)
        run = timed(asked)
        points.append((run.found.schedule.num_sends, run.seconds))
    grown = exponent(points)
    cells = (
        f"{family[0].name} to {family[-1].name}",
        *(f"{sends} sends: {seconds:.2f} s" for sends, seconds in points), f"{grown:.2f}",
    )  # fmt: skip
    return Line(cells, tuple(above("exponent", grown, EXPONENT, ".2f")))


PARTS: Mapping[str, Part] = MappingProxyType({
    "table": Part(
        "1 MB a rank, one chunk to a message",
        (
            "machine", "k", "makespan us", "fixed bound us", "gap_fixed", "seconds", "CPU s",
            "gap at 64 MB", "best k", *CLASSICAL, "greedy",
        ),
        {
            f"{case.machine.name} k={case.chunks}": (
                case.machine, partial(gather_line, case)
            )
            for case in GATHERS
        },
    ),
    "bandwidth": Part(
        "100 GB in all: bandwidth",
        ("machine", "expected GB/s", "bound GB/s", "kind", "algbw GB/s", "of the bound", "best k"),
        {
            case.machine.name: (
                case.machine, partial(bandwidth_line, case)
            )
            for case in BANDWIDTHS
        },
    ),
    "small": Part(
        "1 KB a rank, batches allowed",
        (
            "machine", "alpha rule", "makespan us", "max(latency, reach, port) us", "ratio",
            "ring us", "recursive doubling us", "seconds",
        ),
        {
            f"{case.machine.name} {case.rule}": (
                case.machine, partial(small_line, case)
            )
            for case in SMALLS
        },
    ),
    "allreduce": Part(
        "AllReduce against ReduceScatter plus AllGather",
        (
            "machine", "MB", "makespan us", "k", "engine", "the sum us", "ratio",
            "proved ratio", "target", "bound", "gap",
        ),
        {
            f"{case.title} {case.megabytes}MB k={case.chunks or 'any'}": (
                case.machine, partial(sum_line, case)
            )
            for case in SUMS
        },
    ),
    "growth": Part(
        "Seconds against sends",
        ("machines", "64 ranks", "256 ranks", "1024 ranks", "exponent"),
        {
            f"growth {family[0].name}": (
                family[0], partial(growth_line, family)
            )
            for family in FAMILIES
        },
    ),
})  # fmt: skip
