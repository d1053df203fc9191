"""Programs of schedules: which there are of one, the fastest by replay, its judges, its score.

The lowering has choices that only a replay can settle. XML carries no order across ranks: where
ranks share a port, a message can get to it before its turn and delay the one whose turn it is. So
programs are made whose sends keep the schedule's order on one rank's ports, wait for their turn,
or do neither; and with as many connections for a link as hold the messages that the schedule has
under way on it, or with one. When all are slower than the schedule, the messages that overtook
others in the replay are held back, round by round, until a replay finds none or the work is used
up. Where the runtime has steps that receive and add or send on in one, they are used as far as
that costs no time and narrows no range of sizes. Once time is up, the first program that runs must
do. Where a rank would need more threadblocks than it may have, they send and receive. Of equally
fast programs the one with the fewest steps, then threadblocks, wins.

What a schedule really costs is the replay of its program; each is lowered once for a request. More
chunks leave more of a size over, so programs of different chunk counts are replayed at one size
that all of them cut into whole chunks; their own sizes are kept for what is written.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice, product
from math import lcm
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from taccl.collectives import COLLECTIVES, Collective, has_xml
from taccl.errors import InputError, LoweringError, ScheduleError
from taccl.lowering.blocks import stretches_of, ways_needed
from taccl.lowering.dependencies import ORDERS
from taccl.lowering.draft import Draft
from taccl.lowering.lower import (
    Lowered,
    LowerOptions,
    TooManyError,
    draft_of,
    finish,
    modes_served,
    sums_aside,
)
from taccl.model.problem import problem_of
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import judge, order_findings
from taccl.msccl.limits import WHY, hangs_between_servers
from taccl.msccl.program import RECEIVES, Op, Program
from taccl.msccl.run import MAX_WORK, Safe, largest_safe_size, safe_size, steps_of, work_of
from taccl.msccl.runtimes import RUNTIMES, Runtime
from taccl.replay.cost import ReplayModel, local_time, model_of, sharing_of
from taccl.replay.expected import MOST_INSTANCES, expected_time
from taccl.replay.interpreter import Span, replay
from taccl.replay.timing import Timing, traces
from taccl.synth.templates.classical import classical_schedules
from taccl.timing.deadline import Deadline, TimeUp, forget, kept
from taccl.topology.graph import LogicalTopology, Topology
from taccl.units import MAX_SIZE, Time
from taccl.verify import require_valid

MAX_ROUNDS = 8
"""Rounds of holding messages back."""

FUSED = RECEIVES - {Op.RECV}
"""Step types that receive and do something with the value."""

MAX_MOVES = 30_000
"""Moves lowered in all rounds together, above which large schedules get fewer of them."""

COPIES = (2, 4)
"""Instances that are tried where none are asked for."""

MEASURED_COPIES = tuple(1 << power for power in range(MOST_INSTANCES.bit_length()))
"""The same where a threadblock has a rate of its own, and it takes several to fill a link.

