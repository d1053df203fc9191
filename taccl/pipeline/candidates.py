"""The programs that can be made of one schedule, and the best of them by replay.

The lowering has choices that only a replay can settle. XML carries no order across ranks: where
ranks share a port, a message can get to it before its turn and delay the one whose turn it is. So
programs are made whose sends keep the schedule's order on one rank's ports, wait for their turn,
or do neither; and with as many connections for a link as hold the messages that the schedule has
under way on it, or with one. When all are slower than the schedule, the messages that overtook
others in the replay are held back, round by round, until a replay finds none or the work is used
up. Where the runtime has steps that receive and add or send on in one, they are used as far as
that costs no time and narrows no range of sizes. Once time is up, the first program that runs must
do. Where a rank would need more threadblocks than it
may have, they send and receive. Of equally fast programs the one with the fewest
steps, then threadblocks, wins.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from taccl.errors import LoweringError
from taccl.msccl.dependencies import ORDERS
from taccl.msccl.draft import Draft
from taccl.msccl.lower import Lowered, LowerOptions, TooManyError, draft_of, finish
from taccl.msccl.program import RECEIVES, Op, Program
from taccl.msccl.runtimes import Runtime
from taccl.msccl.sizes import largest_safe_size
from taccl.schedule import Schedule
from taccl.sim.trace import Span, Trace
from taccl.units import Time

MAX_ROUNDS = 8
"""Rounds of holding messages back."""

FUSED = RECEIVES - {Op.RECV}
"""Step types that receive and do something with the value."""

MAX_MOVES = 30_000
"""Moves lowered in all rounds together, above which large schedules get fewer of them."""


class Player(Protocol):
    """Replays programs at one size."""

    def replay(self, program: Program) -> Time | None:
        """Return what a program takes, or None where it can't run."""

    def accepts(self, program: Program) -> bool:
        """Tell whether a program is what is asked for."""

    def watched(self, program: Program) -> Trace:
        """Return the same with spans."""

    @property
    def late(self) -> bool:
        """Whether the first program that runs must do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program, how it was made, and its time by replay."""

    lowered: Lowered
    options: LowerOptions
    time: Time

    @property
    def cost(self) -> tuple[Time, int, int]:
        """Time, then steps, then threadblocks; the least is best."""
        program = self.lowered.program
        steps = sum(len(block.steps) for _, block in program.blocks())
        return self.time, steps, sum(len(gpu.threadblocks) for gpu in program.gpus)


def best_candidate(
    schedule: Schedule, options: LowerOptions, limits: Runtime, player: Player
) -> Candidate | None:
    """Return the best program of a schedule; None when none of them can run at the size.

    Parameters
    ----------
    limits
        The runtime's.
    player
        Replays programs.

    Raises
    ------
    LoweringError
        When no program keeps the limits: that of the first one that was tried.
    """
    draft = draft_of(schedule, options)
    slots = limits.fifo_slots[options.protocol]
    found, refused = _all_made(draft, _variants(options, slots), player)
    if not found and isinstance(refused, TooManyError):
        found, _ = _all_made(draft, _small_variants(options), player)
    if not found:
        if refused:
            raise refused
        return None
    best = min(found, key=lambda candidate: candidate.cost)
    if best.time > schedule.makespan and not player.late:
        best = min(_held_back(draft, found, player), key=lambda candidate: candidate.cost)
    return _fused(draft, best, limits, player)


def _all_made(
    draft: Draft, variants: Iterable[LowerOptions], player: Player
) -> tuple[list[Candidate], LoweringError | None]:
    """Return the programs of all variants, up to one as fast as the schedule, and an error."""
    found: list[Candidate] = []
    refused: LoweringError | None = None
    for variant in variants:
        if refused and (variant.slots or variant.order == "paced"):
            continue  # It needs more of everything.
        try:
            candidate = _made(draft, variant, player)
        except LoweringError as error:
            refused = refused or error
            continue
        if candidate is None:
            continue
        if not player.accepts(candidate.lowered.program):
            refused = refused or LoweringError(
                "no program of the schedule found adds up in the same order on all ranks",
                fix="use --engine ring, or leave --bitwise-consistent out",
            )
            continue
        found.append(candidate)
        if candidate.time <= draft.schedule.makespan or player.late:
            break
    return found, refused


