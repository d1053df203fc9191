"""Programs of all engines with real bytes: 200 of them at 3 sizes each, and 40 that are wrong.

``python -m benchmarks.run_programs`` makes programs for machines x collectives x engines x
protocols, with packed and fused ones among them, adds the MSCCL files of a folder (``--files``),
and runs each over shared memory at three sizes, in each mode that it claims. It ends with status 1
where one gives wrong data, or where a mutant that the interpreter rejects for its data comes out
right.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from taccl.apps.inputs import load_network
from taccl.apps.programs import Target
from taccl.apps.request import Request
from taccl.apps.running import MAX_RANKS, job_of
from taccl.apps.synthesis import synthesize
from taccl.errors import RunError, TacclError
from taccl.files import read_text
from taccl.msccl.interpret import interpret, judge
from taccl.msccl.program import Op, Program, Step
from taccl.msccl.xml import read_xml
from taccl.run.job import Call, Job, whole_calls
from taccl.run.processes import run_processes

MACHINES = (
    "ring:4",
    "full:4",
    "hub:6",
    "torus2d:2x4",
    "dgx1v",
    "slow-uplink",
    "mi300x",
    "hypercube:8",
    "dgx2",
)
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")
ENGINES = ("ring", "all-pairs", "halving-doubling", "bruck", "double-binary-tree", "guided", "flow")
PROTOCOLS = ("Simple", "LL", "LL128")
WANTED = 200
SIZES = (1000, 64_000, 1_500_000)
MUTANTS = 40
DTYPES = ("float32", "int32", "float16", "bfloat16", "float64", "int64")


def programs(limit: float) -> Iterator[tuple[str, Program]]:
    """Yield programs of engines by what they are called, those that an engine finds."""
    number = 0
    for machine in MACHINES:
        logical = load_network(machine)
        for collective in COLLECTIVES:
            for engine in ENGINES:
                number += 1
                target = Target(
                    ("executor", "rccl", "portable")[number % 3], PROTOCOLS[number % 3],
                    instances=1 + number % 2, modes=("auto", "both", "inplace")[number % 3],
                )  # fmt: skip
                try:
                    found = synthesize(Request(
                        logical, collective, 256_000, engine=engine, target=target,
                        time_limit=limit, chunks=1 + number % 3 if engine == "guided" else None,
                    ))  # fmt: skip
                except TacclError:
                    continue
                if found.program is not None:
                    yield f"{machine} {collective} {engine} {target.protocol}", found.program


def mutants(program: Program) -> Iterator[Program]:
    """Yield programs with one slot changed, whose data is wrong and nothing else."""
    for rank, block in program.blocks():
        for at, step in enumerate(block.steps):
            for field in ("src", "dst"):
                slot = getattr(step, field)
                if slot is None or step.op is Op.NOP:
                    continue
                moved = replace(step, **{field: slot._replace(offset=max(0, slot.offset ^ 1))})
                steps: tuple[Step, ...] = (*block.steps[:at], moved, *block.steps[at + 1 :])
                blocks = list(program.gpus[rank].threadblocks)
                blocks[block.id] = replace(block, steps=steps)
                gpus = list(program.gpus)
                gpus[rank] = replace(gpus[rank], threadblocks=tuple(blocks))
                mutant = replace(program, gpus=tuple(gpus))
                findings = interpret(mutant, in_place=program.in_place)
                if findings and all(one.rule == "result" for one in findings):
                    yield mutant


def ran_wrong(job: Job, sizes: tuple[int, ...], dtype: str) -> int | None:
    """Return how many elements are wrong in all calls; None: nobody knows what is right."""
    call = Call(0, in_place=True, dtype=dtype, calls=1, repeats=1)
    found = [each.wrong for each in run_processes(job, whole_calls(job, sizes, call))]
    return None if None in found else sum(one or 0 for one in found)


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=Path, help="folder of MSCCL XML files")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds of an engine")
    given = parser.parse_args()
    right, unknown, bad, told = 0, 0, 0, 0
    some: list[Program] = []
    made = list(programs(given.limit))
    own = len(made)
    for path in sorted(given.files.rglob("*.xml")) if given.files else ():
        try:
            made.append((path.name, read_xml(read_text(path), file=str(path), runtime="portable")))
        except TacclError as error:
            print(f"{path.name}: not read: {error.problem[:80]}")
    for number, (name, program) in enumerate(made):
        if program.num_ranks > MAX_RANKS:
            continue
        job = job_of(name, program, 20.0)
        findings = [] if number < own else judge(program, "executor")
        try:
            wrong = ran_wrong(job, SIZES, DTYPES[number % len(DTYPES)])
        except RunError as error:
            told += bool(findings)
            bad += not findings
            print(f"{name}: {error.problem[:100]} ({findings[:1]})")
            continue
        except TacclError as error:
            print(f"{name}: {error.problem[:100]}")
            continue
        unknown += wrong is None
        right += wrong == 0
        if wrong:
            bad += not findings
            told += bool(findings)
            print(f"{name}: {wrong} wrong ({findings[:1]})")
        elif len(some) < 12 and program.num_ranks <= 8 and "reduce" in program.collective:
            some.append(program)
    caught = missed = 0
    for program in some:
        for _, mutant in zip(range(8), mutants(program), strict=False):
            if caught + missed >= 2 * MUTANTS:
                break
            try:
                wrong = ran_wrong(job_of("mutant", mutant, 5.0), (96_000,), "int32")
            except RunError:
                wrong = 1
            caught, missed = caught + bool(wrong), missed + (not wrong)
    print(
        f"{len(made)} programs at {len(SIZES)} sizes: {right} right, {bad} wrong, {told} that"
        f" verify rejects, {unknown} that nobody can check;"
        f" {caught} of {caught + missed} mutants wrong"
    )
    sys.exit(1 if bad or missed or caught < MUTANTS or len(made) < WANTED else 0)


if __name__ == "__main__":
    main()
