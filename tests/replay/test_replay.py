"""The replay's rules, one by one, on programs small enough to time by hand."""

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.bounds import any_bounds, best
from taccl.collectives import build_collective
from taccl.errors import ProgramError, TacclWarning
from taccl.model.schedule import Decisions, retime
from taccl.msccl.program import Buffer, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.replay.cost import model_of
from taccl.replay.interpreter import Span, Trace, replay
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.units import ceil_time
from tests.replay.program_builder import (
    SMALL,
    WIDE,
    block,
    hub,
    network,
    program,
    ring,
    ring_allreduce,
    scaled,
    slot,
    step,
)
from tests.replay.random_programs import random_program, random_topology
from tests.sweep import for_each

Edge = tuple[int, int, int, int | None, int | Fraction | None]
ONE_WAY: list[Edge] = [(0, 1, 100, None, 1)]  # busy and arrival of s bytes: 100 + s


def time_of(made: Program, topology: Topology, size: int) -> int | None:
    return replay(made, topology, size, SMALL).time


def sends(trace: Trace) -> list[Span]:
    return [span for span in trace.spans if span.link is not None]


def pair(steps: Sequence[Step | str], answers: Sequence[Step | str], chunks: int = 1) -> Program:
    """Rank 0 runs ``steps`` towards rank 1, which runs ``answers``."""
    return program([block(0, 1, None, steps)], [block(0, None, 0, answers)], chunks=chunks)


# --- one message -------------------------------------------------------------------------------


def test_a_message_takes_alpha_and_its_bytes() -> None:
    assert time_of(pair(["s"], ["r"]), network(2, ONE_WAY), 400) == 100 + 400


def test_durations_are_rounded_up_to_a_picosecond() -> None:
    topology = network(2, [(0, 1, 0, None, Fraction(1, 3))])
    assert time_of(pair(["s"], ["r"]), topology, 400) == 134  # 133.33


def test_launch_is_added_once() -> None:
    topology = network(2, ONE_WAY, launch=5000)
    assert time_of(pair(["s", "s"], ["r", "r"]), topology, 400) == 5000 + 2 * 500


def test_under_occupy_two_messages_pay_alpha_twice_on_the_edge() -> None:
    assert time_of(pair(["s", "s"], ["r", "r"]), network(2, ONE_WAY), 400) == 2 * 500


def test_under_delay_the_edge_is_free_before_the_message_arrives() -> None:
    # busy [0,400) and [400,800); the second arrives 100 after that
    assert time_of(pair(["s", "s"], ["r", "r"]), network(2, ONE_WAY, rule="delay"), 400) == 900


def test_a_sender_is_busy_until_the_release_and_not_until_arrival() -> None:
    topology = network(2, [(0, 1, 100, 0, 1)], copy=1)
    trace = replay(pair(["s", "cpy"], ["r"]), topology, 400, SMALL)
    copies = [s for s in trace.spans if s.gpu == 0 and s.link is None]
    assert [(s.start, s.end) for s in copies] == [(400, 800)]  # arrival is at 500


def test_each_edge_is_released_at_its_own_time() -> None:
    # 0 -> w -> 1 with beta 1 then 4, and 0 -> w -> 2 with beta 1 then 1: the second message
    # needs only edge 0 again, which is free at 100; its threadblock is another one.
    edges: list[Edge] = [(0, 3, 0, None, 1), (3, 1, 0, None, 4), (3, 2, 0, None, 1)]
    topology = network(3, edges, switches=1)
    made = program(
        [block(0, 1, None, ["s"]), block(1, 2, None, ["s"])],
        [block(0, None, 0, ["r"])],
        [block(0, None, 0, ["r"])],
    )
    trace = replay(made, topology, 100, SMALL)
    assert [(s.start, s.end) for s in sends(trace)] == [(0, 400), (100, 200)]


