"""Why spans waited, which messages were received, and what edges they held."""

from collections import Counter

from taccl.report.played import Played, Wait
from taccl.sim.compile import compile_program
from taccl.sim.replay import Run
from taccl.sim.trace import Trace
from tests.report.played_programs import random_parts, random_replays, tiny
from tests.sim.program_builder import SMALL


class _Told(Run):
    """A replay that notes by which rule each threadblock was woken."""

    def to_end(self) -> None:
        self.rule = [Wait.NOTHING] * len(self.phase)
        self.rules: list[Wait] = []
        super().to_end()

    def _finish_action(self, block: int) -> None:
        super()._finish_action(block)
        self.rule[block] = Wait.ORDER

    def _post(self, block: int, flag: int) -> None:
        for goal, waiter in self.flag_waiters[block]:
            if goal <= flag:
                self.rule[waiter] = Wait.DEPENDENCE
        super()._post(block, flag)

    def _free_slot(self, block: int) -> None:
        before = len(self.woken)
        super()._free_slot(block)
        for woken in self.woken[before:]:
            self.rule[woken] = Wait.SLOT

    def _arrive(self, connection: int) -> None:
        before = len(self.woken)
        super()._arrive(connection)
        for woken in self.woken[before:]:
            self.rule[woken] = Wait.ARRIVAL

    def _start_or_park(self, key: int, freed_edge: int) -> None:
        if freed_edge >= 0:
            self.rule[key % len(self.phase)] = Wait.LINK
        super()._start_or_park(key, freed_edge)

    def _record(self, block: int, end: int, link: int | None, arrival: int | None) -> None:
        self.rules.append(self.rule[block])
        super()._record(block, end, link, arrival)
        self.rule[block] = Wait.ORDER


def told(seed: int) -> tuple[Played, list[Wait]]:
    program, topology, size = random_parts(seed)
    run = _Told(
        compile_program(program, topology, size, SMALL), len(topology.edges), keep_spans=True
    )
    run.to_end()
    return Played(program, topology, Trace("", size, run.now, spans=tuple(run.spans))), run.rules


def test_the_rule_found_is_the_one_that_made_the_span_wait() -> None:
    seen: Counter[Wait] = Counter()
    for seed in range(600):
        played, rules = told(seed)
        assert list(played.waits) == rules, f"seed {seed}"
        seen.update(rules)
    assert set(seen) == set(Wait)


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
    assert played.where(played.trace.spans[1]) == "rank 0 threadblock 0 step 0"