def _variants(options: LowerOptions, slots: int) -> Iterator[LowerOptions]:
    for order in ORDERS:
        for count in (None, slots):
            yield replace(options, order=order, slots=count)


def _small_variants(options: LowerOptions) -> Iterator[LowerOptions]:
    for order in ORDERS:
        yield replace(options, order=order, paired=True)


def _fused(draft: Draft, best: Candidate, limits: Runtime, player: Player) -> Candidate:
    """Return a candidate with fused steps, if it is as fast and as safe, else the given one."""
    if player.late or not limits.ops >= FUSED:
        return best
    found = [best]
    for ops in (FUSED, frozenset({Op.RECV_REDUCE_COPY})):
        try:
            candidate = _made(draft, replace(best.options, fused=ops), player)
        except LoweringError:
            continue
        if candidate is not None and candidate.cost < best.cost:
            found.append(candidate)
    for candidate in sorted(found, key=lambda candidate: candidate.cost):
        program = candidate.lowered.program
        if candidate is best or (player.accepts(program) and _is_safe(program, limits)):
            return candidate
    return best


def _is_safe(program: Program, limits: Runtime) -> bool:
    """Tell whether a program ends at every size of its range."""
    low, high = program.min_bytes, program.max_bytes
    return largest_safe_size(program, limits.name, low, high) >= high


def _made(draft: Draft, options: LowerOptions, player: Player) -> Candidate | None:
    lowered = finish(draft, options)
    time = player.replay(lowered.program)
    return None if time is None else Candidate(lowered, options, time)


def _held_back(draft: Draft, found: list[Candidate], player: Player) -> Iterator[Candidate]:
    """Yield the candidates, and those with more and more messages held back to their turn."""
    yield from found
    ordered = [candidate for candidate in found if candidate.options.order == "ports"]
    if not ordered:
        return
    current = min(ordered, key=lambda candidate: candidate.cost)
    for _ in range(min(MAX_ROUNDS, MAX_MOVES // (len(draft.moves) + 1))):
        held = dict(current.options.held)
        for number, turn in _overtakers(current, draft, player).items():
            held[number] = max(turn, held.get(number, turn))
        if held == current.options.held:
            return
        try:
            candidate = _made(draft, replace(current.options, held=held), player)
        except LoweringError:
            return
        if candidate is None:
            return
        current = candidate
        if player.accepts(current.lowered.program):
            yield current
        if current.time <= draft.schedule.makespan or player.late:
            return


def _overtakers(candidate: Candidate, draft: Draft, player: Player) -> dict[int, Time]:
    """Return the messages that first made one of another rank wait which should have gone before.

    With each comes the start that the delayed one has in the schedule. Only those that did so
    first are told: what comes later may be a consequence.
    """
    messages, spans = draft.messages, player.watched(candidate.lowered.program).spans

    def message_of(span: Span) -> int:
        return candidate.lowered.senders[span.gpu, span.threadblock, span.step]

    found: list[tuple[Time, int, Time]] = []
    for span in spans:
        if span.link is None or span.waited_for is None:
            continue
        other = spans[span.waited_for]
        if other.link is None or other.gpu == span.gpu:
            continue
        waiting, overtaker = message_of(span), message_of(other)
        if messages[overtaker].start > messages[waiting].start:
            found.append((span.start, overtaker, messages[waiting].start))
    first = min((start for start, _, _ in found), default=0)
    turns: dict[int, Time] = {}
    for start, overtaker, turn in found:
        if start == first:
            turns[overtaker] = max(turn, turns.get(overtaker, turn))
    return turns
