"""Collectives of a group of torch.distributed that run programs where one serves.

With nccl the messages of a round are one batch (``batch_isend_irecv``). Elsewhere all messages are
asked for at the start, and sent as soon as they are there; rounds only say what is done first. The
order of sums is the program's, and so the same in every call.

Which program runs is a matter of the collective and the bytes of the call, as in the runtimes;
where none serves (no file, another operation than a sum, bytes that don't cut into whole chunks),
the backend's own collective runs. Messages go over whatever backend the group has: gloo for tensors
of processors, nccl for those of GPUs.

In a round a rank exchanges messages, then it copies and adds. A send goes in the first round after
what it needs, and its message is received in the same round, so both ends agree, and nothing waits
for a message of a later round.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from taccl.errors import InputError
from taccl.files import read_text
from taccl.msccl.expected import mode_of
from taccl.msccl.interpret import find_root, judge
from taccl.msccl.program import Buffer, Op, Program, Slot, Step
from taccl.msccl.run import maximal_run, places
from taccl.msccl.xml import read_xml

__all__ = ["Collectives", "load"]


class Move(NamedTuple):
    """What a rank does in a round after its messages have come.

    `op`, `source`, `target`, `chunks` are those of the step; `came` is the number of the message
    that it receives, `goes` of the one that it makes; -1: none.
    """

    op: Op
    source: Slot | None
    target: Slot | None
    chunks: int
    came: int
    goes: int


class Message(NamedTuple):
    """A message of a round: its number, which is its tag, its chunks, and the peer.

    What a plain send sends lies at `source`; None: a move before made it.
    """

    number: int
    peer: int
    chunks: int
    source: Slot | None


@dataclass(slots=True)
class Round:
    """What a rank sends, receives and does then."""

    sends: list[Message]
    receives: list[Message]
    moves: list[Move]


def rounds_of(program: Program) -> list[dict[int, Round]]:
    """Return what each rank of a `program` does, round by round.

    Raises InputError when the program does not end.
    """
    run = maximal_run(program)
    if run.stuck:
        raise InputError(f"{program.name} does not end", fix="let taccl verify judge the file")
    where, found = places(run), defaultdict[int, dict[int, Round]](dict)
    # Even times are messages of round time / 2, odd ones what is done after them.
    done: dict[int, int] = {}
    sent: dict[int, int] = {}
    last: dict[int, int] = {}

    def round_at(time: int, rank: int) -> Round:
        return found[time // 2].setdefault(rank, Round([], [], []))

    for number in run.order:
        place = where[number]
        block = run.blocks[place.block][1]
        step: Step = block.steps[place.step]
        time = max(last.get(place.block, -1), done.get(run.released_by.get(number, -1), -1))
        if step.op is Op.NOP or step.count == 0:
            last[place.block] = done[number] = time
            continue
        if step.op is not Op.SEND:
            came = -1
            if step.receives:
                came = run.sender[number]
                time = max(time, sent[came] + 1)
                message = Message(came, cast("int", block.recv_from), step.count, None)
                round_at(sent[came], place.rank).receives.append(message)
            time = max(1, time + 1 - time % 2)
            goes = number if step.sends else -1
            move = Move(step.op, step.source, step.target, step.count, came, goes)
            round_at(time, place.rank).moves.append(move)
        if step.sends:
            time += 1
            time += time % 2
            sent[number] = time
            source = step.source if step.op is Op.SEND else None
            message = Message(number, cast("int", block.send_to), step.count, source)
            round_at(time, place.rank).sends.append(message)
        last[place.block] = done[number] = time
    return [found[number] for number in range(max(found, default=-1) + 1)]


RUNTIME = "portable"
"""Whose rules files are read and judged by: nobody's limits matter here, the data does."""


SUM = dist.ReduceOp.SUM

Part = Callable[[Slot, int], torch.Tensor]
"""From a slot and a count of chunks to the part of a buffer."""

