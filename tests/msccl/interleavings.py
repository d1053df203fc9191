"""Run a program in random orders on numbers: an oracle that shares no code with the judges.

Input chunks are random numbers, sums are sums modulo a prime, and what nobody wrote is None. One
action moves one message; connections hold few of them. Aliasing, flags, the size of messages and
the expected results are spelled out anew.

``compiled_interleavings`` does the same as machine code, draw for draw. This is what it means.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from math import ceil

from taccl.msccl.program import Program, Step, Threadblock

PRIME = (1 << 61) - 1
MESSAGE = {
    "executor": {"Simple": 2097152, "LL": 32768, "LL128": 576000},
    "rccl": {"Simple": 2097152, "LL": 16384, "LL128": 50176},
}
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}

BURSTS = (1, 1, 2, 5, 99)
"""Actions that a threadblock may do before another one is picked."""

Number = int | None
Key = tuple[int, str, int]
Connection = tuple[int | None, int | None, int]


class Draws:
    """Random numbers that machine code can repeat: the minimal standard of Park and Miller.

    References
    ----------
    S. K. Park and K. W. Miller, "Random number generators: good ones are hard to find", 1988.
    The multiplier is that of their second paper, of 1993.
    """

    def __init__(self, seed: int) -> None:
        self.state = seed % 2147483646 + 1

    def below(self, bound: int) -> int:
        """Return a number from 0 up to a bound, which is at most 2^31 - 2."""
        self.state = self.state * 48271 % 2147483647
        return self.state % bound

    def number(self) -> int:
        """Return a number below the prime that sums are taken modulo."""
        high = self.below(1 << 30)
        return (high << 30 ^ self.below(1 << 30)) % PRIME


def inputs_of(program: Program) -> int:
    """Return how many chunks the input of a rank has."""
    shares = program.num_ranks if program.collective == "allgather" else 1
    return program.chunks_per_loop // shares


def key_of(program: Program, key: Key, *, in_place: bool) -> Key:
    """Return where a chunk of a buffer is: in place, input and output are one buffer, ``u``."""
    rank, buffer, offset = key
    if not in_place or buffer == "s":
        return key
    aliased = {"allgather": "i", "reducescatter": "o"}.get(program.collective)
    share = program.chunks_per_loop // program.num_ranks
    return rank, "u", offset + (rank * share if buffer == aliased else 0)


def wanted(program: Program) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield rank and offset of every output, and the rank and offset of every input in it."""
    ranks, total, kind = program.num_ranks, program.chunks_per_loop, program.collective
    share = total // ranks
    for rank in range(ranks):
        for offset in range(share if kind == "reducescatter" else total):
            peer, inner = divmod(offset, share) if share else (0, 0)
            if kind == "allgather":
                yield rank, offset, [(peer, inner)]
            elif kind == "alltoall":
                yield rank, offset, [(peer, rank * share + inner)]
            else:
                at = offset if kind == "allreduce" else rank * share + offset
                yield rank, offset, [(one, at) for one in range(ranks)]


