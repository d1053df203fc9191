"""The replay's rules spelled out with no regard for speed: the oracle of the fast one.

Every threadblock is a generator that yields what it waits for; at every instant all of them are
tried until nothing moves, then all waiting sends are looked at in order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import ceil

from taccl.msccl.program import RECEIVES, SENDS, Op, Program, Threadblock
from taccl.replay.cost import ReplayModel
from taccl.topology.graph import Topology

LOCAL = {Op.RECV: "copy", Op.COPY: "copy", Op.REDUCE: "reduce", Op.RECV_REDUCE_COPY: "reduce",
         Op.RECV_REDUCE_SEND: "reduce", Op.RECV_REDUCE_COPY_SEND: "reduce"}  # fmt: skip


class Naive:
    """One run of a program; ``starts`` lists what was sent when."""

    def __init__(self, program: Program, topology: Topology, size: int, model: ReplayModel) -> None:
        self.program, self.topology = program, topology
        self.message, self.slots = model.of_protocol(program.protocol)
        self.chunk = size // program.chunks_per_loop
        self.now = 0
        self.flags: dict[tuple[int, int], tuple[int, int]] = {}
        self.arrivals: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.received: dict[tuple[int, int, int], int] = defaultdict(int)
        self.in_use: dict[tuple[int, int, int], int] = defaultdict(int)
        self.edge_until: dict[int, int] = defaultdict(int)
        self.waiting: list[tuple[int, int, int, int, int]] = []
        self.sent: dict[tuple[int, int], int] = {}
        self.instants = {0}
        self.starts: list[tuple[int, int, int, int, int]] = []

    def _link_of(self, src: int, dst: int, channel: int) -> int:
        channels = {b.channel for r, b in self.program.blocks() if r == src and b.send_to == dst}
        channels |= {b.channel for r, b in self.program.blocks() if r == dst and b.recv_from == src}
        links = self.topology.links_between(src, dst)
        return links[sorted(channels).index(channel) % len(links)]

    def _at(self, time: int) -> Callable[[], bool]:
        self.instants.add(time)
        return lambda: self.now >= time

    def _posted(self, other: tuple[int, int], goal: tuple[int, int]) -> Callable[[], bool]:
        return lambda: self.flags.get(other, (-1, -1)) >= goal

    def _run_block(self, rank: int, block: Threadblock) -> Iterator[Callable[[], bool]]:
        me = (rank, block.id)
        iterations = ceil(self.chunk / self.message)
        quarter = self.program.protocol == "Simple" and self.program.collective == "broadcast"
        m = max(1, min(71, self.message // (4 if quarter else 1) // self.chunk))
        for iteration in range(iterations):
            part = min(self.message, self.chunk - iteration * self.message)
            for position, step in enumerate(block.steps):
                if step.depends is not None:
                    other = (rank, step.depends.threadblock)
                    goal = (iteration, step.depends.step)
                    yield self._posted(other, goal)
                if step.op is Op.NOP:
                    continue
                left = step.count
                while left > 0:
                    size = min(left, m) * part
                    left -= min(left, m)
                    yield from self._message_of(rank, block, position, size)
                if step.posts:
                    self.flags[me] = (iteration, position)

    def _message_of(
        self, rank: int, block: Threadblock, position: int, size: int
    ) -> Iterator[Callable[[], bool]]:
        op = block.steps[position].op
        source = (-1 if block.recv_from is None else block.recv_from, rank, block.channel)
        if op in RECEIVES:
            count = self.received[source]
            self.received[source] += 1
            yield (
                lambda: (
                    len(self.arrivals[source]) > count and self.arrivals[source][count] <= self.now
                )
            )
        local = self.topology.local
        betas = {"copy": local.copy_beta, "reduce": local.reduce_beta}
        work = ceil(betas[LOCAL[op]] * size) if op in LOCAL else 0
        if work:
            yield self._at(self.now + work)
        if op in SENDS:
            assert block.send_to is not None
            target = (rank, block.send_to, block.channel)
            yield lambda: self.in_use[target] < self.slots
            self.in_use[target] += 1
            self.waiting.append((self.now, rank, block.id, size, position))
            self.sent.pop((rank, block.id), None)
            yield lambda: self.sent.get((rank, block.id), 1 << 60) <= self.now
        if op in RECEIVES:
            self.in_use[source] -= 1

    def _start_sends(self) -> bool:
        started = False
        for key in sorted(self.waiting):
            _, rank, number, size, position = key
            block = next(b for b in self.program.gpus[rank].threadblocks if b.id == number)
            assert block.send_to is not None
            link = self._link_of(rank, block.send_to, block.channel)
            edges = [
                e for e in self.topology.link(link).edges
                if self.topology.edges[e].beta is not None
            ]  # fmt: skip
            if any(self.edge_until[e] > self.now for e in edges):
                continue
            ends = [self.now + self.topology.busy(link, e, size) for e in edges]
            for edge, end in zip(edges, ends, strict=True):
                self.edge_until[edge] = end
            self.sent[rank, number] = max(ends, default=self.now)
            arrival = self.now + self.topology.arrival(link, size)
            self.arrivals[rank, block.send_to, block.channel].append(arrival)
            self.instants |= {*ends, arrival}
            self.starts.append((self.now, rank, number, position, size))
            self.waiting.remove(key)
            started = True
        return started

    def run(self) -> int | None:
        """Return the time of the last event, or None after a deadlock."""
        blocks = [self._run_block(rank, block) for rank, block in self.program.blocks()]
        goals: list[Callable[[], bool] | None] = [next(b, None) for b in blocks]
        while True:
            self._settle(blocks, goals)
            while self._start_sends():
                self._settle(blocks, goals)
            later = [t for t in self.instants if t > self.now]
            if not later:
                break
            self.now = min(later)
        return None if any(goals) else self.now

    def _settle(
        self, blocks: list[Iterator[Callable[[], bool]]], goals: list[Callable[[], bool] | None]
    ) -> None:
        moved = True
        while moved:
            moved = False
            for i, goal in enumerate(goals):
                if goal is not None and goal():
                    goals[i] = next(blocks[i], None)
                    moved = True
