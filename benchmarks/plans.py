"""MSCCL++ plans beside the XML of the same schedules: right, and how long by replay.

For each machine, count of servers, collective and size an engine finds a schedule, which becomes an
XML program for the executor and plans for it, in every mode that the program claims. A cell is the
slowest of its modes. It is replayed twice: by alpha-beta, where all protocols have the same alphas,
and with measured costs, on the machines that have them; the plan is the best of each. The XML is in
the protocol that is the best there; at the smallest size in Simple, as far as that does not hang.
"""

import argparse
import itertools
import random
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import taccl
from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.plans import Wanted, best_plan
from taccl.errors import LoweringError, TacclError
from taccl.msccl.program import Program, errors_of
from taccl.msccl.runtimes import PROTOCOLS
from taccl.mscclpp.interpret import judge_plan
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.text import write_plan
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
class Ratio:
    """Plan by XML in a `cell`, by a `profile`, at the size `label`; one of the `plans` a mode."""

    cell: str
    profile: str
    label: str
    value: float
    plans: tuple[Plan, ...]


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


def cells_of(
    topology: Topology, cell: str, collective: str, label: str, given: argparse.Namespace
) -> Iterator[Ratio]:
    """Yield the ratios of a cell, and print a row for each."""
    found = taccl.synthesize(
        topology, collective, label, engine=given.engine, runtime="executor",
        time_limit=given.limit,
    )  # fmt: skip
    program = found.program
    if program is None:
        raise LoweringError("no program")
    unit = 16 * program.chunks_per_loop
    size = found.size - found.size % unit or unit
    modes = [
        mode
        for mode, claimed in ((True, program.in_place), (False, program.out_of_place))
        if claimed
    ]
    for profile in PROFILES:
        if profile == "measured" and topology.measured is None:
            continue
        began = time.perf_counter()
        model = replace(model_of("executor"), measured=profile == "measured")
        wanted = Wanted(size, model=model)
        made = [best_plan(program, topology, wanted, in_place=mode) for mode in modes]
        wrong = [f for one in made for f in errors_of(judge_plan(one.plan))]
        if wrong:
            raise LoweringError(str(wrong[0]))
        xml = xml_time(program, topology, size, model, label)
        slowest = max(made, key=lambda one: one.trace.time or 0)
        taken = slowest.trace.time or 0
        piped = any(
            op.inner for rank in slowest.plan.ranks for block in rank.blocks for op in block.ops
        )
        form = "pipeline" if piped else slowest.plan.protocol
        print(
            f"{cell} | {profile} | {xml / 1e6:.2f} | {taken / 1e6:.2f} | {taken / xml:.3f} | {form}"
            f" | {time.perf_counter() - began:.1f}", flush=True,
        )  # fmt: skip
        yield Ratio(cell, profile, label, taken / xml, tuple(one.plan for one in made))


def check(plans: Sequence[Plan], mutants: int) -> bool:
    """Have the oracle of the tests judge plans, and so many mutants that our judge accepts or not.

    Returned is whether what the judge accepts is right for the oracle, too.
    """
    wrong = 0
    for plan in plans:
        found = problems(write_plan(plan))
        wrong += bool(found)
        if found:
            print(f"{plan.name}: {found[0]}", flush=True)
    draw, accepted, missed = random.Random(0), 0, 0
    for number in range(mutants):
        changed = mutant(plans[number % len(plans)], draw)
        if not errors_of(judge_plan(changed)):
            accepted += 1
            found = problems(write_plan(changed))
            missed += bool(found)
            if found:
                print(f"{changed.name}, mutant {number}: {found[0]}", flush=True)
    print(
        f"oracle: {len(plans) - wrong} of {len(plans)} plans right; of {mutants} mutants {accepted}"
        f" accepted, {missed} of them wrong for the oracle"
    )
    return not wrong and not missed


def main() -> None:
    """Make them, judge them, and print a row each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cells whose name contains this text")
    parser.add_argument("--limit", type=float, default=3.0, help="seconds of a search")
    parser.add_argument("--engine", default="auto", help="that finds schedules")
    parser.add_argument(
        "--mutants", type=int, default=0, help="that the oracle of the tests judges, with all plans"
    )
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    ratios: list[Ratio] = []
    failed = 0
    print("cell | profile | xml us | plan us | plan by xml | form | s")
    for machine, nodes in itertools.product(MACHINES, (1, 2)):
        topology = load_machine(machine, MachineOptions(nodes=nodes))
        for collective, label in itertools.product(COLLECTIVES, SIZES):
            cell = f"{machine} x{nodes} {collective} {label}"
            if given.only not in cell:
                continue
            try:
                ratios += cells_of(topology, cell, collective, label, given)
            except TacclError as error:
                failed += 1
                print(f"{cell}: {error}".replace("\n", " ")[:200], flush=True)
    missed = bool(failed)
    for profile in PROFILES:
        own = [one for one in ratios if one.profile == profile]
        if not own:
            continue
        good = sum(one.value <= AT_MOST for one in own)
        worst = max(one.value for one in own)
        small = max((one.value for one in own if one.label == SIZES[0]), default=0.0)
        means = ", ".join(
            f"{label} {statistics.fmean(values):.3f}"
            for label in SIZES
            if (values := [one.value for one in own if one.label == label])
        )
        print(
            f"{profile}: {len(own)} cells right, at or below the XML in {good}"
            f" ({good / len(own):.0%}), at most {worst:.3f} x, on average {means};"
            f" at {SIZES[0]} at most {small:.2f} x the XML with Simple"
        )
        missed |= worst > NEVER or good < SHARE * len(own)
        missed |= profile == "measured" and small > SMALL
    print(f"{failed} cells without a right plan")
    plans = [plan for one in ratios if one.profile == PROFILES[0] for plan in one.plans]
    if given.mutants and plans:
        missed |= not check(plans, given.mutants)
    sys.exit(missed)


if __name__ == "__main__":
    main()
