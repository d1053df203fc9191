"""MSCCL++ plans beside the XML of the same schedules: right, and how long by replay.

For each machine, count of servers, collective and size an engine finds a schedule, which becomes an
XML program for the executor and plans for it, in every mode that the program claims. A cell is the
slowest of its modes. It is replayed twice: by alpha-beta, where all protocols have the same alphas,
and with measured costs, on the machines that have them; the plan is the best of each. The XML is in
the protocol that is the best there; at the smallest size in Simple, as far as that does not hang.
All plans are judged when they are made, and by the oracle of the tests.

``python -m benchmarks.plans --results FOLDER --mutants 500`` keeps cells and plans in a folder:
those that it has are not made again.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import taccl
from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.plans import GROUPS, Wanted, best_plan
from taccl.errors import LoweringError, TacclError
from taccl.msccl.program import Program, errors_of
from taccl.msccl.runtimes import PROTOCOLS
from taccl.mscclpp.interpret import judge_plan
from taccl.mscclpp.text import read_plan, write_plan
from taccl.replay.cost import PROFILES, ReplayModel, model_of
from taccl.replay.timing import traces
from taccl.topology.graph import Topology
from tests.mscclpp.mutants import mutant
from tests.mscclpp.oracle import problems

MACHINES = ("ndv2", "dgx2", "dgx-a100", "dgx-h100", "mi300x")
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")
SIZES = ("1KB", "1MB", "64MB")
AT_MOST, SHARE, NEVER, SMALL = 1.0, 0.9, 1.1, 0.7


@dataclass(frozen=True, slots=True)
class Row:
    """A `cell` by a `profile`, at the size `label`.

    `xml`, `plan`: picoseconds that they take.
    `form`: of the plan that takes longest.
    `files`: of the plans, one a mode.
    `wrong`: what the oracle finds in them.
    `seconds`: that all this has taken.
    """

    cell: str
    profile: str
    label: str
    xml: int
    plan: int
    form: str
    files: list[str]
    wrong: list[str]
    seconds: float

    @property
    def value(self) -> float:
        """Plan by XML."""
        return self.plan / self.xml

    def __str__(self) -> str:
        """Return the row of a table."""
        return (
            f"{self.cell} | {self.profile} | {self.xml / 1e6:.2f} | {self.plan / 1e6:.2f} |"
            f" {self.value:.3f} | {self.form} | {self.seconds:.1f}"
        )


def xml_time(
    program: Program, topology: Topology, size: int, model: ReplayModel, label: str
) -> int:
    """Return what the XML takes: the best protocol; Simple at the smallest size, if it can run."""
    protocols = PROTOCOLS if model.measured else (program.protocol,)
    times = {}
    for protocol in {*protocols, "Simple"}:
        (trace,) = traces(replace(program, protocol=protocol), topology, [size], model)
        if trace.time is not None:
            times[protocol] = trace.time
    if label == SIZES[0] and "Simple" in times:
        return times["Simple"]
    return min(times[protocol] for protocol in times if protocol in protocols)


def rows_of(
    topology: Topology, cell: str, collective: str, label: str, given: argparse.Namespace
) -> Iterator[Row]:
    """Yield the rows of a cell, and write its plans."""
    found = taccl.synthesize(
        topology, collective, label, engine=given.engine, runtime="executor",
        time_limit=given.limit,
    )  # fmt: skip
    program = found.program
    if program is None:
        raise LoweringError("no program")
    # Of large sizes so much less that threadblock groups can share each chunk.
    unit = 16 * program.chunks_per_loop * (max(GROUPS) if label != SIZES[0] else 1)
    size = found.size - found.size % unit or unit
    modes = [
        mode
        for mode, claimed in ((True, program.in_place), (False, program.out_of_place))
        if claimed
    ]
    told: dict[str, list[str]] = {}
    for profile in PROFILES:
        if profile == "measured" and topology.measured is None:
            continue
        began = time.perf_counter()
        model = replace(model_of("executor"), measured=profile == "measured")
        wanted = Wanted(size, model=model)
        made = [best_plan(program, topology, wanted, in_place=mode) for mode in modes]
        xml = xml_time(program, topology, size, model, label)
        slowest = max(made, key=lambda one: one.trace.time or 0)
        piped = any(
            op.inner for rank in slowest.plan.ranks for block in rank.blocks for op in block.ops
        )
        files = []
        for mode, one in zip(modes, made, strict=True):
            text, way = write_plan(one.plan), "in" if mode else "out"
            files.append(f"{cell}-{profile}-{way}.json".replace(" ", "-"))
            (given.results / files[-1]).write_text(text)
            if text not in told:
                told[text] = problems(text)[:1]
        yield Row(
            cell, profile, label, xml, slowest.trace.time or 0,
            "pipeline" if piped else slowest.plan.protocol, files,
            [problem for one in made for problem in told[write_plan(one.plan)]],
            time.perf_counter() - began,
        )  # fmt: skip


def check(files: Sequence[Path], mutants: int) -> bool:
    """Change plans at random, so often, and have the oracle judge what our judge accepts.

    Returned is whether that is right for the oracle, too.
    """
    draw, accepted, missed = random.Random(0), 0, 0
    for number in range(mutants):
        changed = mutant(read_plan(files[number % len(files)].read_text()), draw)
        if not errors_of(judge_plan(changed)):
            accepted += 1
            found = problems(write_plan(changed))
            missed += bool(found)
            if found:
                print(f"{changed.name}, mutant {number}: {found[0]}", flush=True)
    print(f"of {mutants} mutants {accepted} accepted, {missed} of them wrong for the oracle")
    return not missed


def told_of(rows: Sequence[Row], profile: str) -> bool:
    """Tell how the rows of a profile compare; return whether that is what is wanted."""
    own = [row for row in rows if row.profile == profile]
    good = sum(row.value <= AT_MOST for row in own)
    worst = max(row.value for row in own)
    small = max((row.value for row in own if row.label == SIZES[0]), default=0.0)
    means = ", ".join(
        f"{label} {statistics.fmean(values):.3f}"
        for label in SIZES
        if (values := [row.value for row in own if row.label == label])
    )
    print(
        f"{profile}: {len(own)} cells right, at or below the XML in {good}"
        f" ({good / len(own):.0%}), at most {worst:.3f} x, on average {means};"
        f" at {SIZES[0]} at most {small:.2f} x the XML with Simple"
    )
    return worst <= NEVER and good >= SHARE * len(own) and (profile != "measured" or small <= SMALL)


def main() -> None:
    """Make them, judge them, and print a row each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    parser.add_argument("--limit", type=float, default=3.0, help="seconds of a search")
    parser.add_argument("--engine", default="auto", help="that finds schedules")
    parser.add_argument("--results", type=Path, help="a folder that keeps cells between runs")
    parser.add_argument("--mutants", type=int, default=0, help="plans that are changed at random")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.results = given.results or Path(tempfile.mkdtemp())
    given.results.mkdir(parents=True, exist_ok=True)
    table = given.results / "rows.jsonl"
    lines = table.read_text().splitlines() if table.is_file() else []
    kept = [Row(**json.loads(line)) for line in lines]
    rows: list[Row] = []
    failed = 0
    print("cell | profile | xml us | plan us | plan by xml | form | s")
    for machine, nodes in itertools.product(MACHINES, (1, 2)):
        topology = load_machine(machine, MachineOptions(nodes=nodes))
        for collective, label in itertools.product(COLLECTIVES, SIZES):
            cell = f"{machine} x{nodes} {collective} {label}"
            if given.only not in cell:
                continue
            own = [row for row in kept if row.cell == cell]
            if not own:
                try:
                    own = list(rows_of(topology, cell, collective, label, given))
                except TacclError as error:
                    failed += 1
                    print(f"{cell}: {error}".replace("\n", " ")[:200], flush=True)
                with table.open("a") as file:
                    file.writelines(f"{json.dumps(asdict(row))}\n" for row in own)
            print(*own, sep="\n", end="\n" * bool(own), flush=True)
            rows += own
    print(f"{failed} cells without a right plan")
    well = not failed
    for profile in dict.fromkeys(row.profile for row in rows):
        well &= told_of(rows, profile)
    plans = [given.results / name for row in rows for name in row.files]
    wrong = [f"{row.cell}: {problem}" for row in rows for problem in row.wrong]
    print(*wrong, f"oracle: {len(plans) - len(wrong)} of {len(plans)} plans right", sep="\n")
    if given.mutants and plans:
        well &= check(plans, given.mutants)
    sys.exit(not well or bool(wrong))


if __name__ == "__main__":
    main()
