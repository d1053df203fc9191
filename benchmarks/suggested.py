"""Suggested sketches: whether engine ``taccl`` finds a verified schedule with each in 30 s.

``python -m benchmarks.suggested [--results FILE] [--only dgx2] [-o docs/performance.md]`` goes
through every shipped machine, at 1, 2 and 3 servers where it has servers, as a user would:
``taccl sketch suggest``, then ``taccl synthesize --engine taccl --sketch`` with it, and the same
without a sketch. ``--results FILE`` keeps the rows that were run and leaves them out the next time,
so that the table can be made in turns. It ends with exit status 1 when a row has no schedule.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.sections import replace_section
from taccl.errors import InputError
from taccl.topology.file import load_topology, shipped_topologies

COLLECTIVES = ("allgather", "alltoall")
SERVERS = (1, 2, 3)
SECONDS = 30

HEAD = f"""## Suggested sketches

Made by `python -m benchmarks.suggested`: `taccl sketch suggest X C --nodes N -o S`, then
`taccl synthesize X C --nodes N --engine taccl --sketch S --size 1MB --time-limit {SECONDS}
--runtime none`, and the same without `--sketch`. Every schedule is verified, under its sketch, too.
*time* is the makespan, *k* chunks for each rank; *seconds* are by the wall clock on a machine that
other jobs used, *CPU s* of all cores together, and a row is missed where both are above {SECONDS}.
`--chunks auto` tries several counts where there is no sketch. *of no sketch*: what part of the time
without a sketch it takes; a dash: it was not run, or found nothing.

"""
COLUMNS = (
    "machine", "collective", "ranks", "k", "time us", "seconds", "CPU s", "without us",
    "seconds without", "of no sketch",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A machine, how many servers of it (None: it has none), and a collective."""

    machine: str
    nodes: int | None
    collective: str

    @property
    def place(self) -> str:
        """The machine with its servers, as the table names it."""
        return self.machine if self.nodes is None else f"{self.machine} x {self.nodes}"

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.place} {self.collective}"

    @property
    def options(self) -> list[str]:
        """Topology, collective and servers for the command line."""
        nodes = [] if self.nodes is None else ["--nodes", str(self.nodes)]
        return [self.machine, self.collective, *nodes]


@dataclass(frozen=True)
class Found:
    """What one run of ``taccl synthesize`` found; times in us, None: nothing.

    ``seconds`` are by the wall clock, ``cpu`` of all cores together.
    """

    makespan: float | None
    seconds: float
    chunks: int = 0
    problem: str = ""
    cpu: float = 0.0


@dataclass(frozen=True)
class Line:
    """A row: with the suggested sketch, and without one (None: not run)."""

    ranks: int
    sketched: Found
    bare: Found | None = None

    @property
    def missed(self) -> str:
        """What is wrong with the row; empty: nothing."""
        return self.sketched.problem


def cases(machines: tuple[str, ...]) -> Iterator[Case]:
    """Yield every case: 1, 2 and 3 servers of machines that have servers."""
    for machine in machines:
        try:
            load_topology(machine, nodes=1)
            counts: tuple[int | None, ...] = SERVERS
        except InputError:
            counts = (None,)
        for nodes in counts:
            for collective in COLLECTIVES:
                yield Case(machine, nodes, collective)


