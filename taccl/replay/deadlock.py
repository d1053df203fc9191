"""A replay that stopped before its end: who waits for what, in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taccl.replay.compile import Connection, End


class Wait(NamedTuple):
    """What a threadblock waits for.

    Parameters
    ----------
    step
        Its position in the threadblock.
    need
        The (block, position) whose flag it waits for, or None.
    receiving
        Whether it waits for a message; else, without a need, for a free slot.
    """

    step: int
    need: tuple[int, int] | None
    receiving: bool


@dataclass(frozen=True, slots=True)
class Standstill:
    """The end of a replay.

    Parameters
    ----------
    ends
        (rank, threadblock id) of each block.
    connections
        Of the program.
    inbound, outbound
        Connections of a block, None or -1: none.
    senders, receivers
        Blocks of a connection, None or -1: none.
    is_done, wait
        Whether a block has finished, and what it waits for if not.
    """

    ends: Sequence[End]
    connections: Sequence[Connection]
    inbound: Sequence[int | None]
    outbound: Sequence[int | None]
    senders: Sequence[int | None]
    receivers: Sequence[int | None]
    is_done: Callable[[int], bool]
    wait: Callable[[int], Wait]


def deadlock(end: Standstill) -> str:
    """Return who waits for what, starting at the first threadblock that can't go on.

    Empty when all have finished.
    """
    stuck = [block for block in range(len(end.ends)) if not end.is_done(block)]
    if not stuck:
        return ""
    parts: list[str] = []
    seen: set[int] = set()
    block: int | None = stuck[0]
    while block is not None and block not in seen and len(parts) < 4:
        seen.add(block)
        text, block = _wait(end, block)
        parts.append(text)
    more = f" ({len(stuck)} threadblocks in all)" if len(stuck) > len(parts) else ""
    return f"deadlock: {'; '.join(parts)}{more}"


def _wait(end: Standstill, block: int) -> tuple[str, int | None]:
    """Return what a stuck threadblock waits for, in words, and the one that should provide it."""
    rank, threadblock = end.ends[block]
    step, need, receiving = end.wait(block)
    who = f"rank {rank} threadblock {threadblock} step {step}"
    if need is not None:
        other, position = need
        if other == len(end.ends):
            return f"{who} waits for a threadblock that does not exist", None
        text = f"{who} waits for step {position} of threadblock {end.ends[other][1]}"
        return _unless_done(end, text, other, "which has finished without posting it")
    number = end.inbound[block] if receiving else end.outbound[block]
    if number is None or number < 0:
        return f"{who} waits for ever", None
    wire = end.connections[number]
    if receiving:
        text = f"{who} waits for a message from rank {wire.src} on channel {wire.channel}"
        return _unless_done(end, text, end.senders[number], "which sends no more")
    text = f"{who} waits for a free slot to rank {wire.dst} on channel {wire.channel}"
    return _unless_done(end, text, end.receivers[number], "which receives no more")


def _unless_done(
    end: Standstill, text: str, other: int | None, ending: str
) -> tuple[str, int | None]:
    if other is None or other < 0 or end.is_done(other):
        return f"{text}, {ending}", None
    return text, int(other)
