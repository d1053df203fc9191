"""Random topologies and programs for the tests of the replay."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from taccl.msccl.program import Program, Step, Threadblock
from taccl.topology.graph import Topology
from tests.replay.program_builder import Row, network, program, step

RANKS = 4


def random_topology(rng: random.Random) -> Topology:
    """Return direct edges, some parallel, some missing, and a switch that joins what has none."""
    rows: list[Row] = []
    for src in range(RANKS):
        for dst in range(RANKS):
            count = rng.choice([0, 0, 1, 2]) if src != dst else 0
            rows += [_wire(rng, src, dst) for _ in range(count)]
    for rank in range(RANKS):
        free = rng.random() < 0.2
        rows.append((rank, RANKS, rng.choice([0, 7]), 0, None if free else rng.choice([1, 3])))
        rows.append((RANKS, rank, rng.choice([0, 9]), None, rng.choice([1, 1, 4])))
    return network(
        RANKS, rows, switches=1, rule=rng.choice(["occupy", "delay"]),
        copy=rng.choice([0, 0, 1]), reduce=rng.choice([0, 2]),
    )  # fmt: skip


def _wire(rng: random.Random, src: int, dst: int) -> Row:
    alpha = rng.choice([0, 5, 40])
    return (src, dst, alpha, rng.choice([None, None, min(3, alpha)]), rng.choice([1, 2]))


@dataclass
class _Block:
    channel: int
    send_to: int | None = None
    recv_from: int | None = None
    steps: list[Step] = field(default_factory=list)


class _Draft:
    """Threadblocks that grow as messages are added in one global order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.blocks: dict[int, list[_Block]] = {rank: [] for rank in range(RANKS)}
        self.posted: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def end(self, rank: int, peer: int, channel: int, *, sends: bool) -> int:
        """Return the threadblock at one end of a connection; it may get another end later."""
        name = "send_to" if sends else "recv_from"
        mine = self.blocks[rank]
        for number, block in enumerate(mine):
            if block.channel == channel and getattr(block, name) == peer:
                return number
        free = [
            i for i, b in enumerate(mine) if b.channel == channel and getattr(b, name) is None
        ]  # fmt: skip
        if free and self.rng.random() < 0.6:
            number = self.rng.choice(free)
        else:
            number = len(mine)
            mine.append(_Block(channel))
        setattr(mine[number], name, peer)
        return number

    def add(self, rank: int, number: int, op: str, count: int) -> None:
        """Append a step, sometimes with dependences on what other threadblocks did before."""
        steps, rng = self.blocks[rank][number].steps, self.rng
        waits = [wait for wait in self.posted[rank] if wait[0] != number]
        wait = rng.choice(waits) if waits and rng.random() < 0.3 else None
        if wait is not None and rng.random() < 0.3:
            steps.append(step("nop", 0, rng.choice(waits)))
        steps.append(step(op, count, wait, posts=rng.random() < 0.7))
        if steps[-1].posts:
            self.posted[rank].append((number, len(steps) - 1))

    def send(self, rank: int, number: int, count: int) -> None:
        """Append a send, or turn the receive before it into one that forwards."""
        steps = self.blocks[rank][number].steps
        received = bool(steps) and steps[-1].op.value in ("r", "rrc") and steps[-1].count == count
        if not received or self.rng.random() < 0.3:
            self.add(rank, number, "s", count)
            return
        old = steps.pop()
        self.posted[rank] = [p for p in self.posted[rank] if p != (number, len(steps))]
        wait = (old.depends.threadblock, old.depends.step) if old.depends else None
        steps.append(step(self.rng.choice(["rcs", "rrs", "rrcs"]), count, wait))


def random_program(rng: random.Random) -> Program:
    """Return messages in a global order that every threadblock follows, some of them forwarded."""
    draft = _Draft(rng)
    for _ in range(rng.randint(2, 14)):
        src, dst = rng.sample(range(RANKS), 2)
        channel, count = rng.choice([0, 0, 1]), rng.choice([1, 1, 2, 3])
        draft.send(src, draft.end(src, dst, channel, sends=True), count)
        receiver = draft.end(dst, src, channel, sends=False)
        draft.add(dst, receiver, rng.choice(["r", "rrc"]), count)
        if rng.random() < 0.3:
            draft.add(dst, receiver, "cpy", count)
    gpus = [
        [
            Threadblock(i, b.send_to, b.recv_from, b.channel, tuple(b.steps))
            for i, b in enumerate(draft.blocks[rank])
        ]
        for rank in range(RANKS)
    ]
    return program(*gpus, chunks=4)