In place of those into which the elements of a chunk do not divide come :func:`copies_near`.
"""

FILLING = 4
"""Instances that fill a link."""

LEAST = Fraction(7, 8)
"""Of the size that is asked for: a smaller one says too little of it."""

HASTY = Fraction(3, 2)
"""Times what the best number of them takes at least, that fewer may take once time is up."""

LIKELY = 2
"""The place of the one to start from: more, then fewer, are tried while they are better."""

RIVAL = 1.25
"""Times what the best first program takes, that those of other protocols may take."""

LOST = 1.5
"""Times the best, that the first program of a protocol takes of which no other one will do."""

ALL_PAIRS = 2
"""Messages of a series that go through a link where all ranks send to all, once for each phase."""

SHARED = 8
"""Times the messages of a series on a link, at least, as many as the busiest carries."""

JOINED = 2
"""Times the threadblocks that send, where those that receive do, too."""

SPREAD = 3
"""Numbers of instances with which threadblocks are spread: the most that they allow, and fewer."""

STRETCHES = (Fraction(1), Fraction(2, 3))
"""Of what the busiest edge takes, how long the stretches of a link are that are tried."""

NEAR_BUSIEST = Fraction(103, 100)
"""Times that: no program is much faster, whatever its threadblocks do."""

WORTH_DOUBLING = 0.0005
"""What twice these have to save."""

BETWEEN_SERVERS = ("LL128", "LL")
"""The protocols where Simple hangs, the one with fewer bytes on the wire first."""

WORTH_COPIES = Fraction(1, 20)
"""What they have to save: they use as many times the threadblocks, and want finer sizes."""


@dataclass(frozen=True)
class Target:
    """What program is wanted.

    `runtime`: a name of RUNTIMES.
    `protocol`: ``Simple``, ``LL`` or ``LL128``; ``auto``: Simple, and where that hangs (a broadcast
    or reduce between servers) LL128 or LL, by replay.
    `modes`: ``auto`` (what one program serves at no cost), ``inplace``, ``outofplace`` or ``both``.
    `instances`, `channels`: copies of the program, None: as many as the replay finds worth it; the
    most channels.
    `min_bytes`, `max_bytes`: the size range; None: from a quarter of the size to four times it.
    `element_bytes`: bytes of an element.
    `bitwise`: all ranks must add up in one order, so that their results have the same bits.
    `measured`: programs are charged what their topology's were measured to cost.
    """

    runtime: str = "portable"
    protocol: str = "auto"
    modes: str = "auto"
    instances: int | None = 1
    channels: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    element_bytes: int = 4
    bitwise: bool = False
    measured: bool = False

    @property
    def model(self) -> ReplayModel:
        """The constants of the replay."""
        return replace(model_of(self.runtime, self.element_bytes), measured=self.measured)

    @property
    def orders(self) -> tuple[str, ...]:
        """How closely sends may keep the schedule's order, what is likely best first.

        Where messages share edges, none beyond the data's is, if many small ones do not block it.
        """
        return ORDERS[::-1] if self.measured else ORDERS

    def within(self, channels: int | None) -> "Target":
        """Return the target with no more channels than a sketch allows."""
        given = [limit for limit in (self.channels, channels) if limit is not None]
        return replace(self, channels=min(given, default=None))

    def message_bytes(self, collective: str, topology: Topology) -> int:
        """Return the most bytes of a message in the protocols that there are to choose from.

        Raises InputError when the one that is asked for hangs.
        """
        sizes = RUNTIMES[self.runtime].message_bytes
        return max(sizes[name] for name in self.protocols(collective, topology))

    def protocols(self, collective: str, topology: Topology) -> tuple[str, ...]:
        """Return the protocols to choose from, the likely one first.

        Raises InputError when the one that is asked for hangs, or has no measured costs.
        """
        hangs = topology.num_servers > 1 and hangs_between_servers(collective, "Simple")
        if hangs and self.protocol == "Simple":
            raise InputError(
                f"a {collective} between servers hangs with Simple: {WHY}", field="--protocol",
                fix="leave --protocol out, or use LL128 or LL",
            )  # fmt: skip
        costs = topology.measured.protocols if topology.measured and self.measured else None
        if costs is not None and self.protocol not in ("auto", *costs):
            raise InputError(
                f"{topology.name} has no measured costs of {self.protocol}", field="--protocol",
                fix=f"use {' or '.join(costs)}, or --profile alpha-beta",
            )  # fmt: skip
        if self.protocol != "auto":
            return (self.protocol,)
        if costs is not None:
            known = tuple(name for name in ("Simple", *BETWEEN_SERVERS)[hangs:] if name in costs)
            if not known:
                raise InputError(
                    f"{topology.name} has measured costs of Simple alone, with which a {collective}"
                    f" between servers hangs: {WHY}", field="--profile", fix="use alpha-beta",
                )  # fmt: skip
            return known
        return BETWEEN_SERVERS if hangs else ("Simple",)

    def divisor(self, chunks: int) -> int:
        """Return what the bytes of a buffer of so many chunks must be a multiple of."""
        return chunks * self.copies * self.element_bytes

    @property
    def max_threadblocks(self) -> int:
        """The threadblocks of a rank that any step can wait for."""
        limits = RUNTIMES[self.runtime]
        return min(limits.max_threadblocks, limits.max_dependence_id + 1)

    @property
    def most_peers(self) -> int:
        """The peers of a rank for which there are threadblocks: one for each, and each instance."""
        return self.max_threadblocks // self.copies

    @property
    def copies(self) -> int:
        """The instances that are asked for, or one."""
        return self.instances or 1

    def whole_size(self, size: int, chunks: int) -> int:
        """Return the largest size up to ``size`` that cuts into whole chunks of elements.

        Where a range of sizes is asked for, or ``size`` itself does not, and instances may be
        chosen, also into powers of two of these, as long as that is nearly all of ``size``: a file
        of seven instances would serve no power of two.
        """
        unit = self.divisor(chunks)
        inexact = (self.min_bytes, self.max_bytes) != (None, None) or size % unit
        if inexact and self.measured and self.instances is None:
            units = (unit * copies for copies in reversed(MEASURED_COPIES))
            unit = next((one for one in units if size - size % one >= LEAST * size), unit)
        return size - size % unit

    def size_range(self, size: int) -> tuple[int, int]:
        """Return the least and the most bytes that a program for ``size`` bytes is to serve.

        Raises InputError when there is no size between them.
        """
        low = size // 4 if self.min_bytes is None else self.min_bytes
        high = min(size * 4, MAX_SIZE) if self.max_bytes is None else self.max_bytes
        if low > high:
            raise InputError(
                f"the size range {low}..{high} is empty",
                field="--max-bytes" if self.min_bytes is None else "--min-bytes",
                fix="give --min-bytes below --max-bytes, which left out are a quarter of --size and"
                " four times it",
            )
        return low, high

    def claimed(self, schedule: Schedule) -> tuple[bool, bool]:
        """Return (in place, out of place): the modes to be served."""
        if self.modes == "auto":
            return modes_served(schedule.collective)
        return self.modes != "outofplace", self.modes != "inplace"


class _Kind(NamedTuple):
    """Whether steps are `fused`, which threadblocks add, and whether those that receive send, too.

    `sums` is one of SUMS.
    """

    fused: bool
    sums: str
    joined: bool = False


class _Way(NamedTuple):
    """What edges and threadblocks alone take, in picoseconds, in so many `copies`."""

    floor: float
    copies: int
    protocol: str


class _Leader(NamedTuple):
    """A first program of a `kind`, its `price`, about picoseconds, and the `task` that has it."""

    price: float
    task: "Lowering"
    kind: _Kind


@dataclass(frozen=True, eq=False)
class Lowering:
    """A schedule's programs for one target, at one `size`, a multiple of ``target.divisor`` bytes.

    The program is labelled `name`; `made` has the fastest one and its time, where they are known,
    and `over` tells whether time is up. With measured costs, where a first program takes longer
    than `enough`, it is not improved; those with `fused` steps come before those without, with
    threadblocks that are left over `spread` to busy links, and the fastest of the first ones, with
    its time, is kept as `first`; in it threadblocks that receive also send where they are `joined`,
    and others add where sums are `aside`. `drafts` are those that were made, while programs are
    compared. A rank had so many `blocks` in a program without fused steps of a like schedule; with
    them it may have fewer, so that more instances are still tried, but not first.
    """

    schedule: Schedule
    target: Target
    size: int
    name: str
    made: tuple[Program, Time] | None = None
    over: Callable[[], bool] = lambda: False
    enough: Time | None = None
    fused: bool = False
    spread: bool = False
    joined: bool = False
    aside: bool = False
    first: tuple[Program, Time] | None = None
    blocks: int = 1
    drafts: dict[bool, Draft] = field(default_factory=dict)

    @property
    def limits(self) -> Runtime:
        """What the runtime allows."""
        return RUNTIMES[self.target.runtime]

    @cached_property
    def best(self) -> tuple[Program, Time]:
        """The fastest program by replay, with its time in picoseconds.

        Raises LoweringError when no program fits the runtime.
        """
        if self.made is not None:
            program, time = self.made
            return replace(program, name=self.name), time
        # Where time is up, the first program is not made again.
        found = None if self.first is not None and self.over() else best_variant(self)
        if self.first is not None and (found is None or self.first[1] < found.time):
            program, _ = self.first
            held = self.fused or self.joined
            if self.accepts(program) and (not held or _is_safe(self, program)):
                return self.first
        found = found or best_variant(self)
        if found is None:
            raise LoweringError(
                f"no program for {self.target.runtime} runs at {self.size} bytes",
                fix="use another size or protocol",
            )
        return found.lowered.program, found.time

    @cached_property
    def protocols(self) -> tuple[str, ...]:
        """The protocols to choose from; until :meth:`settled` does, it is the first.

        Raises InputError when the one that is asked for hangs.
        """
        return self.target.protocols(self.schedule.collective.name, self.schedule.topology)

    def settled(self) -> "Lowering":
        """Return the same for a definite protocol and a definite number of instances.

        Of several protocols the one with the shortest replay, flags on the wire counted, is taken.
        With measured costs both are chosen together, by what first programs take.

        Raises InputError when the protocol that is asked for hangs; LoweringError when no program
        fits the runtime.
        """
        if self.target.measured:
            return self._as_measured() if self.made is None else self
        chosen = self._with_instances()
        if len(self.protocols) > 1:
            target = replace(chosen.target, protocol=self.protocols[0])
            chosen = replace(chosen, target=target, made=chosen.best)
        for protocol in self.protocols[1:]:
            other = replace(chosen, target=replace(chosen.target, protocol=protocol), made=None)
            if self.over():
                break
            try:
                times = [one.on_the_wire() for one in (other, chosen)]
            except LoweringError:
                continue
            if times[0] < times[1]:
                chosen = other
        return chosen

    def on_the_wire(self) -> Time:
        """Return what the best program takes with all the bytes that its protocol sends."""
        program, _ = self.best
        (trace,) = traces(
            program, self.schedule.topology, (self.size,), self.target.model, protocol_costs=True
        )
        return self.best[1] if trace.time is None else trace.time

    def _as_measured(self) -> "Lowering":
        """Return the same for the protocol and the instances with which a first program is best.

        Of that one, what is added to a place may be added by one threadblock, and threadblocks that
        are left over may serve busy links. Of protocols whose first programs are nearly as fast,
        the one that wins by the order of its sends is taken.
        """
        chunks = self.schedule.collective.chunks_in_size
        elements = self.size // self.target.divisor(chunks)
        counts = [copies_near(count, elements) for count in MEASURED_COPIES]
        counts = counts if self.target.instances is None else [self.target.instances]
        hasty = self.over()
        near = counts[:1] if hasty else [n for n in counts[LIKELY::-1] if n] or counts[:1]
        fits = self.target.max_threadblocks // self.blocks
        near = [count for count in near if count <= fits] or near[-1:]
        begun = [
            replace(self, target=replace(self.target, instances=n, protocol=self.protocols[0]))
            for n in near
        ]
        if self.target.instances is None and _has_rings(begun[0]):
            begun = [*(replace(task, spread=True) for task in begun), *begun]
        together = "together" if self.schedule.collective.reduces else "apart"
        kinds = list(dict.fromkeys((
            *((_Kind(fused=True, sums=together),) if self.limits.ops >= FUSED else ()),
            _Kind(fused=False, sums="apart"), _Kind(fused=False, sums=together),
        )))  # fmt: skip
        kinds = [_Kind(fused=False, sums="apart")] if hasty else kinds
        bases = ((kind, task, task.first_program(kind)) for task, kind in product(begun, kinds))
        kind, task, base = next((one for one in bases if one[2]), (kinds[0], begun[-1], None))
        if base is None:
            return task  # its variants may fit
        own = replace(self, spread=task.spread)
        leaders = own.by_instances(kind, base, task.target.copies, counts)
        if not leaders:
            raise LoweringError(
                f"no program for {self.target.runtime} runs at {self.size} bytes",
                fix="use another size or protocol",
            )
        first, *others = leaders
        lost = LOST * (self.enough or math.inf)
        if not hasty and self.target.instances is None:  # else so many, and no more, are wanted
            most = first.task.most_spread()
            if first.price * first.task.target.copies <= lost * most:
                if not first.task.spread:
                    first = self._spread(first, counts, most)
                first = self._joined(first, counts)
        if not hasty and first.price <= lost:
            for other in kinds:
                if other is not kind and not self.over():
                    first = min(first, first.task.tried(other) or first, key=lambda one: one.price)
        return self._fastest([first, *others])

    def by_instances(
        self, kind: _Kind, base: Program, begun: int, counts: Sequence[int]
    ) -> "list[_Leader]":
        """Return the best first program of a kind in each protocol, over the `counts` of instances.

        Those are tried first whose busiest edge and threadblock take least, until they alone take
        longer than the best. The `base` has so many instances, `begun` with.
        """
        # Those of protocols that post before a send is over wait for more.
        opens = self.limits.open_sends
        made: dict[tuple[int, bool], Program | None] = {(begun, self.protocols[0] in opens): base}
        leaders: dict[str, _Leader] = {}
        tried: dict[str, dict[int, float]] = defaultdict(dict)
        least = math.inf
        for floor, copies, name in self._ways(kind, base, begun, counts):
            found = tried[name]
            if min(found.values(), default=0) > LOST * min(least, self.enough or math.inf):
                continue
            key = copies, name in opens
            # Once time is up, what is made is still replayed: that takes far less than making it.
            if floor >= least or (least < math.inf and key not in made and self.over()):
                continue
            best = min(found, key=lambda count: found[count], default=copies)
            if any(min(copies, best) < count < max(copies, best) for count in found):
                continue  # the wrong way from the best of its protocol
            hoped = min(copies, best) / max(copies, best) * found.get(best, floor)
            if hoped >= least:
                continue  # so many times the threadblocks save as much at most
            wanted = replace(self, target=replace(self.target, instances=copies, protocol=name))
            if key not in made:
                made[key] = wanted.first_program(kind)
            leader = wanted.tried(kind, made[key])
            if leader is None:
                continue  # it does not fit, which says nothing of those with fewer
            found[copies] = leader.price
            if name not in leaders or leader.price < leaders[name].price:
                leaders[name] = leader
                least = min(least, leader.price)
        return sorted(leaders.values(), key=lambda leader: leader.price)

    def tried(self, kind: _Kind, program: Program | None = None) -> "_Leader | None":
        """Return the first program of a kind, made here if it is not given; None: it does not fit.

        Where it takes longer than enough, it is the best as well.
        """
        program = program or self.first_program(kind)
        program = program and replace(program, protocol=self.target.protocol)
        time = None if program is None else self.replay(program)
        if program is None or time is None:
            return None
        task = replace(
            self, made=None, fused=kind.fused, joined=kind.joined, aside=kind.sums == "aside",
            first=(program, time),
        )  # fmt: skip
        if self.enough is not None and time > self.enough:
            task = replace(self, made=(program, time))
        price = time * (1 + WORTH_DOUBLING * (self.target.copies.bit_length() - 1))
        return _Leader(price, task, kind)

    def most_spread(self) -> int:
        """Return how many instances have threadblocks for all ends of links."""
        draft = draft_of(self.schedule, self.options_for(self.protocols[0]), self.drafts)
        ends = Counter(end for lane in set(draft.lanes) for end in (lane.src, lane.dst))
        return max(
            self.target.copies, self.target.max_threadblocks // max(ends.values(), default=1)
        )

    def _spread(self, first: "_Leader", counts: Sequence[int], most: int) -> "_Leader":
        """Return the first of all, or what is faster with threadblocks spread.

        They are with `most` instances at most, of the `counts`.
        """
        best, task = first, first.task
        chunks = self.schedule.collective.chunks_in_size
        whole = copies_near(most, self.size // task.target.divisor(chunks))
        # Of what is no power of two it need not be one, either.
        full = (whole,) if chunks & (chunks - 1) else ()
        tried = [n for n in dict.fromkeys((*full, *reversed(counts))) if 0 < n <= most]
        for copies in tried[:SPREAD]:
            if self.over():
                break
            wanted = replace(
                task, target=replace(task.target, instances=copies), spread=True, made=None,
            )  # fmt: skip
            best = min(best, wanted.tried(first.kind) or best, key=lambda one: one.price)
        return best

    def _joined(self, first: "_Leader", counts: Sequence[int]) -> "_Leader":
        """Return the first of all, or what is faster where threadblocks that receive also send.

        It has as many instances as there is room for, or one of the `counts` below that. Nothing is
        tried where the threadblocks of the first are not what its time comes from.
        """
        task = first.task
        program, _ = task.first or (None, 0)
        if program is None or self.over():
            return first
        timing = Timing(program, self.schedule.topology, self.target.model)
        if timing.least(self.size, JOINED) >= timing.least(self.size):
            return first
        draft = draft_of(self.schedule, task.options_for(task.target.protocol), self.drafts)
        loads = Counter(zip(draft.lanes, draft.series, strict=True))
        busiest = max(loads.values(), default=0)
        # Series of few messages, as those between servers are beside rings, share a threadblock.
        own = {(lane, one * (SHARED * load > busiest)) for (lane, one), load in loads.items()}
        ends = Counter(end for lane, _ in own for end in (lane.src, ~lane.dst))
        elements = self.size // task.target.divisor(self.schedule.collective.chunks_in_size)
        best, joined = first, first.kind._replace(joined=True)
        aside = 0 if joined.fused else sums_aside(draft)
        # Where they are cut in two, each would idle while the other works.
        cut = aside and 2 * busiest < self.limits.max_steps < 3 * busiest
        for kind, extra in ((joined._replace(sums="aside"), aside), (joined, 0))[not cut :]:
            most = task.target.max_threadblocks // (max(ends.values(), default=1) + extra)
            # One less is for files that are too long with the most.
            fewer = copies_near(most - 1, elements)
            tried = dict.fromkeys((copies_near(most, elements), fewer, *reversed(counts)))
            fit = (n for n in tried if 0 < n <= most and (n != fewer or best is first))
            for copies in islice(fit, SPREAD):
                if self.over() or best.task.aside:
                    break
                wanted = replace(
                    task, target=replace(task.target, instances=copies), spread=True, made=None
                )
                made = wanted.tried(kind)
                program, _ = (made and made.task.first) or (None, 0)
                if made and program and made.price < best.price and _is_safe(wanted, program):
                    best = made
        return best

    def _ways(self, kind: _Kind, base: Program, begun: int, counts: Sequence[int]) -> list[_Way]:
        """Return what to try of a kind, by what edges and threadblocks alone take.

        The `base` has so many instances, `begun` with, of the `counts`. Where time is up, there
        come first those with few threadblocks, as far as they do not slow it down much.
        """
        rows: list[tuple[float, int, int, str]] = []
        fit = self.target.max_threadblocks // (base.num_threadblocks // begun)
        fit = self.most_spread() if self.spread else fit
        for name in self.protocols:
            timing = Timing(replace(base, protocol=name), self.schedule.topology, self.target.model)
            rows += (
                (timing.least(self.size, copies / begun), abs(place - LIKELY), -copies, name)
                for place, copies in enumerate(counts)
                if copies and (kind.fused or copies <= fit)
            )
        rows.sort()
        if self.over():
            most, quickest = float(HASTY * rows[0][0]), rows[0][3]
            rows.sort(key=lambda row: (row[0] > most, row[3] != quickest, -row[2]))
        return [_Way(floor, -copies, name) for floor, _, copies, name in rows]

    def _fastest(self, leaders: "list[_Leader]") -> "Lowering":
        """Return the one whose best program takes least of `leaders`, the best of each protocol."""
        first, *others = leaders
        chosen = first.task
        for rival in others:
            if rival.price > RIVAL * first.price or self.over():
                break
            with suppress(LoweringError):
                chosen = min(chosen, rival.task, key=lambda one: one.best[1])
        return chosen

    def first_program(self, kind: _Kind) -> Program | None:
        """Return a program of a ``kind`` whose sends keep no order; None: it does not fit."""
        options = replace(
            self.options_for(self.target.protocol), order=self.target.orders[0],
            fused=FUSED if kind.fused else frozenset(), sums=kind.sums, spread=self.spread,
            joined=kind.joined,
        )  # fmt: skip
        try:
            return finish(draft_of(self.schedule, options, self.drafts), options).program
        except LoweringError:
            return None

    def _with_instances(self) -> "Lowering":
        """Return the same for a definite number of instances.

        Where none is asked for and messages do not occupy links for all of their latency, several
        instances can share it; they are taken where the replay is shorter by WORTH_COPIES.
        """
        if self.target.instances is not None:
            return self
        one = replace(self, target=replace(self.target, instances=1))
        links = self.schedule.topology.links
        if not (links.overhead < links.alpha).any():
            return one
        limit, chosen = one.best[1] * (1 - WORTH_COPIES), one
        elements = self.size // one.target.divisor(self.schedule.collective.chunks_in_size)
        for count in COPIES:
            copies = copies_near(count, elements)
            if self.over() or not copies:
                continue
            target = replace(self.target, instances=copies)
            several = replace(self, target=target, made=None)
            try:
                if several.best[1] < chosen.best[1] and several.best[1] <= limit:
                    chosen = several
            except LoweringError:
                break
        return chosen

    def accepts(self, program: Program) -> bool:
        """Tell whether a program is what the target asks for."""
        return not self.target.bitwise or not any(order_findings(program))

    def options_for(self, protocol: str) -> LowerOptions:
        """Return what every variant of the program with a ``protocol`` has in common."""
        limits, target = self.limits, self.target
        in_place, out_of_place = target.claimed(self.schedule)
        low, high = target.size_range(self.size)
        adding = 0
        if target.measured:
            costs, share = sharing_of(self.schedule.topology, protocol), self.schedule.chunk_size
            adding = local_time(Op.REDUCE, costs.local, Fraction(share) / FILLING)
            adding = adding if adding > costs.flag else 0  # else flags are what sums wait for
        return LowerOptions(
            name=self.name,
            protocol=protocol,
            in_place=in_place,
            out_of_place=out_of_place,
            instances=target.copies,
            channels=min(target.channels or limits.max_channels, limits.max_channels),
            min_bytes=low,
            max_bytes=high,
            max_steps=limits.max_steps,
            max_threadblocks=target.max_threadblocks,
            adding=adding,
            open_sends=protocol in limits.open_sends,
        )

    def replay(self, program: Program) -> Time | None:
        """Return what a program takes at the size, or None where it can't run."""
        (trace,) = traces(program, self.schedule.topology, (self.size,), self.target.model)
        return trace.time

    def proved(self) -> Program:
        """Return the best program, cut to the sizes it is safe at, after every judge agreed.

        Raises ScheduleError when a judge objects; LoweringError when no program fits the runtime;
        InputError when the size range is empty.
        """
        program = replace(self.best[0], name=self.name)
        runtime = self.target.runtime
        found: Safe | None = None
        steps = steps_of(program)
        if work_of(program) <= MAX_WORK:
            found = safe_size(program, runtime, program.min_bytes, program.max_bytes, steps)
        if found is not None and found.size is not None and found.size < program.max_bytes:
            if found.size < program.min_bytes or found.size <= 0:
                raise LoweringError(
                    f"the program deadlocks at every size of {program.min_bytes}.."
                    f"{program.max_bytes} bytes",
                    fix="lower --min-bytes, or use --batch none",
                )
            program, found = replace(program, max_bytes=found.size), None
        collective = self.schedule.collective
        # The name and the chunk count of a program say the rest.
        known = collective.name in COLLECTIVES and collective.root is None
        asked = None if known else collective.cut(self.target.copies)
        findings = judge(program, runtime, asked, found, steps)
        if findings:
            raise ScheduleError(f"program {program.name}", findings)
        return program


