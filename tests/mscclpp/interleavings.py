"""What tiny MSCCL++ plans can do: every order of their accesses, one after the other.

One call of a plan is played on one memory. Between two fences of a threadblock all elements of all
its operations go on at the same time, each with one access after the other; a port does what is in
its queue some time later. A plan is racy if two accesses to a cell can both be the next one, if a
cell can be accessed while somebody else's write to it is still in a store buffer, or if the memory
at the end depends on the order.

No orders are computed here and nothing is assumed of them. Whatever is called racy here is a race.
The reverse does not hold: there are no users, no second call and no late acquire.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from tests.mscclpp.oracle import played
from tests.mscclpp.oracle_steps import (
    Block,
    Cell,
    Channel,
    Loop,
    Plan,
    Step,
    cells,
    elements,
    read_plan,
)

Word = tuple[str, ...]
"""What is in a cell: the sorted names of all that was added up; "packet" if it is one."""

_NOBODY = -1


class Act(NamedTuple):
    """What a thread does next.

    ``kind`` is read, write, signal, wait, release, acquire, push, done or fence.
    """

    kind: str
    cells: tuple[int, ...] = ()
    packet: bool = False
    relaxed: bool = False
    number: int = 0


class Entry(NamedTuple):
    """What is pushed into the queue of a port: threads that are run at once, then a signal."""

    queue: int
    threads: tuple[int, ...]
    signal: int | None


class Segment(NamedTuple):
    """The threads of a threadblock up to a fence, and at which barrier it is, if at one."""

    threads: tuple[int, ...]
    barrier: int | None


class Game(NamedTuple):
    """A plan taken apart; threads, cells, channels and semaphores are numbered."""

    threads: list[tuple[Act, ...]]
    owners: list[int]
    segments: list[list[Segment]]
    entries: list[Entry]
    meetings: list[list[int]]
    queues: int
    stock: tuple[int, ...]
    names: list[Cell]


class State(NamedTuple):
    """One moment of a game."""

    at: tuple[int, ...]
    sums: tuple[Word, ...]
    places: tuple[int, ...]
    queues: tuple[tuple[int, ...], ...]
    stock: tuple[int, ...]
    memory: tuple[Word, ...]
    buffered: tuple[int, ...]


def racy(text: str, limit: int = 20_000) -> bool | None:
    """Tell whether the accesses of one call collide, or its outcome depends on their order.

    Parameters
    ----------
    text
        A plan as JSON, without pipelines.
    limit
        How many states are looked at.

    Returns
    -------
    racy
        None: the plan does not end or can't be run, or there were more states.
    """
    plan, _ = read_plan(text)
    if plan is None or played(plan)[1]:
        return None
    game = _game(plan)
    private = _private(game)
    start = State(
        at=tuple(0 for _ in game.threads),
        sums=tuple(() for _ in game.threads),
        places=tuple(0 for _ in game.segments),
        queues=tuple(() for _ in range(game.queues)),
        stock=game.stock,
        memory=tuple((f"{name}",) for name in game.names),
        buffered=tuple(_NOBODY for _ in game.names),
    )
    seen, stack = {start}, [start]
    ends = set()
    while stack:
        state = stack.pop()
        if _collision(game, state):
            return True
        if _is_over(game, state):
            ends.add(state.memory)
        for follower in _followers(game, private, state):
            if follower not in seen:
                seen.add(follower)
                stack.append(follower)
        if len(ends) > 1:
            return True
        if len(seen) > limit:
            return None
    return False


# Taking a plan apart.


class _Numbers:
    """Numbers for names, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.of: dict[object, int] = {}

    def __call__(self, name: object) -> int:
        """Return the number of a name."""
        return self.of.setdefault(name, len(self.of))


class _Tables(NamedTuple):
    plan: Plan
    cells: _Numbers
    counters: _Numbers
    queues: _Numbers
    threads: list[tuple[Act, ...]]
    owners: list[int]
    entries: list[Entry]


def _game(plan: Plan) -> Game:
    tables = _Tables(plan, _Numbers(), _Numbers(), _Numbers(), [], [], [])
    blocks = list(plan.programs)
    barriers = list(plan.meetings)
    segments: list[list[Segment]] = []
    for owner, block in enumerate(blocks):
        mine: list[Segment] = []
        threads: list[int] = []
        for step in plan.programs[block]:
            if step.kind in {"fence", "barrier"}:
                at_barrier = step.kind == "barrier"
                number = barriers.index((block[0], step.numbers[0])) if at_barrier else None
                mine.append(Segment(tuple(threads), number))
                threads = []
            else:
                for acts in _acts(tables, block, step):
                    threads.append(_thread(tables, owner, acts))
        segments.append([*mine, Segment(tuple(threads), None)])
    stock = [0] * len(tables.counters.of)
    for semaphore, value in plan.semaphores.items():
        if semaphore in tables.counters.of:
            stock[tables.counters(semaphore)] = value
    return Game(
        threads=tables.threads,
        owners=tables.owners,
        segments=segments,
        entries=tables.entries,
        meetings=[[blocks.index(one) for one in plan.meetings[key]] for key in barriers],
        queues=len(tables.queues.of),
        stock=tuple(stock),
        names=[name for name in tables.cells.of if isinstance(name, tuple)],
    )


