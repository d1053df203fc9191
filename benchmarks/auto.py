"""Engine ``auto`` against every engine alone with a quarter of its time, and every algorithm.

``python -m benchmarks.auto [--machines dgx2] [--collectives allgather] [--sizes 1MB]`` runs
``auto`` with 60 seconds and each other engine with 15 on every shipped machine, and on random
problems, and ends with exit status 1 when one is faster, or ``auto`` takes longer than it may.
``--spread`` runs one collective for each machine and size, all of them in turn: a quarter of the
hours, with every machine, size and collective, and every two of these, still among the rows.
Where ``auto`` says that it is within 0.5 % of what nothing can beat, no other engine is run.
``--results FILE`` keeps the rows that were run, and those that it has are not run again;
``--limit-scale 0.1`` gives all a tenth of the time.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.listed import listed
from benchmarks.sections import replace_section
from taccl.apps import Request, Synthesis, load_network, synthesize
from taccl.collectives import COLLECTIVES
from taccl.errors import LoweringError, NoScheduleError
from taccl.synth.search import SEARCHES, is_enough
from taccl.synth.templates.classical import CLASSICAL
from taccl.topology.file import shipped_topologies
from taccl.units import Time, parse_size
from tests.generators import random_problem

SECONDS, QUARTER = 60.0, 15.0
"""For ``auto``, and for each engine alone."""

SIZES = ("1KB", "64KB", "1MB", "64MB", "1GB")

MAIN = ("allgather", "reducescatter", "allreduce", "alltoall")

RANDOM = 100
"""Random problems."""

HEAD = """## `auto` against its parts

