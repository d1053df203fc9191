"""Traces for ASTRA-sim: executed in any order that they allow, they move what the program moves."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from taccl import synthesize, write_program
from taccl.imports.chakra import COMP, RECV, SEND, messages, read_chakra
from taccl.msccl.program import OP_OF, Buffer, Program, Slot, Step
from taccl.report.export_chakra import chakra_traces
from taccl.training.operations import meetings_of
from taccl.training.simulation import Cost, simulate
from tests.cli.runner import taccl

Value = Counter[tuple[int, int]]
"""What a chunk is the sum of: ranks and their chunks, how often."""


class Message(NamedTuple):
    """A node as it lies in a file."""

    node: Any
    values: dict[str, int]


def split(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, by the format of protobuf's delimited streams."""
    at = 0
    while at < len(content):
        size = shift = 0
        while True:
            byte = content[at]
            at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        yield content[at : at + size]
        at += size
    assert at == len(content)


def nodes_of(content: bytes) -> list[Message]:
    head, *rest = split(content)
    schema = {one.name: one.string_val for one in messages().metadata.FromString(head).attr}
    assert set(schema) == {"schema", "collective", "name"}
    found = []
    for body in rest:
        node = messages().node.FromString(body)
        values = {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}
        kinds = {one.name: one.WhichOneof("value") for one in node.attr}
        # CustomAlgorithm::issue and get_msg_size ask for these, of these types.
        if node.type == COMP:
            assert not values
        else:
            peer = "comm_dst" if node.type == SEND else "comm_src"
            counts = ("msg_chunk_cnt", "msg_chunk_idx", "total_chunk_cnt")
            assert kinds == {"comm_size": "int64_val", peer: "int32_val", "comm_tag": "int32_val",
                             **dict.fromkeys(counts, "int32_val")}  # fmt: skip
        found.append(Message(node, values))
    return found


class Machine:
    """Ranks that run their nodes in a random order that the dependencies allow.

    Messages wait in the network by (tag, source, destination, size), as ASTRA-sim has them.
    """

    def __init__(
        self, program: Program, traces: list[list[Message]], random: Random, *, in_place: bool
    ) -> None:
        self.program, self.traces, self.random, self.in_place = program, traces, random, in_place
        self.memory: list[dict[Slot, Value]] = []
        for gpu in program.gpus:
            room = gpu.room[Buffer.INPUT]
            self.memory.append({
                Slot(Buffer.INPUT, place): Counter({(gpu.rank, place): 1}) for place in range(room)
            })  # fmt: skip
        self.network: dict[tuple[int, ...], deque[list[Value]]] = {}
        self.held: dict[tuple[int, str], list[Value]] = {}

    def run(self) -> None:
        """Run all nodes."""
        done: list[set[int]] = [set() for _ in self.traces]
        left = {(rank, n) for rank, own in enumerate(self.traces) for n in range(len(own))}
        while left:
            ready = sorted(
                (rank, n) for rank, n in left
                if done[rank].issuperset(self.traces[rank][n].node.data_deps)
                and self.arrived(rank, self.traces[rank][n])
            )  # fmt: skip
            assert ready, "the trace waits for ever"
            rank, n = self.random.choice(ready)
            self.do(rank, self.traces[rank][n])
            done[rank].add(n)
            left.remove((rank, n))
        assert not any(self.network.values()), "messages that nobody takes"

    def key(self, rank: int, one: Message) -> tuple[int, ...]:
        """Return by what a message is found."""
        ends = (
            (rank, one.values["comm_dst"]) if one.node.type == SEND
            else (one.values["comm_src"], rank)
        )  # fmt: skip
        return one.values["comm_tag"], *ends, one.values["comm_size"]

    def arrived(self, rank: int, one: Message) -> bool:
        """Tell whether what a node takes is there."""
        return one.node.type != RECV or bool(self.network.get(self.key(rank, one)))

    def do(self, rank: int, one: Message) -> None:
        """Run a node."""
        _, block, _, place, _ = one.node.name.split()
        step = self.program.gpus[rank].threadblocks[int(block)].steps[int(place)]
        name = one.node.name.rpartition(" ")[0]
        receives = step.op.value.startswith("r") and step.op != OP_OF["re"]
        if one.node.type == RECV:
            found = self.network[self.key(rank, one)].popleft()
            if step.op in (OP_OF["r"], OP_OF["rcs"]):
                self.write(rank, step, found)
            self.held[rank, name] = found
        elif one.node.type == COMP:
            found = self.at(rank, step.source, step.count)
            if receives:
                mine = self.held[rank, name]
                found = [a + b for a, b in zip(found, mine, strict=True)]
            elif step.op == OP_OF["re"]:
                mine = self.at(rank, step.target, step.count)
                found = [a + b for a, b in zip(found, mine, strict=True)]
            self.held[rank, name] = found
            if step.target is not None:
                self.write(rank, step, found)
        else:
            data = self.held[rank, name] if receives else self.at(rank, step.source, step.count)
            self.network.setdefault(self.key(rank, one), deque()).append(data)

    def at(self, rank: int, slot: Slot | None, count: int) -> list[Value]:
        """Return chunks of the memory."""
        assert slot is not None
        buffer = self.alias(slot.buffer)
        places = range(slot.offset, slot.offset + count)
        return [self.memory[rank][Slot(buffer, place)] for place in places]

    def write(self, rank: int, step: Step, values: list[Value]) -> None:
        """Write chunks to where a step does."""
        assert step.target is not None
        for place, value in enumerate(values, step.target.offset):
            self.memory[rank][Slot(self.alias(step.target.buffer), place)] = value

    def alias(self, buffer: Buffer) -> Buffer:
        """Return the buffer that is meant: in place an allreduce's output is its input."""
        return Buffer.INPUT if self.in_place and buffer == Buffer.OUTPUT else buffer

    def wrong(self) -> list[tuple[int, int]]:
        """Return rank and place of all chunks of outputs that are not what they should be."""
        return [
            (gpu.rank, place)
            for gpu in self.program.gpus for place in range(gpu.output_chunks)
            if self.at(gpu.rank, Slot(Buffer.OUTPUT, place), 1)[0]
            != wanted(self.program, gpu.rank, place)
        ]  # fmt: skip


