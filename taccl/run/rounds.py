"""Programs as rounds of messages, for whoever has sends and receives but no threadblocks.

In a round a rank exchanges messages, then it copies and adds. A send goes in the first round after
what it needs, and its message is received in the same round, so both ends agree, and nothing waits
for a message of a later round.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, cast

from taccl.errors import InputError
from taccl.msccl.program import Op, Program, Slot, Step
from taccl.msccl.run import maximal_run, places


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
