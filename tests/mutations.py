"""Single mutations of a schedule: what a judge of schedules must notice."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from taccl.model.schedule import Schedule


def picked(schedule: Schedule, rows: Sequence[int]) -> Schedule:
    """Return the schedule with only these rows, in this order."""
    names = ("chunk", "link", "batch", "start", "end", "reduce")
    return replace(schedule, **{name: getattr(schedule, name)[rows] for name in names})


def changed(schedule: Schedule, row: int, **values: int) -> Schedule:
    """Return the schedule with some values of one row changed."""
    columns = {name: getattr(schedule, name).copy() for name in values}
    for name, value in values.items():
        columns[name][row] = value
    return replace(schedule, **columns)


def length(schedule: Schedule, row: int) -> int:
    return int(schedule.end[row] - schedule.start[row])


def drop(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        yield picked(s, [i for i in range(len(s)) if i != row])


def repeat(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        again = picked(s, [*range(len(s)), row])
        after = int(s.end.max())
        yield changed(
            again, len(s), batch=int(s.batch.max()) + 1, start=after, end=after + length(s, row)
        )


def swap_starts(s: Schedule) -> Iterator[Schedule]:
    for a in range(len(s)):
        for b in range(a):
            if s.start[a] != s.start[b]:
                x, y = int(s.start[b]), int(s.start[a])
                once = changed(s, a, start=x, end=x + length(s, a))
                yield changed(once, b, start=y, end=y + length(s, b))


def shift(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        for by in (-1, 1, -length(s, row), length(s, row), s.makespan):
            yield changed(s, row, start=int(s.start[row]) + by, end=int(s.end[row]) + by)


def stretch(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        for by in (-1, 1):
            yield changed(s, row, end=int(s.end[row]) + by)
            yield changed(s, row, start=int(s.start[row]) + by)


def retarget(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        for link in range(len(s.topology.links)):
            if link != s.link[row]:
                time = s.topology.arrival(link, s.chunk_size)
                yield changed(s, row, link=link)
                yield changed(s, row, link=link, end=int(s.start[row]) + time)


def flip_reduce(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        yield changed(s, row, reduce=not s.reduce[row])


def change_chunk(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        for chunk in range(s.collective.num_chunks):
            if chunk != s.chunk[row]:
                yield changed(s, row, chunk=chunk)


def swap_chunks(s: Schedule) -> Iterator[Schedule]:
    for a in range(len(s)):
        for b in range(a):
            if s.chunk[a] != s.chunk[b]:
                once = changed(s, a, chunk=int(s.chunk[b]))
                yield changed(once, b, chunk=int(s.chunk[a]))


def merge_batches(s: Schedule) -> Iterator[Schedule]:
    for a in range(len(s)):
        for b in range(len(s)):
            if s.batch[a] != s.batch[b]:
                yield changed(s, a, batch=int(s.batch[b]))


def join_messages(s: Schedule) -> Iterator[Schedule]:
    """Merge two messages of one link into one of the right duration."""
    for a in range(len(s)):
        for b in range(a):
            if s.link[a] == s.link[b] and s.batch[a] != s.batch[b]:
                time = s.topology.arrival(int(s.link[a]), 2 * s.chunk_size)
                at = int(max(s.start[a], s.start[b]))
                both = changed(s, a, batch=int(s.batch[b]), start=at, end=at + time)
                yield changed(both, b, start=at, end=at + time)


def split_batch(s: Schedule) -> Iterator[Schedule]:
    for row in range(len(s)):
        if (s.batch == s.batch[row]).sum() > 1:
            yield changed(s, row, batch=int(s.batch.max()) + 1)


def reverse_time(s: Schedule) -> Iterator[Schedule]:
    end = s.makespan
    if len(set(s.start.tolist())) > 1:
        yield replace(s, start=end - s.end, end=end - s.start)


MUTATIONS: dict[str, Callable[[Schedule], Iterator[Schedule]]] = {
    "drop a send": drop,
    "repeat a send at the end": repeat,
    "swap the starts of two sends": swap_starts,
    "shift a send": shift,
    "stretch a send": stretch,
    "retarget the link": retarget,
    "flip reduce": flip_reduce,
    "change the chunk": change_chunk,
    "swap the chunks of two sends": swap_chunks,
    "merge batches": merge_batches,
    "join messages": join_messages,
    "split a batch": split_batch,
    "play backwards": reverse_time,
}