def copies_near(count: int, elements: int) -> int:
    """Return the most instances up to a `count`, and above half of it, into which a chunk divides.

    The `elements` are those of a chunk; 0: there are none. A gigabyte is 5^9 small powers of two.
    """
    near = range(count, count // 2, -1)
    return next((copies for copies in near if elements % copies == 0), 0)


def lowering_of(
    schedule: Schedule, target: Target, size: int, engine: str,
    over: Callable[[], bool] = lambda: False, enough: Time | None = None,
) -> Lowering:  # fmt: skip
    """Return the task of lowering a `schedule` for a `target`, within what a sketch allows.

    The buffer has `size` bytes, perhaps more than make whole chunks; the program is named after the
    `engine`. Where `over` tells that time is up, the first program that runs must do; with measured
    costs it must also do where it takes longer than `enough` picoseconds.
    """
    collective = schedule.collective
    chunks = collective.chunks_per_rank
    name = f"{collective.name}-{schedule.topology.name}-{engine}-k{chunks}"
    size = target.whole_size(size, collective.chunks_in_size)
    return Lowering(schedule, target, size, name, over=over, enough=enough)


@dataclass(frozen=True, slots=True)
class Variant:
    """A program, how it was made, and its time by replay in picoseconds."""

    lowered: Lowered
    options: LowerOptions
    time: Time

    @property
    def cost(self) -> tuple[Time, int, int]:
        """Time, then steps, then threadblocks; the least is best."""
        program = self.lowered.program
        steps = sum(len(block.steps) for _, block in program.blocks())
        return self.time, steps, sum(len(gpu.threadblocks) for gpu in program.gpus)


def best_variant(task: Lowering) -> Variant | None:
    """Return the best program of a schedule; None when none of them can run at the size.

    Raises InputError when the protocol that is asked for hangs; LoweringError when no program keeps
    the limits: that of the first one that was tried.
    """
    options = replace(
        task.options_for(task.protocols[0]), spread=task.spread, joined=task.joined,
        sums="aside" if task.aside else "apart",
    )  # fmt: skip
    draft = draft_of(task.schedule, options, task.drafts)
    slots = task.limits.fifo_slots[options.protocol]
    # One connection is enough where no link has more messages under way than it holds.
    crowded = bool(ways_needed(draft.messages, draft.lanes, slots))
    orders = list(product(task.target.orders, (None, slots)[: 1 + crowded]))
    if task.fused:
        sums = "together" if draft.schedule.collective.reduces else "apart"
        found, _ = _all_made(task, draft, (
            replace(options, order=order, slots=count, fused=FUSED, sums=sums)
            for order, count in orders
        ))  # fmt: skip
        for variant in sorted(found, key=lambda variant: variant.cost):
            if _is_safe(task, variant.lowered.program):
                return variant
    found, refused = _all_made(
        task, draft, (replace(options, order=order, slots=count) for order, count in orders)
    )
    if not found and isinstance(refused, TooManyError):
        joined = (replace(options, order=order, joined=True) for order in task.target.orders)
        found, _ = _all_made(task, draft, joined)
    if not found:
        if refused:
            raise refused
        return None
    found += _in_stretches(task, draft, min(found, key=lambda variant: variant.cost))
    best = min(found, key=lambda variant: variant.cost)
    # Where edges are shared, no message overtakes another.
    if best.time > task.schedule.makespan and not (task.target.measured or task.over()):
        best = min(_held_back(task, draft, found), key=lambda variant: variant.cost)
    if task.target.measured and draft.schedule.collective.reduces and not task.over():
        # Where flags take time, a sum of many should not wait for one after the other.
        other = replace(best.options, sums="together")
        best = min([*_all_made(task, draft, [other])[0], best], key=lambda variant: variant.cost)
    return _fused(task, best, draft)


def _all_made(
    task: Lowering, draft: Draft, variants: Iterable[LowerOptions]
) -> tuple[list[Variant], LoweringError | None]:
    """Return the programs of all variants, up to one as fast as the schedule, and an error."""
    found: list[Variant] = []
    refused: LoweringError | None = None
    for options in variants:
        if refused and (options.slots or options.order == "paced"):
            continue  # It needs more of everything.
        try:
            variant = _made(task, draft, options)
        except LoweringError as error:
            refused = refused or error
            continue
        if variant is None:
            continue
        if task.joined and not _is_safe(task, variant.lowered.program):
            continue
        if not task.accepts(variant.lowered.program):
            refused = refused or LoweringError(
                "no program of the schedule found adds up in the same order on all ranks",
                fix="use --engine ring, or leave --bitwise-consistent out",
            )
            continue
        found.append(variant)
        if variant.time <= draft.schedule.makespan or task.over():
            break
    return found, refused


def _in_stretches(task: Lowering, draft: Draft, best: Variant) -> Iterator[Variant]:
    """Yield variants in which iterations overlap as far as the busiest edge lets them.

    There are none where there is one iteration, or the `best` already is as fast as that edge; nor
    with measured costs, by which several instances do as much.
    """
    schedule, program = draft.schedule, best.lowered.program
    message, _ = task.target.model.of_protocol(program.protocol)
    busiest = max(schedule.edge_busy)
    sliced = schedule.chunk_size > task.target.copies * message
    if task.target.measured or not sliced or best.time <= NEAR_BUSIEST * busiest:
        return
    for share in STRETCHES:
        longest = int(share * busiest)
        if task.over() or not any(stretches_of(draft.messages, draft.lanes, longest).values()):
            return
        with suppress(LoweringError):  # it may need more threadblocks than there are
            made = _made(task, draft, replace(best.options, stretch=longest))
            if made is not None and task.accepts(made.lowered.program):
                yield made


def _made(task: Lowering, draft: Draft, options: LowerOptions) -> Variant | None:
    lowered = finish(draft, options)
    time = task.replay(lowered.program)
    return None if time is None else Variant(lowered, options, time)


def _fused(task: Lowering, best: Variant, draft: Draft) -> Variant:
    """Return a variant with fused steps, if it is as fast and as safe, else the given one."""
    if task.over() or not task.limits.ops >= FUSED:
        return best
    faster: list[Variant] = []
    for ops in (FUSED, frozenset({Op.RECV_REDUCE_COPY})):
        try:
            variant = _made(task, draft, replace(best.options, fused=ops))
        except LoweringError:
            continue
        if variant is not None and variant.cost < best.cost:
            faster.append(variant)
    for variant in sorted(faster, key=lambda variant: variant.cost):
        if task.accepts(variant.lowered.program) and _is_safe(task, variant.lowered.program):
            return variant
    return best


def _has_rings(task: Lowering) -> bool:
    """Return whether several rings go through links: each has threadblocks of its own there.

    Else one would wait for the other.
    """
    try:
        draft = draft_of(task.schedule, task.options_for(task.protocols[0]), task.drafts)
    except LoweringError:
        return False
    passes = Counter(zip(draft.lanes, draft.series, strict=True))
    busiest = max(passes.values(), default=0)
    several = {lane: times for lane, times in passes.items() if SHARED * times > busiest}
    lanes = {lane for lane, _ in several}
    return len(several) > len(lanes) and {busiest} == set(several.values()) and busiest > ALL_PAIRS


def _is_safe(task: Lowering, program: Program) -> bool:
    """Tell whether a program whose threadblocks receive and send ends at all of its sizes."""
    low, high = program.min_bytes, program.max_bytes
    return largest_safe_size(program, task.limits.name, low, high) >= high


def _held_back(task: Lowering, draft: Draft, found: list[Variant]) -> Iterator[Variant]:
    """Yield the variants, and those with more and more messages held back to their turn."""
    yield from found
    ordered = [variant for variant in found if variant.options.order == "ports"]
    if not ordered:
        return
    current = min(ordered, key=lambda variant: variant.cost)
    for _ in range(min(MAX_ROUNDS, MAX_MOVES // (len(draft.moves) + 1))):
        held = dict(current.options.held)
        for number, turn in _overtakers(task, draft, current).items():
            held[number] = max(turn, held.get(number, turn))
        if held == current.options.held:
            return
        try:
            variant = _made(task, draft, replace(current.options, held=held))
        except LoweringError:
            return
        if variant is None:
            return
        current = variant
        if task.accepts(current.lowered.program):
            yield current
        if current.time <= draft.schedule.makespan or task.over():
            return


def _overtakers(task: Lowering, draft: Draft, variant: Variant) -> dict[int, Time]:
    """Return the messages that first made one of another rank wait which should have gone before.

    With each comes the start that the delayed one has in the schedule. Only those that did so
    first are told: what comes later may be a consequence.
    """
    messages, program = draft.messages, variant.lowered.program
    spans = replay(program, task.schedule.topology, task.size, task.target.model).spans

    def message_of(span: Span) -> int:
        return variant.lowered.senders[span.gpu, span.threadblock, span.step]

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


def serves(runtime: str, collective: Collective) -> bool:
    """Tell whether a `runtime` has files for a `collective`."""
    known = collective.name in COLLECTIVES
    return has_xml(collective.name) and (known or "custom" in RUNTIMES[runtime].collectives)


def textbook_programs(
    topology: Topology, collective: Collective, algorithm: str, size: int, target: Target
) -> tuple[list[tuple[Program, Time]], str]:
    """Return the programs of an algorithm, each with its time, and why there is no other.

    The `algorithm`, a name of CLASSICAL, does a `collective` on a `topology`, at `size` bytes of
    the counted buffer, of which as many are taken as make whole elements; programs are for the
    `target`.
    """
    chunks, reason = collective.chunks_in_size, ""
    size = target.whole_size(size, chunks) or target.divisor(chunks)
    programs: list[tuple[Program, Time]] = []
    problem = problem_of(topology, collective, size, target.most_peers)
    # Where a threadblock has a rate of its own, small and large sizes want other instances.
    targets = (target, replace(target, instances=None))[: 1 + target.measured]
    for schedule, wanted in product(classical_schedules(problem, algorithm, batch=True), targets):
        task = lowering_of(schedule, wanted, size, algorithm)
        try:
            programs.append((task.settled() if target.measured else task).best)
        except LoweringError as error:
            reason = error.problem
    return programs, reason


def textbook_program(
    topology: Topology, collective: Collective, algorithm: str, size: int, target: Target
) -> Program:
    """Return the fastest `target` program of a classical `algorithm`, a name of CLASSICAL.

    Its ways to do a `collective` are compared on a `topology`, at `size` bytes, of which as many
    are taken as make whole elements.

    Raises InputError when there is none.
    """
    programs, reason = textbook_programs(topology, collective, algorithm, size, target)
    if not programs:
        raise InputError(
            reason or f"there is no {algorithm} {collective.name} on {topology.name}",
            field="--algorithm", fix="give another algorithm, or an XML file",
        )  # fmt: skip
    return min(programs, key=lambda found: found[1])[0]


MARGIN = 1.5
"""Times what judging should take by what it took before, to be left for it and for writing."""

SOON, GROWN = 0.3, 4
"""What took fewer seconds to judge says little of what is so many times the work."""

SCORING: Mapping[bool, float] = MappingProxyType({False: 0.15, True: 0.25})
"""Of the time that is left, for the programs of one schedule: then the best so far must do.

By whether costs are measured: then there are more of them.
"""

GIVEN_UP: Mapping[bool, float] = MappingProxyType({False: 0.35, True: 0.5})
"""The same for the first of them: then the schedule is given up."""

ALIKE = 0.75
"""The same for what the algorithm of the first answer makes: no other is known to fit so well. And
for what is expected to be faster than the best."""

HOPEFUL = Fraction(19, 20)
"""Times the best: what is expected to take less is worth most of the time that is left."""

FAR = 2
"""Times as fast as the best: what is expected to be so is worth the time for judging."""

TOO_LONG = "making and replaying its programs takes too long"
"""Why it is."""


def common_size(target: Target, size: int, chunks_in_size: int, counts: Sequence[int]) -> int:
    """Return the size at which programs of several chunk counts are compared; 0: each at its own.

    The programs wanted are those of `target`, for buffers of `size` bytes that are cut into
    `chunks_in_size` chunks where each rank has one; `counts` has the chunks of each rank.
    """
    common = target.whole_size(size, chunks_in_size * lcm(*counts))
    return common if common >= LEAST * size else 0


@dataclass(frozen=True, eq=False)
class Scored:
    """A schedule with its score, `time` in picoseconds, and the `engine` that was searching.

    Its lowering, `task`, is done; None: no program is wanted.
    """

    schedule: Schedule
    engine: str
    task: Lowering | None
    time: Time


@dataclass(frozen=True, eq=False)
class Proved:
    """A program that every judge found right, cut to the sizes that it is safe at.

    It was made of the `schedule` that the `engine` found, by a lowering, `task`, that is done.
    """

    schedule: Schedule
    engine: str
    program: Program
    task: Lowering


@dataclass(eq=False)
class Scorer:
    """Scores schedules, each once, and keeps the best; the first program is judged at once.

    So there is something to write whenever the search ends, and the time that judging takes is
    known: the end of the search is moved forward by as much as judging the best would take.

    `target`: the program wanted; None: a schedule costs its makespan.
    `size`: bytes of the buffer.
    `report`: called with what can't be lowered.
    `common`: bytes at which programs are compared; 0: each at the whole chunks of ``size``.
    `slowest`: seconds that a score took, at most.
    `clock`: the end of the search, after which the first program of a schedule that runs must do;
    one that never comes is left alone, and nothing is judged early.
    `logical`: what schedules have to respect; None: the whole of their own topology.
    `last`: when judging the first program is given up, by the monotonic clock.
    `plans`: what the plan of what switches copy and add takes, at so many bytes; None: none.
    `engine`: who searches now.
    `best`: the best so far.
    `opened`: what :meth:`open` took.
    `judged`: what was scored first, with its program.
    `late`: the best of what was given up for want of time, with what it is expected to take.
    """

    target: Target | None
    size: int
    report: Callable[[str], None]
    common: int = 0
    slowest: float = 0.0
    clock: Deadline = field(default_factory=Deadline)
    logical: LogicalTopology | None = None
    last: float = math.inf
    plans: Callable[[Schedule, int], Time] | None = None
    engine: str = ""
    best: Scored | None = None
    opened: Scored | None = None
    judged: Proved | None = None
    late: Scored | None = None
    _known: dict[bytes, Time | LoweringError] = field(default_factory=dict)
    _took: float = 0.0
    _work: int = 1
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock.end

    def starts(self, engine: str) -> None:
        """Note who searches from now on."""
        self.engine = engine

    def score(self, schedule: Schedule) -> Time | None:
        """Return picoseconds; None when there is no program."""
        known = self._scored(schedule)
        return None if isinstance(known, LoweringError) else known

    def refusal(self, schedule: Schedule) -> str | None:
        """Return why a schedule has no score."""
        known = self._scored(schedule)
        return known.problem if isinstance(known, LoweringError) else None

    def open(self, schedule: Schedule) -> bool:
        """Take the first program of a schedule that runs; return whether there is one.

        It is no score, which takes longer: the schedule may be scored later.
        """
        if self.target is None or len(schedule.fans):
            time, self.best = self.score(schedule), None
            if time is not None:
                self.best = self.opened = Scored(schedule, self.engine, None, time)
            return time is not None
        task = lowering_of(schedule, self.target, self.size, self.engine, over=lambda: True)
        try:
            task = task.settled() if self.target.measured else task
            found = self._compared(task)
        except LoweringError:
            return False
        self.best = self.opened = Scored(schedule, self.engine, task, found)
        self._save_time(self.best, task)
        return True

    def expects(self, schedule: Schedule) -> Time:
        """Return the picoseconds that the best program of a schedule is expected to take."""
        target = self.target
        if target is None or len(schedule.fans):
            return schedule.makespan
        protocols = target.protocols(schedule.collective.name, schedule.topology)
        return expected_time(
            schedule, target.model, protocols, target.max_threadblocks, target.instances,
            fused=RUNTIMES[target.runtime].ops >= FUSED,
        )  # fmt: skip

    def lowering(self, schedule: Schedule, engine: str) -> Lowering | None:
        """Return the task of lowering a schedule, already done for the one that scored best.

        There is none of what switches copy and add. Raises LoweringError when that has no plan.
        """
        if self.target is None:
            return None
        if len(schedule.fans):
            known = self._scored(schedule)
            if isinstance(known, LoweringError):
                raise known
            return None
        task = lowering_of(schedule, self.target, self.size, engine, over=lambda: self.clock.over)
        for one in (self.best, self.opened):
            if one is not None and one.task is not None and _key(one.schedule) == _key(schedule):
                return replace(task, made=one.task.best, target=one.task.target)
        return task

    def _scored(self, schedule: Schedule, *, patient: bool = False) -> Time | LoweringError:
        if self.target is None:
            if self.best is None or schedule.makespan < self.best.time:
                self.best = Scored(schedule, self.engine, None, schedule.makespan)
            return schedule.makespan
        key = _key(schedule)
        if key in self._known and not patient:
            return self._known[key]
        known: Time | LoweringError
        clock = self.clock.share(SCORING[self.target.measured])
        # Of counted work, and once time is up, a first program is waited for.
        waits = patient or self.clock.counted is not None or self.clock.over
        opened = self.opened
        alike = opened is not None and opened.engine == self.engine
        hopeful = self.best is not None and self.expects(schedule) < HOPEFUL * self.best.time
        share = ALIKE if alike or hopeful else GIVEN_UP[self.target.measured]
        last = Deadline() if waits else self.clock.share(share)
        # The order of its sends seldom saves what a first program lost.
        enough = None if self.best is None else self.best.time
        task = lowering_of(schedule, self.target, self.size, "score", lambda: clock.over, enough)
        if opened is not None and opened.task is not None and alike:
            program, copies = opened.task.best[0], opened.task.target.copies
            task = replace(task, blocks=max(1, program.num_threadblocks // copies))
            if _key(opened.schedule) == key:
                task = replace(task, drafts=opened.task.drafts)
        if self.plans is not None and len(schedule.fans):
            try:
                known = self.plans(schedule, self.common or self.size)
                if self.best is None or known < self.best.time:
                    self.best = Scored(schedule, self.engine, None, known)
            except LoweringError as error:
                self.report(f"not lowered: {error.problem}")
                known = error
            self._known[key] = known
            return known
        try:
            with kept(last):
                task = task.settled() if self.target.measured else task
                known = self._compared(task)
            task.drafts.clear()  # it may be kept
            if self.best is None or known < self.best.time:
                self.best = Scored(schedule, self.engine, task, known)
                self._save_time(self.best, task)
        except TimeUp as up:
            if up.deadline is not last:
                raise
            forget(last)
            known = LoweringError(TOO_LONG, fix="raise --time-limit")
            late = Scored(schedule, self.engine, None, self.expects(schedule))
            if self.late is None or late.time < self.late.time:
                self.late = late
        except LoweringError as error:
            self.report(f"not lowered: {error.problem}")
            known = error
        self._known[key] = known
        self.slowest = max(self.slowest, clock.spent)
        return known

    def catch_up(self) -> None:
        """Score what was given up for want of time, if it must be far faster than the best.

        The time for judging is its own then, until judging is given up. Nothing is scored once the
        user has interrupted.
        """
        late, last = self.late, Deadline(self.last)
        if late is None or self.clock.stop.is_set():
            return
        if self.best is not None and late.time * FAR > self.best.time:
            return
        self.starts(late.engine)
        try:
            with kept(last):
                self._scored(late.schedule, patient=True)
        except TimeUp as up:
            if up.deadline is not last:
                raise
            forget(last)

    def _save_time(self, best: Scored, task: Lowering) -> None:
        """Judge the first program, and leave as much time as judging the best one takes.

        What judging a small one took says too much of larger ones: one of these is judged, too.
        """
        if self.clock.end == math.inf:
            return
        program, _ = task.best
        work, first = max(1, work_of(program)), self.judged is None
        if first or (self._took < SOON and work >= GROWN * self._work):
            clock = Deadline()
            if first:  # nothing else can be written: it may take all the time that there is
                self.clock.move(self.last)
            lowering = lowering_of(best.schedule, task.target, self.size, best.engine)
            try:
                require_valid(best.schedule, self.logical)
                proved = replace(lowering, made=task.best).proved()
            except LoweringError:
                if first:
                    self.clock.move(self._end)
                    return
            else:
                self.judged = Proved(best.schedule, best.engine, proved, task)
                self._took, self._work = clock.spent, work
        self.clock.move(self._end - MARGIN * self._took * work / self._work)

    def _compared(self, task: Lowering) -> Time:
        """Return what the best program takes at the size at which all are compared."""
        program, own = task.best
        if self.common in (0, task.size):
            return own
        alike = replace(task, size=self.common).replay(program)
        return own if alike is None else alike


def _key(schedule: Schedule) -> bytes:
    """Return what tells the schedules of one request apart."""
    columns = (
        schedule.chunk, schedule.link, schedule.batch, schedule.start, schedule.end,
        schedule.reduce, np.array(schedule.generators, dtype=np.int64),
    )  # fmt: skip
    said = f"{schedule.collective.chunks_per_rank} {schedule.packs}"
    found = hashlib.blake2b(said.encode())
    for column in columns:
        found.update(np.ascontiguousarray(column).tobytes())
    return found.digest()