def test_an_edge_without_bandwidth_is_no_resource() -> None:
    topology = network(2, [(0, 1, 100, None, None)])
    made = program(
        [block(0, 1, None, ["s"]), block(1, 1, None, ["s"], channel=1)],
        [block(0, None, 0, ["r"]), block(1, None, 0, ["r"], channel=1)],
    )
    assert time_of(made, topology, 400) == 100


# --- iterations, count splitting, slots ------------------------------------------------------


def test_a_large_chunk_is_sent_in_iterations_of_one_message() -> None:
    # M = 1000: 1000, 1000 and 400 bytes, each with alpha
    assert time_of(pair(["s"], ["r"]), network(2, ONE_WAY), 2400) == 3 * 100 + 2400


def test_iterations_of_a_chain_overlap() -> None:
    # two hops, 3 iterations of 100 + 1000: the second hop runs one iteration behind
    topology = network(3, [(0, 1, 100, None, 1), (1, 2, 100, None, 1)])
    made = program(
        [block(0, 1, None, ["s"])], [block(0, 2, 0, ["rcs"])], [block(0, None, 1, ["r"])]
    )
    assert time_of(made, topology, 3000) == 4 * 1100


def test_chunks_that_fit_travel_as_one_message() -> None:
    # 4 chunks of 100 bytes, m = 10: alpha once
    assert time_of(pair([step("s", 4)], [step("r", 4)], chunks=4), network(2, ONE_WAY), 400) == 500


def test_a_count_above_m_is_cut_into_messages_that_each_pay_alpha() -> None:
    # 5 chunks of 400 bytes, m = 2: 800 + 800 + 400 bytes
    made = pair([step("s", 5)], [step("r", 5)], chunks=5)
    assert time_of(made, network(2, ONE_WAY), 2000) == 3 * 100 + 2000


def test_a_message_holds_at_most_71_chunks() -> None:
    # 72 chunks of 4 bytes: 71 + 1
    made = pair([step("s", 72)], [step("r", 72)], chunks=72)
    assert time_of(made, network(2, ONE_WAY), 288) == 2 * 100 + 288


def test_a_send_without_a_slot_waits_until_the_receiver_is_done() -> None:
    # 3 sends, 2 slots; the receiver copies for 1000 first, then receives at once. Messages 1 and
    # 2 are in by 400; a slot is free at 1000, so message 3 is on the link [1000, 1200).
    topology = network(2, ONE_WAY, copy=0, reduce=10)
    made = pair(["s", "s", "s"], ["re", "r", "r", "r"])
    trace = replay(made, topology, 100, SMALL)
    assert [s.start for s in sends(trace)] == [0, 200, 1000]
    assert trace.time == 1200


def test_a_send_without_a_slot_is_not_queued_for_the_link() -> None:
    # Threadblock 0 has no slot until 1000; threadblock 1 asks at 700 and uses the link meanwhile.
    topology = network(2, ONE_WAY, reduce=10, copy=7)
    made = program(
        [block(0, 1, None, ["s", "s", "s"]), block(1, 1, None, ["cpy", "s"], channel=1)],
        [block(0, None, 0, ["re", "r", "r", "r"]), block(1, None, 0, ["r"], channel=1)],
    )
    trace = replay(made, topology, 100, SMALL)
    assert [(s.start, s.threadblock) for s in sends(trace)][:3] == [(0, 0), (200, 0), (700, 1)]


def test_a_fused_step_frees_the_slot_when_its_outgoing_message_is_released() -> None:
    # 1 forwards to 2 over a link ten times slower: arrival of message 1 at 100, out [100, 1100).
    # Slots 0 -> 1 hold messages 1 and 2; message 3 starts at 1100.
    topology = network(3, [(0, 1, 0, None, 1), (1, 2, 0, None, 10)])
    made = program(
        [block(0, 1, None, ["s", "s", "s"])],
        [block(0, 2, 0, ["rcs", "rcs", "rcs"])],
        [block(0, None, 1, ["r", "r", "r"])],
    )
    trace = replay(made, topology, 100, SMALL)
    assert [s.start for s in sends(trace) if s.gpu == 0] == [0, 100, 1100]