Made by `python -m benchmarks.auto`: `auto` with --time-limit 60, every other engine and classical
algorithm with 15, both multiplied by *scale*, runtime `portable` (`none` for the random problems),
alpha rule `occupy`. *best other* is the fastest of them and its time; a dash: `auto` is within
0.5 % of what nothing can beat, and the others were not run. *ratio* is `auto` / best other; a star:
the program of `auto` moves fewer bytes than the other, as its chunks leave more of the size over.
Missed are rows in which another is faster, and those in which `auto` takes longer than its limit
and 5 % and a second. With `--spread` there is one collective for each machine and size.
"""

LATE, STARTING = 1.05, 1.0
"""Times the limit, and seconds more, that ``auto`` may take."""


@dataclass(frozen=True)
class Row:
    """One problem: times in picoseconds.

    Parameters
    ----------
    name
        Of the problem.
    scale
        What the time limits were multiplied by.
    engine, auto, bound, seconds
        What ``auto`` chose, its time, what nothing can beat, and how long it took.
    others
        Times by engine; empty where ``auto`` is close enough to the bound.
    cut
        Engines whose programs were replayed at fewer bytes, as more chunks leave more of the size
        over: their times are no smaller for the same bytes.
    short
        Engines whose programs were replayed at more bytes than that of ``auto``.
    limit
        Seconds that ``auto`` was given; 0: not known.
    """

    name: str
    scale: float
    engine: str
    auto: Time
    bound: Time
    seconds: float
    others: Mapping[str, Time]
    cut: Sequence[str] = ()
    short: Sequence[str] = ()
    limit: float = 0.0

    @property
    def key(self) -> str:
        """What tells rows apart: a problem may be run with several limits."""
        return f"{self.name} {self.scale:g}"

    @property
    def best(self) -> tuple[Time, str] | None:
        """The fastest of the others."""
        fair = ((time, name) for name, time in self.others.items() if name not in self.cut)
        return min(fair, default=None)

    @property
    def missed(self) -> bool:
        """Whether another engine is faster, and ``auto`` not at the bound, or takes too long."""
        best = self.best
        slower = best is not None and best[0] < self.auto
        return self.late or (slower and not is_enough(self.auto, self.bound))

    @property
    def late(self) -> bool:
        """Whether ``auto`` takes longer than it may."""
        return self.limit > 0 and self.seconds > LATE * self.limit + STARTING

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        gap = f"{self.auto / self.bound - 1:.1%}" if self.bound else "-"
        best = self.best
        other = "-" if best is None else f"{best[1]} {best[0] / 1e6:.2f}"
        star = "*" if best is not None and best[1] in self.short else ""
        ratio = "-" if best is None else f"{self.auto / best[0]:.3f}{star}"
        return (
            self.name, f"{self.scale:g}", self.engine, f"{self.auto / 1e6:.2f}", gap, other, ratio,
            f"{self.seconds:.0f}",
        )  # fmt: skip


COLUMNS = ("problem", "scale", "engine", "auto us", "gap", "best other us", "ratio", "seconds")


def found_by(request: Request, engine: str, seconds: float) -> Synthesis | None:
    """Return what an engine finds, or None where it has nothing."""
    try:
        return synthesize(replace(request, engine=engine, time_limit=seconds))
    except (NoScheduleError, LoweringError):
        return None


def row_of(
    name: str,
    request: Request,
    scale: float = 1.0,
    seconds: tuple[float, float] = (SECONDS, QUARTER),
) -> Row:
    """Compare ``auto`` with everything else on one request.

    Raises
    ------
    NoScheduleError
        When ``auto`` finds nothing.
    """
    began = time.monotonic()
    auto = synthesize(replace(request, engine="auto", time_limit=scale * seconds[0]))
    spent = time.monotonic() - began
    others: dict[str, Time] = {}
    cut: list[str] = []
    short: list[str] = []
    if not is_enough(auto.time, auto.bound.time):
        for engine in (*SEARCHES, *CLASSICAL):
            found = found_by(request, engine, scale * seconds[1])
            if found is not None:
                others[engine] = found.time
                cut += [engine] if found.size < auto.size else []
                short += [engine] if found.size > auto.size else []
    # Where work is counted, no limit in seconds holds.
    limit = 0.0 if request.deterministic else scale * seconds[0]
    return Row(
        name, scale, auto.result.engine, auto.time, auto.bound.time, spent, others, cut, short,
        limit,
    )  # fmt: skip


def machine_requests(
    machines: Sequence[str],
    collectives: Sequence[str],
    sizes: Sequence[str],
    *,
    spread: bool = False,
) -> Iterator[tuple[str, Request]]:
    """Yield what is asked of shipped machines, by name.

    Parameters
    ----------
    spread
        Whether each machine and size gets one collective, the collectives in turn.
    """
    for turn, machine in enumerate(machines):
        network = load_network(machine)
        for own, collective in enumerate(collectives):
            for place, size in enumerate(sizes):
                if spread and (turn + place - own) % len(collectives):
                    continue
                name = f"{machine} {collective} {size}"
                yield name, Request(network, collective, parse_size(size))


def random_requests(count: int) -> Iterator[tuple[str, Request]]:
    """Yield random problems: any collective on any small network, with the count it draws."""
    for seed in range(count):
        problem = random_problem(seed)
        own = problem.collective
        size = max(1, int(problem.chunk_size * own.chunks_in_size))
        request = Request(
            problem.logical, own.name, size, own.chunks_per_rank, root=own.root, target=None
        )
        yield f"random {seed} {own.name}", request


def warm_up() -> None:
    """Have everything compiled that searches and replays run as machine code."""
    for name in ("allreduce", "alltoall"):
        row_of(name, Request(load_network("ring:4"), name, 10**6), 0.05)


def read_rows(file: Path | None) -> dict[str, Row]:
    """Return the rows that earlier runs kept, by problem and scale."""
    if file is None or not file.is_file():
        return {}
    rows = [Row(**row) for row in json.loads(file.read_text()).values()]
    return {row.key: row for row in rows}


def write_rows(file: Path, rows: Mapping[str, Row]) -> None:
    """Keep rows for later runs."""
    file.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=1))


def page(rows: Sequence[Row], left: int = 0) -> str:
    """Return the section of the page.

    Parameters
    ----------
    left
        Problems that are asked for and not run yet.
    """
    lines = [text_of(COLUMNS), f"|{'---|' * len(COLUMNS)}", *(text_of(row.cells) for row in rows)]
    missed = [row.name for row in rows if row.missed]
    told = f"\n{len(rows)} problems, {left} left to run, {len(missed)} missed"
    told += ": " if missed else ""
    return HEAD + "\n" + "\n".join(lines) + f"\n{told}{', '.join(missed)}.\n"


def text_of(cells: Sequence[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run rows, print and write them; return 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    machines = shipped_topologies()
    parser.add_argument("--machines", type=listed(machines), default=machines, help="shipped ones")
    parser.add_argument("--collectives", type=listed(COLLECTIVES), default=[*MAIN])
    parser.add_argument("--sizes", type=listed(SIZES), default=[*SIZES])
    parser.add_argument("--spread", action="store_true", help="collectives in turn, not each")
    parser.add_argument("--random", type=int, default=RANDOM, help="random problems")
    parser.add_argument("--limit-scale", type=float, default=1.0, help="multiplies time limits")
    parser.add_argument("--results", type=Path, help="a file that keeps rows between runs")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows = read_rows(asked.results)
    warm_up()
    print(text_of(COLUMNS))
    every = [
        *machine_requests(asked.machines, asked.collectives, asked.sizes, spread=asked.spread),
        *random_requests(asked.random),
    ]  # fmt: skip
    keys = {f"{name} {asked.limit_scale:g}": (name, request) for name, request in every}
    for key, (name, request) in keys.items():
        if key not in rows:
            rows[key] = row_of(name, request, asked.limit_scale)
            if asked.results:
                write_rows(asked.results, rows)
        if asked.output:
            left = len(keys.keys() - rows.keys())
            replace_section(asked.output, "auto", page(list(rows.values()), left))
        print(f"{text_of(rows[key].cells)}{' MISSED' if rows[key].missed else ''}", flush=True)
    missed = [row for row in rows.values() if row.missed]
    print(f"\n{len(rows)} problems, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