def taccl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    command = [sys.executable, "-m", "taccl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def synthesize(case: Case, *options: str, limit: float = SECONDS) -> Found:
    """Return what engine ``taccl`` finds in time."""
    began, before = time.monotonic(), _cpu()
    done = taccl(
        "synthesize", *case.options, "--engine", "taccl", "--size", "1MB", "--runtime", "none",
        "--time-limit", f"{limit:g}", "--json", "--quiet", *options,
    )  # fmt: skip
    seconds, cpu = time.monotonic() - began, _cpu() - before
    if done.returncode:
        return Found(None, seconds, problem=done.stderr.strip().partition("\n")[0], cpu=cpu)
    found = json.loads(done.stdout)
    problem = "" if found["verified"] else "not verified"
    if min(found["seconds"], cpu) > SECONDS:
        problem = f"{found['seconds']:.1f} s, of CPU {cpu:.1f} s"
    return Found(found["makespan_us"], found["seconds"], found["chunks_per_rank"], problem, cpu)


def _cpu() -> float:
    """Return the seconds of CPU that finished child processes have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(case: Case, limit: float = SECONDS) -> Line:
    """Suggest a sketch and solve with it."""
    with tempfile.TemporaryDirectory() as folder:
        sketch = str(Path(folder) / "suggested.yaml")
        done = taccl("sketch", "suggest", *case.options, "-o", sketch)
        if done.returncode:
            problem = done.stderr.strip().partition("\n")[0]
            return Line(0, Found(None, 0.0, problem=f"no sketch: {problem}"))
        sketched = synthesize(case, "--sketch", sketch, limit=limit)
    ranks = load_topology(case.machine, nodes=case.nodes).num_ranks
    return Line(ranks, sketched)


def read_results(file: Path | None) -> dict[str, Line]:
    """Return the rows that earlier runs kept."""
    if file is None or not file.is_file():
        return {}
    return {
        name: Line(
            row["ranks"], Found(**row["sketched"]), Found(**row["bare"]) if row["bare"] else None
        )
        for name, row in json.loads(file.read_text()).items()
    }


def write_results(file: Path, kept: Mapping[str, Line]) -> None:
    """Keep rows for later runs."""
    file.write_text(json.dumps({name: asdict(line) for name, line in kept.items()}, indent=1))


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def cells(case: Case, line: Line) -> tuple[str, ...]:
    """Return a row of the table."""
    bare, found = line.bare or Found(None, 0.0), line.sketched
    ratio = found.makespan / bare.makespan if found.makespan and bare.makespan else None
    return (
        case.place, case.collective, str(line.ranks), str(found.chunks),
        _number(found.makespan), _number(found.seconds, ".1f"),
        _number(found.cpu or None, ".1f"), _number(bare.makespan),
        _number(bare.seconds or None, ".1f"), _number(ratio),
    )  # fmt: skip


def page(rows: Mapping[Case, Line]) -> str:
    """Return the section of the page."""
    table = [COLUMNS, ("---",) * len(COLUMNS), *(cells(case, line) for case, line in rows.items())]
    text = "\n".join(f"| {' | '.join(row)} |" for row in table)
    missed = [f"- **{case.name}**: {line.missed}" for case, line in rows.items() if line.missed]
    return f"{HEAD}{text}\n" + ("\nMissed:\n\n" + "\n".join(missed) + "\n" if missed else "")


def main() -> int:
    """Run rows, print and write them; return 1 when one has no schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds one of these, by commas")
    parser.add_argument("--results", type=Path, help="a file that keeps rows between runs")
    parser.add_argument("--no-bare", action="store_true", help="don't solve without a sketch")
    parser.add_argument(
        "--time-limit", type=float, default=SECONDS, help="of a search; less tells whether it does"
    )
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    every = list(cases(shipped_topologies()))
    kept = read_results(arguments.results)
    for case in every:
        line = kept.get(case.name)
        done = line is not None and (line.bare is not None or arguments.no_bare)
        if done or not any(part in case.name for part in arguments.only.split(",")):
            continue
        line = line or run(case, arguments.time_limit)
        if line.bare is None and not arguments.no_bare:
            line = replace(line, bare=synthesize(case, limit=arguments.time_limit))
        kept[case.name] = line
        print(f"{' '.join(cells(case, line))} {line.missed}", flush=True)
        if arguments.results:
            write_results(arguments.results, read_results(arguments.results) | {case.name: line})
    rows = {case: kept[case.name] for case in every if case.name in kept}
    missed = [f"{case.name}: {line.missed}" for case, line in rows.items() if line.missed]
    print(f"\n{len(rows)} rows, {len(missed)} missed", *missed, sep="\n")
    if arguments.output:
        replace_section(arguments.output, "suggested", page(rows))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