def test_ll_connections_hold_eight_messages() -> None:
    # the receiver starts after 10000; with 8 slots the ninth message waits for it
    topology = network(2, [(0, 1, 0, None, 1)], reduce=100)
    made = program(
        [block(0, 1, None, ["s"] * 9)], [block(0, None, 0, ["re", *["r"] * 9])], protocol="LL"
    )
    trace = replay(made, topology, 100, SMALL)
    assert [s.start for s in sends(trace)][7:] == [700, 10000]


# --- contention ---------------------------------------------------------------------------------


def test_a_free_edge_goes_to_the_earlier_request() -> None:
    # Rank 1 asks for the way into 2 at 50, rank 0 at 60; it is held until 100 by rank 3.
    edges: list[Edge] = [*((r, 4, 0, None, 1) for r in (0, 1, 3)), (4, 2, 0, None, 1)]
    topology = network(4, edges, switches=1, copy=1)
    made = program(
        [block(0, 2, None, [step("cpy", 6), "s"])],
        [block(0, 2, None, [step("cpy", 5), "s"])],
        [block(0, None, 0, ["r"]), block(1, None, 1, ["r"]), block(2, None, 3, [step("r", 10)])],
        [block(0, 2, None, [step("s", 10)])],
        chunks=1,
    )
    trace = replay(made, topology, 12, WIDE)
    assert [s.gpu for s in sends(trace)] == [3, 1, 0]


def test_requests_of_one_instant_are_served_by_rank() -> None:
    topology = hub(4, alpha=0)
    made = program(
        [block(0, 3, None, ["s"])], [block(0, 3, None, ["s"])], [block(0, 3, None, ["s"])],
        [block(i, None, 2 - i, ["r"]) for i in range(3)],
    )  # fmt: skip
    trace = replay(made, topology, 100, SMALL)
    assert [(s.start, s.gpu) for s in sends(trace)] == [(0, 0), (300, 1), (600, 2)]


def test_requests_of_one_rank_and_instant_are_served_by_threadblock() -> None:
    made = program(
        [block(1, 1, None, ["s"], channel=0), block(0, 1, None, ["s"], channel=1)],
        [block(0, None, 0, ["r"], channel=0), block(1, None, 0, ["r"], channel=1)],
    )
    trace = replay(made, network(2, ONE_WAY), 400, SMALL)
    assert [s.threadblock for s in sends(trace)] == [0, 1]


def test_a_waiting_send_does_not_block_a_later_one_whose_edges_are_free() -> None:
    # 0 -> 2 first, then 1 -> 2 waits for the way into 2; 1 -> 3 from another threadblock goes.
    made = program(
        [block(0, 2, None, ["s"])],
        [block(0, 2, None, ["s"]), block(1, 3, None, ["s"])],
        [block(0, None, 0, ["r"]), block(1, None, 1, ["r"])],
        [block(0, None, 1, ["r"])],
    )
    trace = replay(made, hub(4, alpha=0), 100, SMALL)
    assert [(s.start, s.gpu, s.threadblock) for s in sends(trace)] == [
        (0, 0, 0), (0, 1, 1), (300, 1, 0),
    ]  # fmt: skip


def test_all_completions_of_an_instant_come_before_the_pass() -> None:
    # At 100 the edge into 2 is freed by rank 1, and rank 0's copy ends: both ask at 100 and rank
    # 0 is first although rank 1's second send asks as soon as its first is released.
    topology = network(3, [(0, 3, 0, None, 1), (1, 3, 0, None, 1), (3, 2, 0, None, 1)],
                       switches=1, copy=1)  # fmt: skip
    made = program(
        [block(0, 2, None, ["cpy", "s"])],
        [block(0, 2, None, ["s", "s"])],
        [block(0, None, 0, ["r"]), block(1, None, 1, ["r", "r"])],
    )
    trace = replay(made, topology, 100, SMALL)
    assert [(s.start, s.gpu) for s in sends(trace)] == [(0, 1), (100, 0), (200, 1)]


