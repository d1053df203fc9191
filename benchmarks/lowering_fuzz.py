"""Programs of random schedules: written, read back, verified, within every limit.

``python -m benchmarks.lowering_fuzz [--count 300] [--first 0]`` draws schedules of up to six ranks
for four collectives, lowers each for three runtimes with random protocols, modes and instances, and
checks that the file reads back as the program that was written, that the judge of files finds
nothing, and that no limit of the runtime is exceeded. It ends with exit status 1 if a check fails.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator

from taccl.apps.programs import Lowering, Target
from taccl.errors import LoweringError
from taccl.msccl.limits import check_limits
from taccl.msccl.program import Program, Severity
from taccl.msccl.runtimes import PROTOCOLS
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import read_xml, write_xml
from tests.generators import random_schedule

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")
RUNTIMES = ("executor", "msccl", "rccl")
REFUSED = "refused"
"""What :func:`check` returns for a schedule that a limit rules out."""


def draw(seed: int, collective: str, runtime: str) -> Lowering:
    """Return a random schedule, to be lowered for a runtime with random options."""
    rng = random.Random(f"lowering {seed} {collective} {runtime}")
    modes = ("auto", "outofplace", "inplace") if runtime != "msccl" else ("auto", "outofplace")
    target = Target(
        runtime=runtime,
        protocol=rng.choice(PROTOCOLS),
        modes=rng.choice(modes) if collective != "alltoall" else "auto",
        instances=rng.choice((1, 1, 2, None)),
    )
    schedule = random_schedule(seed, collective)
    chunks = schedule.collective.chunks_in_size
    size = target.divisor(chunks) * rng.choice((1, 50, 3000, 1 << 15))
    return Lowering(schedule, target, size, "fuzz").settled()


def check(lowering: Lowering) -> list[str]:
    """Return what is wrong with the program; ``[REFUSED]`` where a limit rules it out."""
    try:
        program = lowering.proved()
    except LoweringError as error:
        return [REFUSED] if error.fix else [f"refused without a way out: {error.problem}"]
    return list(_wrong(program, lowering.target.runtime))


def _wrong(program: Program, runtime: str) -> Iterator[str]:
    text = write_xml(program, runtime)
    if read_xml(text, runtime=runtime) != program:
        yield "does not read back as it was written"
    for finding in check_limits(program, runtime):
        yield f"limit: {finding.explanation}"
    for finding in judge_text(text.encode(), runtime).findings:
        if finding.severity is not Severity.WARNING:
            yield f"verdict: {finding.explanation}"


def main() -> int:
    """Check all draws; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for seed in range(given.first, given.first + given.count):
        for collective in COLLECTIVES:
            for runtime in RUNTIMES:
                wrong = check(draw(seed, collective, runtime))
                refused = wrong == [REFUSED]
                outcomes["refused" if refused else "wrong" if wrong else "right"] += 1
                for line in wrong if not refused else ():
                    print(f"{seed} {collective} {runtime}: {line}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())))
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