Room = Callable[[Message], torch.Tensor]
"""Returns a tensor for a message that comes."""


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A program, what each rank does in it, and the root, if it has one."""

    program: Program
    rounds: list[dict[int, Round]]
    root: int | None


class Collectives:
    """Collectives of a process group that run programs where one serves.

    `programs` are those of a library, and `group` is a group of torch.distributed; None: all ranks.

    Raises InputError when a program is wrong, or ranks have different ones.
    """

    def __init__(self, programs: Sequence[Program], group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # Operations of nccl wait for their peers in the order in which they are asked for.
        self.batched = dist.get_backend(group) == "nccl"
        self.used: dict[str, int] = {}
        self.loaded: list[Loaded] = []
        for program in programs:
            if program.num_ranks != self.size:
                raise InputError(
                    f"{program.name} is for {program.num_ranks} ranks, the group has {self.size}",
                    fix="tune for as many",
                )
            findings = [f for f in judge(program, RUNTIME) if f.rule in DATA]
            if findings:
                raise InputError(f"{program.name} is wrong: {findings[0]}", fix="make it anew")
            self.loaded.append(Loaded(program, rounds_of(program), find_root(program)))
        digests: list[object] = [None] * self.size
        own = hashlib.sha256(repr(tuple(programs)).encode()).hexdigest()
        dist.all_gather_object(digests, own, group=group)
        if len(set(digests)) > 1:
            raise InputError("ranks have different programs", fix="give all the same library")

    def _served(
        self, collective: str, source: torch.Tensor, target: torch.Tensor, op: dist.ReduceOp,
        root: int | None = None,
    ) -> bool:  # fmt: skip
        """Run the program that serves a call, if there is one, and tell whether there is.

        The `source` and the `target` of a call in place are one tensor. A program that claims only
        the other mode gets a copy.
        """
        same = source is target
        counted = max(source, target, key=torch.Tensor.numel)
        size = counted.numel() * counted.element_size()
        if op != SUM or not (source.is_contiguous() and target.is_contiguous()):
            return False
        for one in self.loaded:
            program = one.program
            if (
                program.collective == collective
                and program.min_bytes <= size <= program.max_bytes
                and counted.numel() % program.chunks_per_loop == 0
                and one.root == root
            ):
                break
        else:
            return False
        self.used[program.name] = self.used.get(program.name, 0) + 1
        given, wanted = source.view(-1), target.view(-1)
        if program.out_of_place and not (same and program.in_place):
            self._run(one, given.clone() if same else given, wanted)
            return True
        # In place the smaller of the two buffers is a rank's own part of the larger.
        whole = given.clone() if len(given) > len(wanted) else wanted
        small = min(len(given), len(wanted))
        mine = whole[self.rank * small :][:small] if small < len(whole) else whole
        if len(given) == small and not same:
            mine.copy_(given)
        self._run(one, None, whole)
        if len(wanted) < len(whole):
            wanted.copy_(mine)
        return True

    def _run(self, one: Loaded, source: torch.Tensor | None, target: torch.Tensor) -> None:
        """Run a program from a source into a target, flat tensors; None: the target is both."""
        program, rank = one.program, self.rank
        in_place = source is None
        mode = mode_of(program.collective, self.size, program.chunks_per_loop, in_place=in_place)
        counted = max(len(target), 0 if source is None else len(source))
        chunk = counted // program.chunks_per_loop
        scratch = target.new_empty(program.gpus[rank].scratch_chunks * chunk)
        base = {
            Buffer.INPUT: target[mode.input_shift[rank] * chunk :] if source is None else source,
            Buffer.OUTPUT: target[mode.output_shift[rank] * chunk :] if in_place else target,
            Buffer.SCRATCH: scratch,
        }

        def part(slot: Slot, count: int) -> torch.Tensor:
            return base[slot.buffer][slot.offset * chunk : (slot.offset + count) * chunk]

        own = [each[rank] for each in one.rounds if rank in each]
        run = self._in_batches if self.batched else self._at_once
        run(own, part, lambda message: target.new_empty(message.chunks * chunk))

    def _in_batches(self, rounds: Sequence[Round], part: Part, room: Room) -> None:
        """Do rounds one after the other, the messages of each in one batch."""
        held: dict[int, torch.Tensor] = {}
        for own in rounds:
            operations = []
            for message in own.sends:
                data = (
                    held.pop(message.number) if message.source is None
                    else part(message.source, message.chunks)
                )  # fmt: skip
                operations.append(self._p2p(dist.isend, data, message))
            for message in own.receives:
                held[message.number] = room(message)
                operations.append(self._p2p(dist.irecv, held[message.number], message))
            if operations:
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
            for move in own.moves:
                self._move(move, held, part)

    def _at_once(self, rounds: Sequence[Round], part: Part, room: Room) -> None:
        """Ask for all messages first, and send each as soon as it is there.

        What is sent from a buffer is copied: the program may write there once it has left.
        """
        held: dict[int, torch.Tensor] = {}
        coming: dict[int, dist.Work] = {}
        made = {
            message.number: message
            for own in rounds for message in own.sends if message.source is None
        }  # fmt: skip
        for own in rounds:
            for message in own.receives:
                held[message.number] = room(message)
                coming[message.number] = dist.irecv(
                    held[message.number], self._global(message.peer), group=self.group,
                    tag=message.number,
                )  # fmt: skip
        works = []
        for own in rounds:
            works += [
                self._sent(part(message.source, message.chunks).clone(), message)
                for message in own.sends
                if message.source is not None
            ]
            for move in own.moves:
                if move.came >= 0:
                    coming.pop(move.came).wait()
                self._move(move, held, part)
                if move.goes >= 0:
                    works.append(self._sent(held.pop(move.goes), made[move.goes]))
        for work, _ in works:
            work.wait()

    def _sent(self, data: torch.Tensor, message: Message) -> tuple[dist.Work, torch.Tensor]:
        """Begin to send, and return what to wait for with the data, which has to last."""
        peer = self._global(message.peer)
        return dist.isend(data, peer, group=self.group, tag=message.number), data

    def _p2p(
        self, kind: Callable[..., dist.Work], data: torch.Tensor, message: Message
    ) -> dist.P2POp:
        return dist.P2POp(kind, data, self._global(message.peer), self.group, message.number)

    @staticmethod
    def _move(move: Move, held: dict[int, torch.Tensor], part: Part) -> None:
        came = held.pop(move.came) if move.came >= 0 else None
        source = part(move.source, move.chunks) if move.source is not None else None
        target = part(move.target, move.chunks) if move.target is not None else None
        if move.op is Op.REDUCE and target is not None:
            target.add_(source)
            return
        value = came if source is None else source if came is None else source + came
        if target is not None and value is not None:
            target.copy_(value)
        if move.goes >= 0 and value is not None:
            held[move.goes] = value

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = SUM) -> None:
        """Add a `tensor` over all ranks, in place; `op` is as in torch.distributed."""
        if not self._served("allreduce", tensor, tensor, op):
            dist.all_reduce(tensor, op, group=self.group)

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Gather the `tensor` of all ranks into the `output` of each, by rank."""
        if not self._served("allgather", tensor, output, SUM):
            dist.all_gather_into_tensor(output, tensor, group=self.group)

    def reduce_scatter_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, op: dist.ReduceOp = SUM
    ) -> None:
        """Add a `tensor` over all ranks; each gets its part as `output`; `op` as in torch."""
        if not self._served("reducescatter", tensor, output, op):
            dist.reduce_scatter_tensor(output, tensor, op, group=self.group)

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Send the r-th part of a `tensor` to rank r; parts come into `output` by their rank."""
        if not self._served("alltoall", tensor, output, SUM):
            dist.all_to_all_single(output, tensor, group=self.group)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> None:
        """Give all ranks the `tensor` of rank `src` of the group."""
        if not self._served("broadcast", tensor, tensor, SUM, src):
            dist.broadcast(tensor, self._global(src), group=self.group)

    def reduce(self, tensor: torch.Tensor, dst: int = 0, op: dist.ReduceOp = SUM) -> None:
        """Add a `tensor` over all ranks; rank `dst` of the group gets the sum; `op` as in torch."""
        # The tensors of all other ranks stay as they are.
        work = tensor if self.rank == dst else tensor.clone()
        if not self._served("reduce", work, work, op, dst):
            dist.reduce(tensor, self._global(dst), op, group=self.group)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))

    def ddp_hook(
        self, _state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Average gradients: what ``DistributedDataParallel.register_comm_hook`` takes.

        `bucket` has the gradients as one tensor. A bucket that does not cut into whole chunks is
        filled up.
        """
        own = bucket.buffer()
        chunks = [
            one.program.chunks_per_loop
            for one in self.loaded
            if one.program.collective == "allreduce"
        ]
        rest = -own.numel() % max(chunks, default=1)
        data = torch.cat([own, own.new_zeros(rest)]) if rest else own
        data.div_(self.size)
        self.all_reduce(data)
        if rest:
            own.copy_(data[: own.numel()])
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(own)
        return future


DATA = frozenset({
    "deadlock", "result", "race", "undefined", "leftover", "count", "outside", "overlap", "input",
    "operands",
})  # fmt: skip
"""Rules of the judge that matter where no runtime of MSCCL loads the file."""


def load(library: str | Path, group: dist.ProcessGroup | None = None) -> Collectives:
    """Return collectives that run the programs of a library.

    `library`: the directory that ``taccl tune`` wrote, or one XML file.
    `group`: a group of torch.distributed; None: all ranks.

    Raises InputError when there are none, or one can't be used.
    """
    place = Path(library)
    files = sorted(place.glob("*.xml")) if place.is_dir() else [place]
    if not files:
        raise InputError("has no XML files", file=str(library), fix="let taccl tune make it")
    programs = [read_xml(read_text(file), file=str(file), runtime=RUNTIME) for file in files]
    return Collectives(programs, group)