# --- flags --------------------------------------------------------------------------------------


def copies(*steps: Step) -> Program:
    """One threadblock of copies and a second one that waits for step 1 of it."""
    waiter = Threadblock(1, None, None, 0, (step("re", wait=(0, 1)),))
    return program([block(0, None, None, steps), waiter])


def start_of_waiter(made: Program) -> int:
    trace = replay(made, network(1, [], copy=1, reduce=1), 100, SMALL)
    return next(s.start for s in trace.spans if s.threadblock == 1)


def test_a_dependence_is_released_by_the_step_that_posts() -> None:
    made = copies(step("cpy"), step("cpy", posts=True), step("cpy"))
    assert start_of_waiter(made) == 200


def test_an_earlier_post_does_not_release_a_later_position() -> None:
    made = copies(step("cpy", posts=True), step("cpy"), step("cpy", posts=True))
    assert start_of_waiter(made) == 300


def test_a_nop_adds_a_dependence_to_the_next_step() -> None:
    made = program([
        block(0, None, None, [step("cpy", posts=True)]),
        block(1, None, None, [step("cpy"), step("cpy", posts=True)]),
        block(2, None, None, [step("nop", 0, (1, 1)), step("re", wait=(0, 0))]),
    ])  # fmt: skip
    trace = replay(made, network(1, [], copy=1, reduce=1), 100, SMALL)
    assert [s.start for s in trace.spans if s.threadblock == 2] == [200]


def test_flags_are_those_of_the_same_iteration() -> None:
    # 2 iterations of 1000: the waiter's second reduction starts after the second copy
    made = program([
        block(0, None, None, [step("cpy", posts=True)]),
        block(1, None, None, [step("re", wait=(0, 0))]),
    ])  # fmt: skip
    trace = replay(made, network(1, [], copy=3, reduce=1), 2000, SMALL)
    assert [s.start for s in trace.spans if s.threadblock == 1] == [3000, 6000]


def test_a_dependence_holds_back_only_the_first_message_of_a_step() -> None:
    # m = 1: two messages; the flag comes at 600 and both follow without another wait
    made = program(
        [block(0, None, None, [step("cpy", posts=True)]),
         block(1, 1, None, [step("s", 2, wait=(0, 0))])],
        [block(0, None, 0, [step("r", 2)])],
        chunks=2,
    )  # fmt: skip
    trace = replay(made, network(2, ONE_WAY, copy=1), 1200, SMALL)
    assert [s.start for s in sends(trace)] == [600, 600 + 700]


def test_a_send_posts_when_its_last_edge_is_released() -> None:
    topology = network(2, [(0, 1, 100, 20, 1)], copy=1)
    made = program(
        [block(0, 1, None, [step("s", posts=True)]),
         block(1, None, None, [step("cpy", wait=(0, 0))])],
        [block(0, None, 0, ["r"])],
    )  # fmt: skip
    trace = replay(made, topology, 400, SMALL)
    assert [s.start for s in trace.spans if s.threadblock == 1] == [420]


# --- local work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "forward"), [("rcs", 500), ("rrs", 500 + 1200), ("rrcs", 500 + 1200)]
)
def test_a_forwarded_message_leaves_after_its_local_work(op: str, forward: int) -> None:
    # 0 -> 1 arrives at 100 + 400; reducing 400 bytes takes 1200, copying nothing
    topology = network(3, [(0, 1, 100, None, 1), (1, 2, 100, None, 1)], copy=2, reduce=3)
    made = program([block(0, 1, None, ["s"])], [block(0, 2, 0, [op])], [block(0, None, 1, ["r"])])
    trace = replay(made, topology, 400, SMALL)
    assert [s.start for s in sends(trace)] == [0, forward]