def _thread(tables: _Tables, owner: int, acts: list[Act]) -> int:
    tables.threads.append(tuple(acts))
    tables.owners.append(owner)
    return len(tables.threads) - 1


def _acts(tables: _Tables, block: Block, step: Step) -> Iterator[list[Act]]:
    """Yield what each thread of a step does."""
    for channel in step.channels:
        yield [_sync(tables, step, channel)]
    for number in step.numbers:
        yield [Act(step.kind, number=tables.counters((block[0], number)))]
    for loop in step.loops:
        if loop.channel is None:
            for element in elements(tables.plan, loop):
                yield _element(tables, loop, element)
        else:
            yield list(_push(tables, step, loop, loop.channel))


def _sync(tables: _Tables, step: Step, channel: Channel) -> Act:
    if step.kind == "wait":
        return Act("wait", number=tables.counters(channel))
    counter = tables.counters(tables.plan.partners[channel])
    if channel[1] == "memory":
        return Act("signal", relaxed=step.relaxed, number=counter)
    tables.entries.append(Entry(tables.queues(channel), (), counter))
    return Act("push", number=len(tables.entries) - 1)


def _element(tables: _Tables, loop: Loop, element: int) -> list[Act]:
    return [
        Act(kind, tuple(map(tables.cells, cells(tables.plan, part, element, 0))), part.packet)
        for kind, parts in (("read", loop.reads), ("write", loop.writes))
        for part in parts
    ]


def _push(tables: _Tables, step: Step, loop: Loop, channel: Channel) -> Iterator[Act]:
    every = [_element(tables, loop, element) for element in elements(tables.plan, loop)]
    for acts in every:
        yield from (act for act in acts if act.kind == "read" and act.packet)
    threads = tuple(_thread(tables, _NOBODY, acts) for acts in every)
    signal = tables.counters(tables.plan.partners[channel]) if step.signals else None
    tables.entries.append(Entry(tables.queues(channel), threads, signal))
    yield Act("push", number=len(tables.entries) - 1)
    if step.flushes:
        yield Act("done", number=len(tables.entries) - 1)


# Playing it.


def _private(game: Game) -> set[tuple[int, int]]:
    """Return (thread, act) that nobody can collide with and that take nothing from others.

    Such an act is done at once: any order of the others can still follow.
    """
    accesses: dict[int, list[tuple[int, Act]]] = defaultdict(list)
    takers: dict[int, list[int]] = defaultdict(list)
    for thread, acts in enumerate(game.threads):
        for act in acts:
            for one in act.cells:
                accesses[one].append((thread, act))
            if act.kind in {"wait", "acquire"}:
                takers[act.number].append(thread)
    segment = {
        thread: (block, place)
        for block, segments in enumerate(game.segments)
        for place, one in enumerate(segments)
        for thread in one.threads
    }

    def is_free(thread: int, act: Act) -> bool:
        if act.cells:
            return all(_never_collides(thread, act, accesses[one]) for one in act.cells)
        if act.kind in {"wait", "acquire"}:
            places = [segment[other] for other in takers[act.number]]
            return len({block for block, _ in places}) == 1 and len(set(places)) == len(places)
        return (act.kind == "signal" and act.relaxed) or act.kind == "done"

    return {
        (thread, place)
        for thread, acts in enumerate(game.threads)
        for place, act in enumerate(acts)
        if is_free(thread, act)
    }


def _never_collides(thread: int, act: Act, accesses: list[tuple[int, Act]]) -> bool:
    if all(other == thread for other, _ in accesses):
        return True
    if all(one.kind == "read" and not one.packet for _, one in accesses):
        return True
    writes = sum(one.kind == "write" for _, one in accesses)
    return act.packet and writes == 1 and all(one.packet for _, one in accesses)


def _is_over(game: Game, state: State) -> bool:
    return not any(state.queues) and all(
        place == len(segments) - 1 and _is_done(game, state, segments[place].threads)
        for place, segments in zip(state.places, game.segments, strict=True)
    )


def _is_done(game: Game, state: State, threads: tuple[int, ...]) -> bool:
    return all(state.at[one] == len(game.threads[one]) for one in threads)


