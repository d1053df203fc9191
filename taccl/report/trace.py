"""A replay as Chrome trace JSON, which chrome://tracing and ui.perfetto.dev open.

A process is a rank and a thread one of its threadblocks; one more process has a thread for every
edge that was held, and a counter of the bytes on their way over it. Arrows lead from each
message's sending span to the span that received it. The form is the Trace Event Format: ``X``
spans, ``M`` names, ``C`` counters, ``s`` and ``f`` ends of arrows, times in microseconds. One
event a line, in a fixed order: equal replays are equal bytes. An end of an arrow belongs to the
span that was last begun on its thread, so it directly follows it: spans may take no time.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from taccl.model.schedule import Schedule
from taccl.replay.interpreter import Span
from taccl.report.played import Played, link_text, span_label
from taccl.report.tables import us
from taccl.units import Time, microseconds

Event = dict[str, object]

BUSY, FLYING = range(2)


def chrome_trace(played: Played) -> str:
    """Return the JSON text of a replay; of a program that can't run, one without spans."""
    return trace_text(head_of(played), events_of(played))


def schedule_trace(schedule: Schedule) -> str:
    """Return the JSON text of a schedule: a process a rank that sends, a thread a link it uses.

    What switches copy or add is a thread for each fan, in a process of their own.
    """
    full, table = schedule.expand(), schedule.topology.links
    ranks, messages = schedule.topology.num_ranks, defaultdict(list)
    for send in full.sends():
        messages[send.batch, send.link].append(send)
    events: list[Event] = []
    used = sorted({link for _, link in messages})
    senders = {link: int(table.src[link]) if link < len(table) else ranks for link in used}
    for pid in sorted(set(senders.values())):
        name = "switches" if pid == ranks else f"rank {pid}"
        events.append(metadata("process_name", pid, 0, {"name": name}))
    for link, pid in senders.items():
        name = f"fan {link - len(table)}" if pid == ranks else f"to {int(table.dst[link])}"
        events.append(metadata("thread_name", pid, link, {"name": name}))
    for (batch, link), message in sorted(messages.items(), key=lambda one: one[1][0].start):
        first, kind = message[0], "reduce" if message[0].reduce else "send"
        chunks = ", ".join(str(send.chunk) for send in message)
        where = (senders[link], link)
        told: Event = {"size_bytes": int(len(message) * full.chunk_size), "batch": batch}
        events.append(_span(
            f"{kind} {chunks}", kind, where, (first.start, first.end - first.start), told
        ))  # fmt: skip
    head = {
        "collective": schedule.collective.name, "topology": schedule.topology.name,
        "time_us": us(schedule.makespan), "alpha_rule": schedule.topology.alpha_rule_stated,
    }  # fmt: skip
    return trace_text(head, events)


def head_of(played: Played) -> dict[str, object]:
    """Return what a trace says of itself when it is a replay."""
    return {
        "program": played.name,
        "topology": played.topology.name,
        "size_bytes": played.trace.size,
        "time_us": us(played.trace.time),
        "launch_us": microseconds(played.topology.local.launch),
        "alpha_rule": played.topology.alpha_rule_stated,
        **({"costs": played.topology.costs} if played.topology.costs else {}),
        "note": played.trace.reason,
    }