@pytest.mark.parametrize(("op", "work"), [("r", 800), ("rrc", 1200)])
def test_a_receive_completes_after_its_local_work(op: str, work: int) -> None:
    topology = network(2, ONE_WAY, copy=2, reduce=3)
    assert time_of(pair(["s"], [op]), topology, 400) == 500 + work


def test_consecutive_reductions_into_one_slot_are_one_with_more_sources() -> None:
    # beta 1/3 and 100 bytes: 2 sources take ceil(200/3) = 67, two separate ones 2 * 34
    def run(posts: bool) -> int | None:
        steps = [Step(Op.REDUCE, slot(i), slot(9), posts=posts and i == 1) for i in (1, 2)]
        topology = network(1, [])
        cheap = network(1, []).local
        object.__setattr__(cheap, "reduce_beta", Fraction(1, 3))
        object.__setattr__(topology, "local", cheap)
        return time_of(program([Threadblock(0, None, None, 0, tuple(steps))]), topology, 100)

    assert (run(posts=False), run(posts=True)) == (67, 68)


@pytest.mark.parametrize(
    "second",
    [
        Step(Op.REDUCE, slot(2), slot(8)),
        Step(Op.REDUCE, Slot(Buffer.SCRATCH, 2), slot(9)),
        Step(Op.REDUCE, slot(2), slot(9), depends=StepRef(1, 0)),
    ],
    ids=["another destination", "another source buffer", "its own dependence"],
)
def test_reductions_that_differ_stay_apart(second: Step) -> None:
    first = Step(Op.REDUCE, slot(1), slot(9))
    other = block(1, None, None, [step("cpy", posts=True)])
    made = program([Threadblock(0, None, None, 0, (first, second)), other])
    trace = replay(made, network(1, [], reduce=1), 100, SMALL)
    assert [s.step for s in trace.spans if s.threadblock == 0] == [0, 1]


# --- which link ---------------------------------------------------------------------------------


def parallel(channels: Sequence[int]) -> list[int | None]:
    """Return the links that connections of these channels use; betas 1 and 5."""
    topology = network(2, [(0, 1, 0, None, 1), (0, 1, 0, None, 5)])
    made = program(
        [block(i, 1, None, ["s"], c) for i, c in enumerate(channels)],
        [block(i, None, 0, ["r"], c) for i, c in enumerate(channels)],
    )
    return [s.link for s in sorted(sends(replay(made, topology, 4, SMALL)), key=lambda s: s[1])]


def test_connections_take_the_links_of_a_pair_in_turn_by_channel() -> None:
    assert parallel([7, 2, 5]) == [0, 0, 1]  # channels 2, 5, 7 take links 0, 1, 0


def test_a_threadblock_without_steps_counts_as_a_connection() -> None:
    topology = network(2, [(0, 1, 0, None, 1), (0, 1, 0, None, 5)])
    made = program(
        [block(0, 1, None, [], 0), block(1, 1, None, ["s"], 1)],
        [block(0, None, 0, [], 0), block(1, None, 0, ["r"], 1)],
    )
    assert [s.link for s in sends(replay(made, topology, 4, SMALL))] == [1]


def test_a_connection_without_a_link_names_ranks_and_threadblock() -> None:
    made = program([block(3, 2, None, ["s"])], [], [block(0, None, 0, ["r"])])
    with pytest.raises(
        ProgramError, match="no link from rank 0 to rank 2, which threadblock 3 of rank 0"
    ):
        replay(made, ring(3), 4, SMALL)


def test_a_routed_message_holds_all_edges_of_the_shortest_path() -> None:
    # 0 -> 1 -> 2 on the ring: 2 * 700 + 3 * 100, and edge 1 -> 2 is held: 1's own send waits
    made = program(
        [block(0, 2, None, ["s"])],
        [block(0, 2, None, ["s"])],
        [block(0, None, 0, ["r"]), block(1, None, 1, ["r"])],
    )
    with pytest.warns(TacclWarning, match="rank 0 to rank 2; messages are routed through rank 1"):
        trace = replay(made, ring(3), 100, SMALL, route=True)
    assert [(s.start, s.end, s.link) for s in sends(trace)] == [(0, 1700, -1), (1700, 2700, 1)]