def _active(game: Game, state: State) -> Iterator[tuple[int, Act]]:
    """Yield the threads that can go on, and what each does next."""
    threads = [
        one
        for place, segments in zip(state.places, game.segments, strict=True)
        for one in segments[place].threads
    ]
    threads += [one for queue in state.queues if queue for one in game.entries[queue[0]].threads]
    for one in threads:
        if state.at[one] < len(game.threads[one]):
            act = game.threads[one][state.at[one]]
            if _can(state, act):
                yield one, act


def _can(state: State, act: Act) -> bool:
    if act.kind in {"wait", "acquire"}:
        return state.stock[act.number] > 0
    if act.kind == "read" and act.packet:
        return all(state.memory[one][:1] == ("packet",) for one in act.cells)
    if act.kind == "done":
        return not any(act.number in queue for queue in state.queues)
    return True


def _collision(game: Game, state: State) -> bool:
    ready = [(one, act) for one, act in _active(game, state) if act.cells]
    for one, act in ready:
        if any(state.buffered[c] not in {_NOBODY, game.owners[one]} for c in act.cells):
            return True
    return any(
        set(act.cells) & set(other.cells)
        and "write" in {act.kind, other.kind}
        and not (act.packet and other.packet)
        for (_, act), (_, other) in combinations(ready, 2)
    )


def _followers(game: Game, private: set[tuple[int, int]], state: State) -> Iterator[State]:
    for follower in _fences(game, state):
        yield follower
        return
    active = list(_active(game, state))
    for one, act in active:
        if (one, state.at[one]) in private:
            yield _after(game, state, one, act)
            return
    for one, act in active:
        yield _after(game, state, one, act)
    yield from _deliveries(game, state)


def _fences(game: Game, state: State) -> Iterator[State]:
    """Yield the state after a fence whose threads are done; to pass it takes nothing away."""
    for block, segments in enumerate(game.segments):
        place = state.places[block]
        is_fence = place < len(segments) - 1 and segments[place].barrier is None
        if is_fence and _is_done(game, state, segments[place].threads):
            yield _passed(state, [block])


def _passed(state: State, blocks: list[int]) -> State:
    return state._replace(
        places=tuple(place + (one in blocks) for one, place in enumerate(state.places))
    )


def _deliveries(game: Game, state: State) -> Iterator[State]:
    """Yield the states after the end of what is first in a queue, and after a barrier."""
    for number, queue in enumerate(state.queues):
        if queue and _is_done(game, state, game.entries[queue[0]].threads):
            queues = tuple(
                one[1:] if place == number else one for place, one in enumerate(state.queues)
            )
            signal = game.entries[queue[0]].signal
            stock = state.stock if signal is None else _changed(state.stock, signal, 1)
            yield state._replace(queues=queues, stock=stock)
    for number, blocks in enumerate(game.meetings):
        here = [game.segments[block][state.places[block]] for block in blocks]
        if all(one.barrier == number and _is_done(game, state, one.threads) for one in here):
            after = _passed(state, blocks)
            for block in blocks:
                after = _emptied(after, block)
            yield after


def _changed(stock: tuple[int, ...], place: int, change: int) -> tuple[int, ...]:
    return tuple(value + change * (one == place) for one, value in enumerate(stock))


def _emptied(state: State, owner: int) -> State:
    """Return the state after the store buffer of a threadblock was emptied."""
    if owner not in state.buffered:
        return state
    return state._replace(
        buffered=tuple(_NOBODY if one == owner else one for one in state.buffered)
    )


def _after(game: Game, state: State, thread: int, act: Act) -> State:
    """Return the state after a thread's next act."""
    owner = game.owners[thread]
    state = state._replace(at=tuple(place + (one == thread) for one, place in enumerate(state.at)))
    if (act.kind == "signal" and not act.relaxed) or act.kind in {"push", "release"}:
        state = _emptied(state, owner)
    if act.kind == "push":
        queue = game.entries[act.number].queue
        return state._replace(
            queues=tuple(
                (*one, act.number) if place == queue else one
                for place, one in enumerate(state.queues)
            )
        )
    if act.kind in {"signal", "release"}:
        return state._replace(stock=_changed(state.stock, act.number, 1))
    if act.kind in {"wait", "acquire"}:
        return state._replace(stock=_changed(state.stock, act.number, -1))
    if act.kind == "read":
        word = state.memory[act.cells[0]][1 if act.packet else 0 :]
        total = tuple(sorted((*state.sums[thread], *word)))
        return state._replace(
            sums=tuple(total if one == thread else old for one, old in enumerate(state.sums))
        )
    if act.kind == "write":
        word = ("packet", *state.sums[thread]) if act.packet else state.sums[thread]
        late = _NOBODY if act.packet else owner
        return state._replace(
            memory=tuple(word if c in act.cells else old for c, old in enumerate(state.memory)),
            buffered=tuple(late if c in act.cells else old for c, old in enumerate(state.buffered)),
        )
    return state
