"""What is run: a program and its calls, what must come out, and what became of them.

Integers are added modulo 2^32 or 2^64, in any order with one result, so a collective says what each
output must be. Sums of floats depend on the order: what must come out bit for bit is what the same
additions give one after the other, in the order in which the program's steps can finish.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.errors import ProgramError
from taccl.msccl.expected import Cell, Mode, mode_of, value_of
from taccl.msccl.program import Buffer, Op, Program, Slot
from taccl.msccl.run import Run, maximal_run, places
from taccl.replay.compile import unfit
from taccl.replay.cost import ReplayModel
from taccl.run import loop
from taccl.run.loop import MODEL, Memory, RankPlan

Bytes = NDArray[np.uint8]
Numbers = NDArray[Any]


class Dtype(NamedTuple):
    """A type of numbers: its `code` in the event loop, bytes of an element, and numpy's type.

    numpy has no bfloat16: its bits are kept as `kind` uint16.
    """

    code: int
    bytes: int
    kind: type
    exact: bool = False


DTYPES: Mapping[str, Dtype] = MappingProxyType({
    "int32": Dtype(loop.INT32, 4, np.int32, exact=True),
    "int64": Dtype(loop.INT64, 8, np.int64, exact=True),
    "float16": Dtype(loop.FLOAT16, 2, np.float16),
    "bfloat16": Dtype(loop.BFLOAT16, 2, np.uint16),
    "float32": Dtype(loop.FLOAT32, 4, np.float32),
    "float64": Dtype(loop.FLOAT64, 8, np.float64),
})  # fmt: skip
"""Types of numbers that are added; `exact` ones in any order with one result."""


def rounded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the bfloat16 next to each of some `values`, ties to even."""
    bits = values.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return np.where(np.isnan(values), quiet, nearest).astype(np.uint16)


def _add_bfloat16(one: Numbers, other: Numbers) -> Numbers:
    left, right = ((x.astype(np.uint32) << np.uint32(16)).view(np.float32) for x in (one, other))
    return rounded(left + right)


def _add(one: Numbers, other: Numbers) -> Numbers:
    total: Numbers = one + other
    return total


ADD: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = MappingProxyType(
    {name: _add_bfloat16 if name == "bfloat16" else _add for name in DTYPES}
)


SEED = 1
"""Of the test data."""


def random_data(dtype: str, count: int, rank: int, seed: int = SEED) -> Bytes:
    """Return the input of a `rank`: `count` numbers of a `dtype`, the same for the same `seed`.

    Floats are of many sizes, so that the order of sums shows in the last bits.
    """
    drawn = np.random.Generator(np.random.SFC64([seed, rank, count]))
    row = DTYPES[dtype]
    if row.exact:
        limit = np.iinfo(row.kind)
        found: Numbers = drawn.integers(limit.min, limit.max, count, row.kind, endpoint=True)
    else:
        wide = drawn.random(count, np.float32) * np.float32(2) - np.float32(1)
        wide *= np.exp2(drawn.integers(-3, 4, count).astype(np.float32))
        found = rounded(wide) if dtype == "bfloat16" else wide.astype(row.kind)
    return found.view(np.uint8)


def fill(memory: Bytes, place: Memory, dtype: str, rank: int) -> None:
    """Put test data into the input of a `rank`, and other bytes everywhere else.

    `memory` is the rank's, with its buffers at their `place`; numbers are of a `dtype`.
    """
    memory[:] = 0xA5
    begin, room = place.at[Buffer.INPUT], place.room[Buffer.INPUT]
    memory[begin : begin + room] = random_data(dtype, room // DTYPES[dtype].bytes, rank)


def wrong_elements(memory: Bytes, place: Memory, wanted: Mapping[int, Bytes], dtype: str) -> int:
    """Return how many numbers of a rank's output are not what they should be.

    `memory` is the rank's, with its buffers at their `place`; `wanted` are chunks by where they
    begin in the output, in bytes; `dtype` is of both.
    """
    wide, found = DTYPES[dtype].bytes, memory[place.at[Buffer.OUTPUT] :]
    return sum(
        int((found[at : at + len(chunk)] != chunk).reshape(-1, wide).any(axis=1).sum())
        for at, chunk in wanted.items()
    )


def exact_outputs(
    collective: Collective, inputs: Sequence[Bytes], chunk: int, dtype: str
) -> list[dict[int, Bytes]]:
    """Return what each rank should have in the end: chunks by where they begin in its output.

    `collective` says what is done with the `inputs`, one a rank; a `chunk` has so many bytes, of
    numbers of a `dtype`.
    """
    kind, add = DTYPES[dtype].kind, ADD[dtype]
    found: list[dict[int, Bytes]] = [{} for _ in inputs]
    for number in range(collective.num_chunks):
        parts: list[Numbers] = [
            inputs[rank][offset * chunk : (offset + 1) * chunk].view(kind)
            for rank, offset in value_of(collective, number)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = add(total, part)
        for rank in collective.targets(number):
            at = collective.output_offset(number, rank) * chunk
            found[rank][at] = total.view(np.uint8)
    return found


def outputs_in_order(
    program: Program, mode: Mode, inputs: Sequence[Bytes], chunk: int, dtype: str
) -> list[dict[int, Bytes]]:
    """Return what a program leaves in each rank's output, its steps done one after the other.

    `program`: what is run, once.
    `mode`: how the call places its buffers.
    `inputs`: the input of each rank.
    `chunk`: bytes of a chunk.
    `dtype`: of the numbers.
    """
    kind, add, run = DTYPES[dtype].kind, ADD[dtype], maximal_run(program)
    memory: dict[tuple[int, Cell], Numbers] = {}
    for rank, data in enumerate(inputs):
        for offset in range(len(data) // chunk):
            cell = mode.cell(rank, Slot(Buffer.INPUT, offset))
            memory[rank, cell] = data[offset * chunk : (offset + 1) * chunk].view(kind)
    _follow(run, mode, memory, add)
    found: list[dict[int, Bytes]] = []
    for gpu in program.gpus:
        own = {}
        # In place a file may declare no output at all.
        for offset in range(max(gpu.output_chunks, program.chunks_per_loop)):
            value = memory.get((gpu.rank, mode.cell(gpu.rank, Slot(Buffer.OUTPUT, offset))))
            if value is not None:
                own[offset * chunk] = value.view(np.uint8)
        found.append(own)
    return found


def _follow(
    run: Run, mode: Mode, memory: dict[tuple[int, Cell], Numbers],
    add: Callable[[Numbers, Numbers], Numbers],
) -> None:  # fmt: skip
    """Do all steps of a run to memory. Arrays are never changed, so messages need no copies."""
    sent: dict[int, deque[list[Numbers]]] = {}
    where = places(run)
    for number in run.order:
        place = where[number]
        step = run.blocks[place.block][1].steps[place.step]
        if step.op is Op.NOP or step.count == 0:
            continue
        sources = mode.cells(place.rank, step.source, step.count)
        targets = mode.cells(place.rank, step.target, step.count)
        parts: list[list[Numbers]] = []
        if sources:
            parts.append([memory[place.rank, cell] for cell in sources])
        if step.receives:
            parts.append(sent[run.sender[number]].popleft())
        if step.op is Op.REDUCE:
            parts.append([memory[place.rank, cell] for cell in targets])
        values = parts[0] if len(parts) == 1 else list(map(add, *parts))
        memory.update(zip([(place.rank, cell) for cell in targets], values, strict=False))
        if step.sends:
            sent[number] = deque([values])


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
    `dtype`: a name of :data:`taccl.run.job.DTYPES`.
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