def test_routing_warns_once_a_pair() -> None:
    made = program(
        [block(i, 2, None, ["s"], i) for i in range(3)],
        [],
        [block(i, None, 0, ["r"], i) for i in range(3)],
    )
    with pytest.warns(TacclWarning) as caught:
        replay(made, ring(3), 4, SMALL, route=True)
    assert len(caught) == 1


# --- what can't run -------------------------------------------------------------------------


def test_a_size_that_chunks_do_not_divide_has_no_time() -> None:
    trace = replay(ring_allreduce(3), ring(3), 100, SMALL)
    assert trace.time is None
    assert trace.reason == "100 bytes are not a multiple of 12 (nchunksperloop 3 x 4-byte elements)"


def test_too_many_iterations_for_the_flags_have_no_time() -> None:
    trace = replay(pair(["s"], ["r"]), network(2, ONE_WAY), 65536 * 1000 + 4, SMALL)
    assert trace.reason == "needs 65537 iterations, flags count only 65536"


def test_a_deadlock_says_who_waits_for_what() -> None:
    made = program([block(0, 1, 1, ["r", "s"])], [block(0, 0, 0, ["r", "s"])])
    trace = replay(made, ring(2), 100, SMALL)
    assert trace.time is None
    assert trace.reason == (
        "deadlock: rank 0 threadblock 0 step 0 waits for a message from rank 1 on channel 0;"
        " rank 1 threadblock 0 step 0 waits for a message from rank 0 on channel 0"
    )


def test_full_fifos_both_ways_are_a_deadlock() -> None:
    steps = ["s", "s", "s", "r", "r", "r"]
    made = program([block(0, 1, 1, steps)], [block(0, 0, 0, steps)])
    trace = replay(made, ring(2), 100, SMALL)
    assert "waits for a free slot to rank 1 on channel 0" in trace.reason


def test_a_wait_for_a_step_that_never_posts_is_a_deadlock() -> None:
    made = copies(step("cpy", posts=True), step("cpy"))
    trace = replay(made, network(1, []), 100, SMALL)
    assert "waits for step 1 of threadblock 0, which has finished without" in trace.reason


def test_a_wait_for_a_missing_threadblock_is_a_deadlock() -> None:
    made = program([block(0, None, None, [step("cpy", wait=(7, 0))])])
    trace = replay(made, network(1, []), 100, SMALL)
    assert trace.reason.endswith("waits for a threadblock that does not exist")


def test_a_message_that_nobody_sends_is_a_deadlock() -> None:
    made = program([], [block(0, None, 0, ["r"])])
    trace = replay(made, network(2, ONE_WAY), 100, SMALL)
    assert trace.reason.endswith(
        "waits for a message from rank 0 on channel 0, which sends no more"
    )


def test_a_step_without_a_peer_is_an_error() -> None:
    made = program([block(0, None, None, ["s"])])
    with pytest.raises(ProgramError, match="rank 0 threadblock 0 step 0 sends, but"):
        replay(made, network(1, []), 4, SMALL)


def test_two_threadblocks_at_one_end_are_an_error() -> None:
    made = program(
        [block(0, 1, None, ["s"]), block(1, 1, None, ["s"])], [block(0, None, 0, ["r", "r"])]
    )
    with pytest.raises(ProgramError, match="threadblocks 0 and 1 share one end"):
        replay(made, network(2, ONE_WAY), 4, SMALL)


def test_another_number_of_ranks_is_an_error() -> None:
    with pytest.raises(ProgramError, match="has 3 ranks, net has 4"):
        replay(ring_allreduce(3), ring(4), 12, SMALL)