class _Run:
    """One run: how far every threadblock is, and what is where."""

    def __init__(self, program: Program, *, in_place: bool, cut: int, draws: Draws) -> None:
        self.program, self.in_place, self.cut, self.draws = program, in_place, cut, draws
        self.blocks = list(program.blocks())
        self.position = [0] * len(self.blocks)
        self.moved = [0] * len(self.blocks)
        self.flags: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        self.fifos: dict[Connection, deque[list[Number]]] = defaultdict(deque)
        self.memory: dict[Key, Number] = {}
        self.waiting: dict[object, list[int]] = defaultdict(list)
        self.news: list[int] = []
        self.spoilt = False
        size = inputs_of(program)
        self.inputs = [[draws.number() for _ in range(size)] for _ in range(program.num_ranks)]
        for rank, values in enumerate(self.inputs):
            for offset, value in enumerate(values):
                self.memory[self.key(rank, "i", offset)] = value

    def key(self, rank: int, buffer: str, offset: int) -> Key:
        return key_of(self.program, (rank, buffer, offset), in_place=self.in_place)

    def go(self) -> bool:
        """Run to the end; tell whether it ended with the right data."""
        ready = list(range(len(self.blocks)))
        # In half of the runs one threadblock goes on only when no other one can: who needs not
        # wait for it then overtakes it by far.
        last = self.draws.below(2 * len(ready) + 1)
        while ready:
            pick = self.draws.below(len(ready))
            if ready[pick] == last:
                pick = (pick + 1) % len(ready)
            number = ready[pick]
            for _ in range(BURSTS[self.draws.below(len(BURSTS))]):
                awaited = self.act(number)
                if awaited is not None:
                    ready[pick] = ready[-1]
                    ready.pop()
                    if awaited:
                        self.waiting[awaited].append(number)
                    break
            if self.spoilt:
                return False
            ready += self.news
            self.news.clear()
        ended = all(
            at == len(block.steps)
            for at, (_, block) in zip(self.position, self.blocks, strict=True)
        )
        return ended and not any(self.fifos.values()) and self.right()

    def wake(self, what: object) -> None:
        """Let those go on that wait for something."""
        self.news += self.waiting.pop(what, [])

    def act(self, number: int) -> object:
        """Do one message of a threadblock; return what it waits for, () at its end, else None."""
        rank, block = self.blocks[number]
        if self.position[number] == len(block.steps):
            return ()
        step = block.steps[self.position[number]]
        if step.depends is not None and self.moved[number] == 0:
            flag = (rank, step.depends.threadblock)
            if self.flags[flag] < step.depends.step:
                return "flag", flag
        if step.op.value == "nop":
            self.position[number] += 1
            return None
        return self.transfer(number, rank, block, step)

    def transfer(self, number: int, rank: int, block: Threadblock, step: Step) -> object:
        kind = step.op.value
        receives, sends = kind.startswith("r") and kind != "re", kind.endswith("s")
        if step.count == 0:  # The loop over its messages runs no time.
            receives = sends = False
        incoming = (block.recv_from, rank, block.channel)
        outgoing = (rank, block.send_to, block.channel)
        if (receives and block.recv_from is None) or (sends and block.send_to is None):
            return "never", number
        if receives and not self.fifos[incoming]:
            return "arrival", incoming
        if sends and len(self.fifos[outgoing]) >= SLOTS[self.program.protocol]:
            return "room", outgoing
        first = self.moved[number]
        last = min(first + self.cut, step.count)
        message = self.fifos[incoming].popleft() if receives else []
        if receives:
            self.wake(("room", incoming))
        if receives and len(message) != last - first:
            self.spoilt = True
            return None
        sent = [
            self.chunk(rank, step, index, message[index - first] if receives else None)
            for index in range(first, last)
        ]
        if sends:
            self.fifos[outgoing].append(sent)
            self.wake(("arrival", outgoing))
        self.moved[number] = last
        if last >= step.count:
            if step.posts:
                self.flags[rank, block.id] = self.position[number]
                self.wake(("flag", (rank, block.id)))
            self.position[number] += 1
            self.moved[number] = 0
        return None

    def chunk(self, rank: int, step: Step, index: int, arrived: Number) -> Number:
        """Combine and store one chunk; return what is sent."""
        kind = step.op.value
        value = arrived
        if kind in {"s", "cpy", "re", "rrs", "rrc", "rrcs"} and step.src is not None:
            read = self.memory.get(self.key(rank, step.src.buffer.value, step.src.offset + index))
            value = read if kind in {"s", "cpy", "re"} else _sum(value, read)
        if kind in {"r", "cpy", "re", "rcs", "rrc", "rrcs"} and step.dst is not None:
            target = self.key(rank, step.dst.buffer.value, step.dst.offset + index)
            if kind == "re":
                value = _sum(value, self.memory.get(target))
            if target[1] == "i" or target[2] < 0:
                self.spoilt = True
            self.memory[target] = value
        return value

    def right(self) -> bool:
        """Tell whether every output holds what the collective says."""
        return all(
            self.memory.get(self.key(rank, "o", offset))
            == sum(self.inputs[peer][at] for peer, at in parts) % PRIME
            for rank, offset, parts in wanted(self.program)
        )


def _sum(one: Number, two: Number) -> Number:
    return None if one is None or two is None else (one + two) % PRIME


def modes_of(program: Program) -> list[bool]:
    """Return the modes a program claims: in place, or not."""
    return [m for m, on in ((True, program.in_place), (False, program.out_of_place)) if on]


def cut_of(program: Program, runtime: str) -> int:
    """Return how many chunks a message holds at the largest size."""
    per_chunk = max(1, ceil(program.max_bytes / program.chunks_per_loop))
    message = MESSAGE[runtime][program.protocol]
    if program.protocol == "Simple" and program.collective in {"broadcast", "reduce"}:
        message //= 4
    return min(max(message // per_chunk, 1), 71)


def first_wrong_run(program: Program, runtime: str, *, runs: int, seed: int) -> int | None:
    """Return the first of so many random runs in every mode that ends wrong; None: all are right.

    Sizes are the largest that the program declares. The runs of a mode follow those of the other.
    """
    draws, cut = Draws(seed), cut_of(program, runtime)
    made = (
        _Run(program, in_place=mode, cut=cut, draws=draws).go()
        for mode in modes_of(program)
        for _ in range(runs)
    )
    return next((number for number, right in enumerate(made) if not right), None)