def wanted(program: Program, rank: int, place: int) -> Value:
    """Return what a chunk of the output is the sum of."""
    ranks = range(program.num_ranks)
    share = program.chunks_per_loop // program.num_ranks
    if program.collective == "allreduce":
        return Counter({(one, place): 1 for one in ranks})
    if program.collective == "reducescatter":
        return Counter({(one, rank * share + place): 1 for one in ranks})
    if program.collective == "alltoall":
        return Counter({(place // share, rank * share + place % share): 1})
    return Counter({(place // share, place % share): 1})


CASES = (
    ("ring:4", "allreduce", "ring"), ("ring:4", "allgather", "ring"),
    ("full:4", "alltoall", "all-pairs"), ("full:8", "reducescatter", "halving-doubling"),
    ("full:4", "allreduce", "all-pairs"), ("full:6", "allgather", "bruck"),
)  # fmt: skip


@cache
def programs() -> tuple[Program, ...]:
    """Return programs of all kinds of steps."""
    made = [
        synthesize(machine, collective, "1MB", engine=engine, time_limit=20).program
        for machine, collective, engine in CASES
    ]
    return tuple(one for one in made if one is not None)


def test_traces_move_what_the_program_moves_in_any_order() -> None:
    assert len(programs()) == len(CASES)
    for program in programs():
        modes = (False, *((True,) if program.collective == "allreduce" else ()))
        traces = [nodes_of(one) for one in chakra_traces(program, 64 * program.chunks_per_loop)]
        for seed, mode in product(range(6), modes):
            machine = Machine(program, traces, Random(seed), in_place=mode)
            machine.run()
            assert machine.wrong() == [], (program.name, seed, mode)


def test_a_dependency_that_is_lost_is_seen() -> None:
    program = programs()[0]
    traces = [nodes_of(one) for one in chakra_traces(program, 64 * program.chunks_per_loop)]
    for own in traces:
        for one in own:
            if one.node.type == SEND:
                del one.node.data_deps[:]
    wrong = 0
    for seed in range(8):
        machine = Machine(program, traces, Random(seed), in_place=True)
        try:
            machine.run()
        except KeyError:
            wrong += 1
        else:
            wrong += bool(machine.wrong())
    assert wrong


def test_what_is_written_is_read_again_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, program in enumerate(programs()):
        path = tmp_path / f"{number}.xml"
        write_program(program, path)
        done = taccl(capsys, monkeypatch, "convert", str(path), "--to", "chakra", "--size", "1MB",
                     "-o", str(tmp_path / path.stem))  # fmt: skip
        assert done.status == 0, done.err
        names = [tmp_path / f"{path.stem}.{rank}.et" for rank in range(program.num_ranks)]
        assert done.out == f"wrote {names[0]} to {names[-1].name}\n"
        work = read_chakra(list(map(str, names)), program.num_ranks)
        calls = {key: one for key, one in meetings_of(work).items() if key[1] == one.first}
        sent = sum(
            step.count for _, block in program.blocks() for step in block.steps if step.sends
        )
        size = 10**6 - 10**6 % (4 * program.chunks_per_loop)
        total = sum(one.call.size for one in calls.values())
        assert total == sent * size // program.chunks_per_loop
        line = simulate(work, [Cost.of(5, [1])], dict.fromkeys(calls, 0))
        assert line.time >= 5


def test_what_can_not_be_converted_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong, prefix = (str(tmp_path / name) for name in ("a.xml", "wrong.xml", "x"))
    write_program(programs()[0], right)
    text = Path(right).read_text()
    Path(wrong).write_text(text.replace('type="s"', 'type="nop"', 1))
    for arguments, status, told in (
        ((right,), 2, "-o: is needed: there is a file for each rank"),
        ((right, "-o", "-"), 2, "-o: is needed"),
        ((right, "-o", prefix, "--size", "3"), 2,
         "--size: 3 bytes are less than one element for each chunk"),
        ((right, "-o", prefix, "--to", "et"), 2, "--to: "),
        ((wrong, "-o", prefix), 1, "is wrong"),
    ):  # fmt: skip
        done = taccl(capsys, monkeypatch, "convert", "--to", "chakra", *arguments)
        assert (done.status, told in done.err) == (status, True), done.err
    assert not list(tmp_path.glob("x*"))


def test_chunks_that_ranks_do_not_divide_have_a_size_only() -> None:
    program = next(one for one in programs() if one.collective == "allgather")
    odd = replace(program, chunks_per_loop=program.chunks_per_loop + 1)
    values = [one.values for one in nodes_of(chakra_traces(odd, 60)[0]) if one.node.type != COMP]
    assert {one["total_chunk_cnt"] for one in values} == {-1}