def test_an_unknown_protocol_is_an_error() -> None:
    made = program([], protocol="LL64")
    with pytest.raises(ProgramError, match="unknown protocol 'LL64'"):
        replay(made, network(1, []), 4, SMALL)


def test_a_size_outside_the_range_is_computed_and_flagged() -> None:
    made = Program(
        "small", "allreduce", "Simple", in_place=True, out_of_place=False, channels=1,
        chunks_per_loop=1, min_bytes=8, max_bytes=64, gpus=pair(["s"], ["r"]).gpus,
    )  # fmt: skip
    traces = [replay(made, network(2, ONE_WAY), size, SMALL) for size in (4, 8, 64, 68)]
    assert [t.in_range for t in traces] == [False, True, True, False]
    assert traces[3].time == 168


# --- protocols, runtimes, spans -----------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "data"), [("Simple", 1200), ("LL", 2400), ("LL128", 1280)])
def test_protocol_costs_are_charged_only_when_asked_for(protocol: str, data: int) -> None:
    made = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])], protocol=protocol)
    times = [
        replay(made, network(2, ONE_WAY), 1200, model_of("executor"), protocol_costs=on).time
        for on in (False, True)
    ]
    assert times == [1300, 100 + data]


def test_rccl_cuts_ll_messages_at_16_kib() -> None:
    made = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])], protocol="LL")
    counts = [
        replay(made, network(2, ONE_WAY), 1 << 15, model_of(name)).messages
        for name in ("executor", "rccl")
    ]
    assert counts == [1, 2]


def test_the_critical_path_leads_from_the_first_message_to_the_last_to_finish() -> None:
    trace = replay(ring_allreduce(3), ring(3), 12, SMALL)
    path = [trace.spans[i] for i in trace.critical_path]
    assert path[0].start == 0
    assert path[0].waited_for is None
    assert path[-1].end == trace.time
    assert all(
        (a.arrival if a.gpu != b.gpu else a.end) == b.start for a, b in itertools.pairwise(path)
    )


def test_a_send_that_waited_for_an_edge_names_the_message_that_held_it() -> None:
    made = program(
        [block(0, 1, None, ["s"]), block(1, 1, None, ["s"], 1)],
        [block(0, None, 0, ["r"]), block(1, None, 0, ["r"], 1)],
    )
    first, second = sends(replay(made, network(2, ONE_WAY), 4, SMALL))
    assert (first.waited_for, second.waited_for) == (None, 0)


def test_edge_busy_adds_up_the_messages_of_an_edge() -> None:
    trace = replay(pair(["s", "s"], ["r", "r"]), network(2, ONE_WAY), 400, SMALL)
    assert trace.edge_busy == (1000,)
    assert sum(span.end - span.start for span in trace.spans if span.link == 0) == 1000
    assert trace.busiest_edge == 0


# --- laws ---------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    n=st.integers(2, 9),
    elements=st.integers(1, 3000),
    alpha=st.integers(0, 10**6),
    beta=st.fractions(Fraction(1, 50), 100, max_denominator=50),
    rule=st.sampled_from(["occupy", "delay"]),
)
def test_ring_allreduce_takes_its_formula(
    n: int, elements: int, alpha: int, beta: Fraction, rule: str
) -> None:
    size = 4 * n * elements
    topology = network(n, [(r, (r + 1) % n, alpha, None, beta) for r in range(n)], rule=rule)
    expected = 2 * (n - 1) * (alpha + ceil_time(beta, Fraction(size, n)))
    assert replay(ring_allreduce(n), topology, size, WIDE).time == expected