def trace_text(head: Mapping[str, object], events: Iterable[Event]) -> str:
    """Return the JSON text of a trace: what it says of itself, and its events, one a line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return (
        f'{{"displayTimeUnit":"ns",\n"otherData":{json.dumps(head)},\n'
        f'"traceEvents":[\n{lines}\n]}}\n'
    )


def metadata(kind: str, pid: int, tid: int, args: Mapping[str, object]) -> Event:
    """Return the event that tells the name or place of a process `pid`, or of its thread `tid`.

    `kind` is ``process_name``, ``thread_name`` or ``process_sort_index``, and `args` has its value.
    """
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def events_of(played: Played) -> Iterator[Event]:
    """Yield the events of a replay."""
    edges = played.topology.edges
    named = [
        (number, edges[number].name) for number, busy in enumerate(played.trace.edge_busy) if busy
    ]
    blocks: dict[int, list[tuple[int, str]]] = {rank: [] for rank in range(played.num_ranks)}
    for (rank, block), thread in played.threads.items():
        blocks[rank].append((block, thread.name))
    processes = [
        *((rank, f"rank {rank}", own) for rank, own in blocks.items()),
        (played.num_ranks, "edges", named),
    ]
    for pid, process, threads in processes:
        facts: list[tuple[str, int, Event]] = [
            ("process_name", 0, {"name": process}),
            ("process_sort_index", 0, {"sort_index": pid}),
        ]
        facts += [("thread_name", tid, {"name": name}) for tid, name in threads]
        for kind, tid, args in facts:
            yield metadata(kind, pid, tid, args)
    shift = played.topology.local.launch
    if shift and played.trace.spans:
        for rank, own in blocks.items():
            if own:
                yield _span("launch", "launch", (rank, own[0][0]), (0, shift), {})
    arrows: dict[int, Event] = {}
    spans = played.trace.spans
    for number, ends in enumerate(sorted(played.received.items())):
        for phase, end, more in zip("sf", ends, ({}, {"bp": "e"}), strict=True):
            span = spans[end]
            arrows[end] = {
                "name": "message", "cat": "message", "ph": phase, "id": number,
                "ts": microseconds(span.start + shift), "pid": span.gpu, "tid": span.threadblock,
                **more,
            }  # fmt: skip
    for number, span in enumerate(spans):
        yield _of_threadblock(played, number, span, shift)
        if number in arrows:
            yield arrows[number]
    for span in spans:
        if span.link is not None:
            label = link_text(played, span)
            for edge, held in played.holds(span):
                where = (played.num_ranks, edge)
                told: Event = {"size_bytes": span.size, "by": played.place(span)}
                yield _span(label, "edge", where, (span.start + shift, held), told)
    yield from _counters(played, shift)


def _of_threadblock(played: Played, number: int, span: Span, shift: Time) -> Event:
    step = played.step(span)
    args: Event = {
        "span": number,
        "step": span.step,
        "op": step.op,
        "chunks": step.chunks,
        "size_bytes": span.size,
        "iteration": span.iteration,
    }
    if span.link is not None:
        args["link"] = link_text(played, span)
    if span.arrival is not None:
        args["arrival_us"] = microseconds(span.arrival + shift)
    args["waited_for"] = span.why.value
    if span.waited_for is not None:
        before = played.trace.spans[span.waited_for]
        args["waited_for"] = f"{span.why.value}: {played.place(before)}"
        args["waited_for_span"] = span.waited_for
    times = (span.start + shift, span.end - span.start)
    kind = "send" if span.link is not None else "receive" if played.receives(span) else "local"
    return _span(span_label(played, span), kind, (span.gpu, span.threadblock), times, args)


def _counters(played: Played, shift: Time) -> Iterator[Event]:
    """Yield how many bytes are on their way over each edge, and whether it is held, by changes."""
    changes: dict[int, dict[Time, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for span in played.trace.spans:
        if span.link is None:
            continue
        arrival = span.end if span.arrival is None else span.arrival
        for edge, held in played.holds(span):
            of_edge = changes[edge]
            of_edge[span.start][BUSY] += 1
            of_edge[span.start + held][BUSY] -= 1
            of_edge[span.start][FLYING] += span.size
            of_edge[arrival][FLYING] -= span.size
    for edge in sorted(changes):
        busy = flying = 0
        for time in sorted(changes[edge]):
            busy += changes[edge][time][BUSY]
            flying += changes[edge][time][FLYING]
            yield {
                "name": f"edge {played.topology.edges[edge].name}", "cat": "edge", "ph": "C",
                "ts": microseconds(time + shift), "pid": played.num_ranks, "tid": edge,
                "args": {"busy": busy, "bytes in flight": flying},
            }  # fmt: skip


def _span(
    name: str, kind: str, where: tuple[int, int], times: tuple[Time, Time], args: Event
) -> Event:
    return {
        "name": name, "cat": kind, "ph": "X", "ts": microseconds(times[0]),
        "dur": microseconds(times[1]), "pid": where[0], "tid": where[1], "args": args,
    }  # fmt: skip
