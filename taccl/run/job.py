"""What is run: a program and its calls, what must come out, and what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from taccl.collectives import Collective
from taccl.errors import ProgramError
from taccl.msccl.expected import mode_of
from taccl.msccl.program import Buffer, Program
from taccl.replay.compile import unfit
from taccl.replay.cost import ReplayModel
from taccl.run import loop
from taccl.run.data import DTYPES, Bytes, exact_outputs, outputs_in_order, random_data
from taccl.run.plan import MODEL, RankPlan

HANG = 10.0
"""Seconds without a step of any rank, after which all are said to hang."""

VERIFY = "let taccl verify judge the file"


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A program, and how it is run.

    `file`: where it comes from.
    `program`: what is run.
    `collective`: what it should do; None: nobody knows.
    `model`: how long messages are.
    `patience`: seconds without a step, after which the ranks are said to hang.
    """

    file: str
    program: Program
    collective: Collective | None
    model: ReplayModel = MODEL
    patience: float = HANG


class Call(NamedTuple):
    """One call of a program, which is run once to be checked and then to be timed.

    `size`: bytes of the counted buffer.
    `in_place`: whether input and output lie in one buffer.
    `dtype`: a name of :data:`taccl.run.data.DTYPES`.
    `calls`: how many follow one another in one measurement.
    `repeats`: measurements.
    `logged`: steps that each rank writes down in one more run; 0: there is none.
    """

    size: int
    in_place: bool
    dtype: str = "float32"
    calls: int = 20
    repeats: int = 5
    logged: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a call.

    `times` are nanoseconds of one call in each measurement, from the start of the first rank to the
    end of the last. `wrong` is how many elements are wrong on all ranks together; None: nobody
    knows what is right. `logs` are what each rank wrote down, rows of :mod:`taccl.run.loop`.
    """

    call: Call
    times: tuple[float, ...]
    wrong: int | None
    logs: tuple[loop.Rows, ...] = ()


def whole_calls(job: Job, sizes: Sequence[int], call: Call) -> list[Call]:
    """Return a call for each size, cut to whole chunks, in each mode that a program claims.

    `job` is the program, `sizes` are bytes, and a `call` says everything else.

    Raises ProgramError when the program can't run at a size.
    """
    program, wide = job.program, DTYPES[call.dtype].bytes
    unit = program.chunks_per_loop * wide
    modes = [
        mode for mode, claimed in ((False, program.out_of_place), (True, program.in_place))
        if claimed
    ]  # fmt: skip
    found = []
    for size in dict.fromkeys(max(unit, size - size % unit) for size in sizes):
        reason = unfit(program, size, replace(job.model, element_bytes=wide))
        if reason:
            raise ProgramError(f"{job.file} can't run at {size} bytes: {reason}")
        found += [call._replace(size=size, in_place=mode) for mode in modes]
    return found


def reference(job: Job, call: Call, plans: Sequence[RankPlan]) -> list[Mapping[int, Bytes]] | None:
    """Return what each rank should have in the end: chunks by where they begin in its output.

    `job` is the program, `call` how it is called, and `plans` what each rank runs. Sums of
    floats are those of the program's own order. None: nobody knows.
    """
    collective, program, chunk = job.collective, job.program, plans[0].chunk
    if collective is None:
        return None
    wide = DTYPES[call.dtype].bytes
    inputs = [
        random_data(call.dtype, plan.memory.room[Buffer.INPUT] // wide, rank)
        for rank, plan in enumerate(plans)
    ]
    exact = exact_outputs(collective, inputs, chunk, call.dtype)
    if DTYPES[call.dtype].exact or not collective.reduces:
        return list(exact)
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=call.in_place
    )
    try:
        order = outputs_in_order(program, mode, inputs, chunk, call.dtype)
    except KeyError:
        return list(exact)
    return [
        {at: own.get(at, chunk_) for at, chunk_ in wanted.items()}
        for wanted, own in zip(exact, order, strict=True)
    ]