@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_replay_equals_retime_on_a_ring_allgather(rule: str) -> None:
    n, size = 5, 5 * 400
    topology = ring(n, rule=rule)
    rows: list[tuple[int, int, int, bool]] = []
    for hop in range(n - 1):
        for rank in range(n):
            link = topology.links_between(rank, (rank + 1) % n)[0]
            rows.append(((rank - hop) % n, link, len(rows), False))
    ops = ["s", *["rcs"] * (n - 2), "r"]
    made = [[block(0, (rank + 1) % n, (rank - 1) % n, ops)] for rank in range(n)]
    schedule = retime(
        build_collective("allgather", n, 1),
        make_group(topology, ()),
        Fraction(size, n),
        Decisions.of(rows),
    )
    assert replay(program(*made, chunks=n), topology, size, WIDE).time == schedule.makespan


def test_replay_equals_retime_on_a_relayed_message_with_uneven_edges() -> None:
    # 0 -> 1 -> 2 over switches of different speed, two chunks that follow each other
    edges: list[Edge] = [
        (0, 3, 50, 20, 2), (3, 1, 30, None, 7), (1, 4, 10, 0, 3), (4, 2, 90, 45, 5),
    ]  # fmt: skip
    topology = network(3, edges, switches=2)
    links = [topology.links_between(0, 1)[0], topology.links_between(1, 2)[0]]
    rows = [(0, links[0], 0, False), (1, links[0], 1, False),
            (0, links[1], 2, False), (1, links[1], 3, False)]  # fmt: skip
    two = build_collective("allgather", 3, 2)
    schedule = retime(two, make_group(topology, ()), Fraction(100), Decisions.of(rows))
    made = program(
        [block(0, 1, None, ["s", "s"])],
        [block(0, 2, 0, ["rcs", "rcs"])],
        [block(0, None, 1, ["r", "r"])],
        chunks=2,
    )
    assert replay(made, topology, 200, WIDE).time == schedule.makespan


@for_each("seed", range(60))
def test_doubling_alpha_and_beta_doubles_the_time(seed: int) -> None:
    rng = random.Random(seed)
    made = random_program(rng)
    rows: list[Edge] = [
        (a, b, rng.randint(0, 50), None, rng.randint(1, 4))
        for a in range(4) for b in range(4) if a != b
    ]  # fmt: skip
    topology = network(4, rows)
    once = replay(made, topology, 1600, SMALL)
    twice = replay(made, scaled(topology, 2), 1600, SMALL)
    assert twice.time == (None if once.time is None else 2 * once.time)


@for_each("seed", range(60))
def test_replay_takes_at_most_the_sum_of_all_messages(seed: int) -> None:
    rng = random.Random(seed)
    topology, made = random_topology(rng), random_program(rng)
    topology = network(
        4, [(e.tail, e.head, e.alpha, e.overhead, e.beta) for e in topology.edges],
        switches=1, launch=17,
    )  # fmt: skip
    trace = replay(made, topology, 1600, SMALL)
    total = 17 + sum(s.arrival - s.start for s in trace.spans if s.arrival is not None)
    assert trace.time is None or trace.time <= total


@for_each("rule", ["occupy", "delay"])
@for_each("n", [2, 3, 8])
@for_each("size", [96, 96_000, 9_600_000])
def test_replay_never_beats_a_bound(n: int, size: int, rule: str) -> None:
    for topology in (ring(n, rule=rule), hub(n, rule=rule)):
        time = replay(ring_allreduce(n), topology, size, model_of("executor")).time
        assert time is not None
        assert best(any_bounds(whole(topology), "allreduce", size)).time <= time


def test_a_replay_of_too_many_messages_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # A ring all-reduce of three ranks has 5 steps a rank.
    monkeypatch.setattr("taccl.replay.compile.MAX_MESSAGES", 15)
    wires = network(3, [(r, (r + 1) % 3, 100, None, 1) for r in range(3)])
    assert replay(ring_allreduce(3), wires, 12, model_of("executor")).time is not None
    monkeypatch.setattr("taccl.replay.compile.MAX_MESSAGES", 14)
    stopped = replay(ring_allreduce(3), wires, 12, model_of("executor"))
    assert stopped.time is None
    assert stopped.reason.startswith("needs 15 messages and copies")
