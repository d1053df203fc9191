"""Why spans began when they did, which messages were received, and what edges they held."""

from collections import Counter
from collections.abc import Iterator

from taccl.msccl.program import Threadblock
from taccl.replay.interpreter import Span, Why
from taccl.report.played import Played
from tests.report.played_programs import random_replays, tiny


def _blocks(played: Played) -> dict[tuple[int, int], Threadblock]:
    assert played.program is not None
    return {(rank, block.id): block for rank, block in played.program.blocks()}


def _posts(played: Played, span: Span) -> bool:
    return bool(_blocks(played)[span.gpu, span.threadblock].steps[span.step].posts)


def _begins(played: Played, span: Span, before: Span | None) -> Iterator[int | None]:
    """Yield when a span may begin by its rule; nothing where the rule can't hold."""
    if before is None:
        yield from [0] if span.why is Why.NOTHING else ()
        return
    here, there = (span.gpu, span.threadblock), (before.gpu, before.threadblock)
    depends = span.gpu == before.gpu and here != there
    if span.why is Why.ORDER and here == there:
        yield before.end
    if span.why is Why.DEPENDENCE and depends and _posts(played, before):
        yield before.end
    if span.why is Why.ARRIVAL and span.link is None and before.link is not None:
        wire = played.connection(before)
        block = _blocks(played)[here]
        if (wire.src, wire.dst, wire.channel) == (block.recv_from, span.gpu, block.channel):
            yield before.arrival
    if span.why is Why.SLOT and span.link is not None:
        wire, block = played.connection(span), _blocks(played)[there]
        if (wire.src, wire.dst, wire.channel) == (block.recv_from, before.gpu, block.channel):
            yield before.end
    if span.why is Why.LINK and span.link is not None and before.link is not None:
        mine = {edge for edge, _ in played.holds(span)}
        yield from (before.start + held for edge, held in played.holds(before) if edge in mine)


def test_a_span_begins_in_the_instant_in_which_what_it_waited_for_happens() -> None:
    seen: Counter[Why] = Counter()
    for played in random_replays(range(200)):
        spans = played.trace.spans
        for span in spans:
            before = None if span.waited_for is None else spans[span.waited_for]
            assert span.start in set(_begins(played, span, before)), (played.trace.size, span)
            seen[span.why] += 1
    assert set(seen) == set(Why)


def test_what_messages_hold_adds_up_to_what_the_replay_counted() -> None:
    for played in random_replays(range(200)):
        busy = [0] * len(played.topology.edges)
        for span in played.trace.spans:
            if span.link is not None:
                for edge, held in played.holds(span):
                    busy[edge] += held
        assert tuple(busy) == played.trace.edge_busy


def test_every_message_is_received_once_and_not_before_it_arrives() -> None:
    for played in random_replays(range(200)):
        spans = played.trace.spans
        got = list(played.received.values())
        assert len(got) == len(set(got)) == sum(played.receives(span) for span in spans)
        for sent, received in played.received.items():
            assert spans[sent].arrival <= spans[received].start  # type: ignore[operator]


def test_a_span_is_called_by_its_rank_threadblock_and_step() -> None:
    played = tiny()
    assert played.place(played.trace.spans[1]) == "rank 0 threadblock 0 step 0"
