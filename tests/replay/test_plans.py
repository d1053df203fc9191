"""What plans take: by hand where they are small, and as the XML programs that they come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from taccl.errors import ProgramError
from taccl.lowering.plans import PlanOptions, plan_of
from taccl.msccl.program import Buffer, Op, Program
from taccl.mscclpp.plan import (
    Channel,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)
from taccl.replay.compile import MAX_MESSAGES
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.interpreter import Span, Trace, Why, replay
from taccl.replay.plans import replay_plan
from taccl.replay.sweep import bounds_of
from taccl.replay.timing import SPENT
from taccl.topology.core_form import topology_document
from taccl.topology.file import topology_from_document
from taccl.topology.graph import LocalCosts, ProgramCosts, ProtocolCosts, Topology
from tests.msccl.builders import make, small_schedules
from tests.replay.program_builder import block, hub, network, program
from tests.sweep import for_each

LARGE = 1 << 40
MODEL = ReplayModel(
    "one message a step", {"Simple": LARGE, "LL": LARGE}, {"Simple": 1 << 20, "LL": 1 << 20}
)
ALPHA, LAUNCH = 100, 5000
Edge = tuple[int, int, int, int | None, int | Fraction | None]
BOTH: list[Edge] = [(0, 1, ALPHA, None, 1), (1, 0, ALPHA, None, 1)]
"""Two ranks; s bytes take 100 + s."""
CHAIN: list[Edge] = [
    edge for a, b in pairwise(range(3)) for edge in ((a, b, ALPHA, None, 1), (b, a, ALPHA, None, 1))
]
NOP = PlanOp("nop")


def mine(size: int = 1, buffer: str = "i") -> Operand:
    return Operand(Side.LOCAL, Buffer(buffer), -1, 0, size)


def theirs(peer: int, size: int = 1, index: int = 0) -> Operand:
    """Return chunks in the scratch buffer of another rank: every threadblock numbers them alike."""
    return Operand(Side.REMOTE, None, peer, index, size)


def put(peer: int, size: int = 1, name: str = "put", kind: str = "memory") -> PlanOp:
    channels = (peer,) if kind == "port" else ()
    return PlanOp(name, (mine(size),), (theirs(peer, size),), kind, channels)


def signal(*peers: int, name: str = "signal", kind: str = "memory") -> PlanOp:
    return PlanOp(name, channel_type=kind, channels=peers)


def wait(*peers: int, kind: str = "memory") -> PlanOp:
    return signal(*peers, name="wait", kind=kind)


def copy(size: int = 1) -> PlanOp:
    return PlanOp("copy", (mine(size),), (mine(size, "o"),))


def take(number: int = 0) -> PlanOp:
    return PlanOp("sem_acquire", semaphores=(number,))


def give(number: int = 0) -> PlanOp:
    return PlanOp("sem_release", semaphores=(number,))


def barrier(blocks: int) -> PlanOp:
    return PlanOp("barrier", barrier=0, blocks=blocks)


def plan(
    *ranks: Sequence[Sequence[PlanOp]], chunks: int = 1, semaphores: tuple[int, ...] = (0,),
    channels: int = 1, protocol: str = "Simple",
) -> Plan:  # fmt: skip
    """Return a plan of the operations of each threadblock of each rank.

    Every threadblock numbers channels and scratch buffers by the rank at their other end: its own
    channels, where there are several for each pair and type.
    """
    peers = range(len(ranks))
    kinds = ("memory", "port")

    def made(number: int, ops: Sequence[PlanOp]) -> PlanBlock:
        own = [channels * peer + min(number, channels - 1) for peer in peers]
        numbered: Mapping[str, tuple[int, ...]] = dict.fromkeys(kinds, tuple(own))
        return PlanBlock(
            {**numbered, "switch": (0,)}, dict.fromkeys(kinds, tuple(peers)), tuple(ops)
        )

    return Plan(
        "test", "allreduce", protocol, True,
        tuple(
            PlanRank(
                chunks, chunks, chunks,
                {kind: tuple(Channel(kind, peer) for peer in peers for _ in range(channels))
                 for kind in kinds},
                (Group(Buffer.INPUT, tuple(peers)),),
                tuple(RemoteBuffer(peer, Buffer.SCRATCH, kinds) for peer in peers),
                semaphores, tuple(made(number, ops) for number, ops in enumerate(blocks)),
            )
            for rank, blocks in enumerate(ranks)
        ),
    )  # fmt: skip


def trace_of(made: Plan, topology: Topology, size: int = 400) -> Trace:
    return replay_plan(made, topology, size, MODEL, keep_spans=True)


def time_of(made: Plan, topology: Topology, size: int = 400) -> int | None:
    return trace_of(made, topology, size).time


def both(*, rule: str = "occupy", **local: int) -> Topology:
    return network(2, BOTH, rule=rule, **local)


def sends(trace: Trace) -> list[Span]:
    return [span for span in trace.spans if span.link is not None]


# --- messages and signals ----------------------------------------------------------------------


def test_a_put_and_its_signal_are_one_message() -> None:
    made = plan([[put(1), NOP, signal(1)]], [[wait(0)]])
    trace = trace_of(made, both(launch=LAUNCH))
    assert (trace.time, trace.messages, trace.edge_busy) == (LAUNCH + 500, 1, (500, 0))
    assert trace_of(made, both(rule="delay")).edge_busy == (400, 0)
    assert time_of(made, both(rule="delay")) == 500


def test_a_signal_alone_pays_alpha() -> None:
    made = plan([[signal(1), wait(1)]], [[wait(0), NOP, signal(0, name="rlxsignal")]])
    assert time_of(made, both()) == 2 * ALPHA


def test_several_puts_before_a_signal_are_a_message_each() -> None:
    made = plan([[put(1), put(1), NOP, signal(1)]], [[wait(0), copy()]])
    trace = trace_of(made, both(copy=1))
    assert [(one.start, one.end) for one in sends(trace)] == [(0, 500), (500, 1000)]
    assert trace.time == 1000 + 400


def test_a_signal_to_one_peer_waits_for_puts_to_others_before_it() -> None:
    # The link to rank 1 takes 500, that to rank 2 1000; rank 1 may begin at 1500.
    topology = network(3, [(0, 1, 100, None, 1), (0, 2, 200, None, 2)], copy=1)
    made = plan([[put(1), put(2), NOP, signal(1, 2)]], [[wait(0), copy()]], [[wait(0)]])
    trace = trace_of(made, topology)
    assert trace.messages == 2
    assert [(one.gpu, one.start) for one in trace.spans if one.link is None] == [(1, 1500)]


@for_each("between", [[copy()], [wait(1)], [take(), NOP], [barrier(1)]])
def test_a_signal_after_other_work_or_waits_is_a_message_of_its_own(between: list[PlanOp]) -> None:
    made = plan(
        [[put(1), *between, NOP, signal(1)]], [[signal(0), wait(0)]], semaphores=(1,)
    )  # fmt: skip
    trace = trace_of(made, both())
    assert [one.size for one in sends(trace) if one.gpu == 0] == [400, 0]
    assert trace.time == 500 + ALPHA


def test_each_signal_is_for_one_wait() -> None:
    made = plan([[put(1), signal(1), put(1), signal(1)]], [[wait(0), copy(), wait(0), copy()]])
    copies = [one.start for one in trace_of(made, both(copy=1)).spans if one.link is None]
    assert copies == [500, 1000]


def test_a_chain_forwards_what_has_come() -> None:
    made = plan(
        [[put(1), NOP, signal(1)]], [[wait(0), NOP, put(2), NOP, signal(2)]], [[wait(1)]]
    )  # fmt: skip
    assert time_of(made, network(3, CHAIN)) == 2 * 500


def test_a_threadblock_is_busy_until_its_bytes_are_on_the_wire() -> None:
    made = plan([[put(1), copy()]], [[]])
    topology = both(rule="delay", copy=1)
    assert [one.start for one in trace_of(made, topology).spans] == [0, 400]


def test_signals_keep_no_threadblock_busy() -> None:
    made = plan([[signal(1), copy()]], [[wait(0)]])
    assert [one.start for one in trace_of(made, both(copy=1)).spans] == [0, 0]


def test_a_port_transfers_in_order_while_the_threadblock_goes_on() -> None:
    made = plan(
        [[put(1, kind="port"), put(1, name="pws", kind="port"), copy()]], [[wait(0, kind="port")]]
    )  # fmt: skip
    trace = trace_of(made, both(copy=1))
    assert [(one.start, one.end) for one in trace.spans] == [(0, 400), (0, 500), (500, 1000)]
    assert [one.start for one in trace.spans if one.link is None] == [0]
    assert (trace.time, trace.messages) == (1000, 2)


def test_a_flushed_transfer_has_arrived() -> None:
    made = plan([[put(1, name="pwsf", kind="port"), copy()]], [[wait(0, kind="port")]])
    assert [one.start for one in trace_of(made, both(rule="delay", copy=1)).spans] == [0, 500]


def test_through_memory_a_put_with_signal_only_puts() -> None:
    made = plan([[put(1, name="pws")]], [[wait(0)]])
    assert "waits for a signal of rank 0" in trace_of(made, both()).reason


# --- reads, local work, packets ----------------------------------------------------------------


def test_a_get_is_one_message_from_the_owner() -> None:
    made = plan([[PlanOp("get", (theirs(1),), (mine(),), "memory"), copy()]], [[]])
    trace = trace_of(made, both(rule="delay", copy=1))
    assert trace.edge_busy == (0, 400)
    assert [(one.start, one.why) for one in trace.spans] == [(0, Why.NOTHING), (500, Why.ARRIVAL)]


def test_reading_and_adding_waits_for_all_and_then_adds() -> None:
    # Both links carry 400 bytes at once; two sources are added to the first.
    edges: list[Edge] = [(1, 0, 100, None, 1), (2, 0, 100, None, 1)]
    rre = PlanOp("rre", (mine(), theirs(1), theirs(2)), (mine(1, "o"),), "memory")
    assert time_of(plan([[rre]], [[]], [[]]), network(3, edges, reduce=3)) == 500 + 2 * 400 * 3


def test_gets_follow_one_another() -> None:
    edges: list[Edge] = [(1, 0, 100, None, 1), (2, 0, 100, None, 1)]
    get = PlanOp("get", (theirs(1), theirs(2)), (mine(), mine()), "memory")
    assert time_of(plan([[get]], [[]], [[]]), network(3, edges)) == 2 * 500


def test_what_is_added_goes_to_all_at_once() -> None:
    edges: list[Edge] = [(0, 1, 100, None, 1), (0, 2, 100, None, 1)]
    res = PlanOp("res", (mine(), mine()), (mine(1, "o"), theirs(1), theirs(2)), "memory")
    made = plan([[res, NOP, signal(1, 2)]], [[wait(0)]], [[wait(0)]])
    trace = trace_of(made, network(3, edges, reduce=3))
    assert (trace.time, trace.messages) == (400 * 3 + 500, 2)


def test_reading_adding_and_sending_follow_one_another() -> None:
    rres = PlanOp("rres", (mine(), theirs(1)), (mine(1, "o"), theirs(1)), "memory")
    assert time_of(plan([[rres]], [[]]), both(reduce=3)) == 500 + 3 * 400 + 500


def test_local_work_costs_what_it_does_in_xml() -> None:
    ops = [copy(), PlanOp("re", (mine(), mine(), mine()), (mine(),)), PlanOp("re", (mine(),), ())]
    assert time_of(plan([ops], [[]]), both(copy=2, reduce=3)) == 400 * (2 + 2 * 3 + 2)


def test_packets_are_twice_the_bytes_and_need_no_signal() -> None:
    ppkt = put(1, name="ppkt")
    unpack = PlanOp("upkt", (mine(1, "s"),), (mine(1, "o"),))
    made = plan([[ppkt]], [[unpack]], protocol="LL")
    trace = trace_of(made, both(copy=1))
    assert (trace.time, trace.messages) == (100 + 2 * 400 + 400, 1)
    assert trace.spans[1].why is Why.ARRIVAL


def test_packets_are_added_and_forwarded() -> None:
    pair = (mine(), mine(1, "s"))
    respkt = PlanOp("respkt", pair, (mine(), theirs(2)), "memory")
    rppkt = PlanOp("rppkt", (mine(1, "s"),), (theirs(1),), "memory")
    repkt = PlanOp("repkt", pair, (mine(),))
    topology = network(3, CHAIN, reduce=3)
    assert time_of(plan([[put(1, name="ppkt")]], [[respkt]], [[repkt]]), topology) == 2 * (
        100 + 800 + 3 * 400
    )
    local = PlanOp("cpkt", (mine(),), (mine(1, "s"),))
    assert time_of(plan([[local], [rppkt]], [[repkt]]), both(copy=1, reduce=3)) == (
        400 + 900 + 3 * 400
    )


def test_groups_share_bytes_and_packets() -> None:
    # 25 units of 16 bytes: 13 and 12. Each half is a message, and both have to come.
    half = [replace(put(1, name="ppkt"), tbg=Tbg(which, 2)) for which in range(2)]
    unpack = PlanOp("upkt", (mine(1, "s"),), (mine(1, "o"),))
    trace = trace_of(plan([[half[0]], [half[1]]], [[unpack]]), both())
    assert sorted(one.size for one in sends(trace)) == [2 * 12 * 16, 2 * 13 * 16]
    assert trace.time == 2 * 100 + 800
    assert (
        "packet 0 in buffer s of rank 1" in trace_of(plan([[half[0]]], [[unpack]]), both()).reason
    )


def test_a_switch_is_a_message_to_each_of_the_others() -> None:
    everyone = Operand(Side.SWITCH, None, 0, 0, 1)
    store = PlanOp("gstore", (mine(),), (everyone,), "switch", (0,))
    trace = trace_of(plan([[store]], [[]], [[]]), hub(3, 100, 1))
    assert (trace.time, trace.messages) == (2 * (100 + 400), 2)
    add = PlanOp("glres", (everyone,), (everyone,), "switch", (0,))
    assert trace_of(plan([[add]], [[]], [[]]), hub(3, 100, 1)).messages == 4


# --- pipelines, semaphores, barriers -----------------------------------------------------------


def test_iterations_of_a_pipeline_overlap() -> None:
    # 500 bytes of two chunks, 512 at a time: 512 and 488.
    def piped(*ops: PlanOp) -> list[list[PlanOp]]:
        return [[PlanOp("pipeline", unit=512, chunks=2, inner=ops)]]

    made = plan(
        piped(put(1, 2), NOP, signal(1)), piped(wait(0), NOP, put(2, 2), NOP, signal(2)),
        piped(wait(1)), chunks=2,
    )  # fmt: skip
    trace = trace_of(made, network(3, CHAIN), 992)
    assert [(one.gpu, one.iteration, one.start, one.end) for one in trace.spans] == [
        (0, 0, 0, 612), (0, 1, 612, 1192), (1, 0, 612, 1224), (1, 1, 1224, 1804)
    ]  # fmt: skip
    assert trace.time == 612 + 612 + 580


def test_what_a_pipeline_does_not_move_is_whole_in_every_iteration() -> None:
    inner = put(1, name="ppkt")
    made = plan([[PlanOp("pipeline", unit=200, chunks=1, inner=(inner,))]], [[]])
    assert [one.size for one in sends(trace_of(made, both()))] == [800, 800]


def test_semaphores_make_one_wait_for_another() -> None:
    made = plan([[copy(), NOP, give()], [take(), NOP, copy(), give(1)], [take(1), copy()]], [[]])
    made = with_semaphores(made, (0, 0))
    trace = trace_of(made, both(copy=1))
    assert [(one.threadblock, one.start, one.why) for one in trace.spans] == [
        (0, 0, Why.NOTHING), (1, 400, Why.DEPENDENCE), (2, 800, Why.DEPENDENCE)
    ]  # fmt: skip


def test_a_semaphore_above_0_holds_nobody_back_at_first() -> None:
    made = plan([[take(), take(), copy()], [copy(), give()]], [[]])
    assert time_of(with_semaphores(made, (2,)), both(copy=1)) == 400
    assert time_of(with_semaphores(made, (1,)), both(copy=1)) == 800


def with_semaphores(made: Plan, values: tuple[int, ...]) -> Plan:
    return replace(made, ranks=tuple(replace(rank, semaphores=values) for rank in made.ranks))


def test_a_barrier_opens_when_the_last_has_come_each_time() -> None:
    first = [copy(2), barrier(3), copy(1), barrier(3), copy(1)]
    other = [copy(1), barrier(3), copy(3), barrier(3)]
    trace = trace_of(plan([first, other, [barrier(3)] * 2], [[]], chunks=4), both(copy=1), 640)
    assert trace.time == 160 * (2 + 3 + 1)
    assert [one.start for one in trace.spans if one.threadblock == 0] == [0, 320, 800]


def test_a_threadblock_that_waits_for_many_is_woken_by_the_last() -> None:
    ranks = 9
    edges: list[Edge] = [(rank, 0, 100 * rank, None, 1) for rank in range(1, ranks)]
    everyone = range(1, ranks)
    made = plan([[wait(*everyone), NOP, copy()]], *([[put(0), NOP, signal(0)]] for _ in everyone))
    trace = trace_of(made, network(ranks, edges, copy=1))
    assert trace.time == 800 + 400 + 400
    assert trace.spans[-1].why is Why.ARRIVAL
    assert trace.spans[trace.spans[-1].waited_for or 0].gpu == 8


# --- links -------------------------------------------------------------------------------------


def test_channels_of_a_pair_use_its_links_in_turn() -> None:
    edges: list[Edge] = [(0, 1, 100, None, 1), (0, 1, 100, None, 1), (1, 0, 100, None, 1)]
    ops = [put(1), NOP, signal(1)]
    for channels, time in ((1, 1000), (2, 500)):
        made = plan([ops, ops], [[wait(0)], [wait(0)]], channels=channels)
        assert time_of(made, network(2, edges)) == time


def test_signals_against_a_one_way_link_take_its_alpha_and_hold_nothing() -> None:
    made = plan([[wait(1), put(1), NOP, signal(1)]], [[signal(0), wait(0)]])
    trace = trace_of(made, network(2, BOTH[:1]))
    assert (trace.time, trace.edge_busy) == (100 + 500, (500,))
    with pytest.raises(ProgramError, match="no link from rank 1 to rank 0, which threadblock 0 of"):
        trace_of(plan([[]], [[put(0)]]), network(2, BOTH[:1]))


def test_a_signal_alone_holds_no_edge() -> None:
    # What rank 1 says and sends crosses one edge: the data does not wait for the word.
    made = plan([[put(1), NOP, signal(1), wait(1)]], [[signal(0), put(0)]])
    trace = trace_of(made, both())
    assert (trace.time, trace.edge_busy) == (500, (500, 500))


# --- measured costs ----------------------------------------------------------------------------


def charged(copy_beta: Fraction = Fraction(0), flag: int = 0) -> Topology:
    """Return two ranks; Simple and LL have other launches, alphas and bytes on the wire."""
    rows = {
        "Simple": ProtocolCosts(1000, 30, 300, Fraction(1), Fraction(2)),
        "LL": ProtocolCosts(10, 7, 70, Fraction(3)),
    }
    costs = ProgramCosts("tests", rows, copy_beta=copy_beta, flag=flag)
    return replace(both(), measured=costs)


def measured_time(made: Plan, topology: Topology) -> int | None:
    """Return what both replays say of 400 bytes."""
    model = replace(MODEL, measured=True)
    told = replay_plan(made, topology, 400, model, keep_spans=True)
    SPENT.messages = 1 << 40
    assert replay_plan(made, topology, 400, model).time == told.time
    return told.time


def test_signals_cost_what_simple_was_measured_to_and_packets_what_ll_was() -> None:
    greeted = [[put(1), NOP, signal(1)]], [[wait(0)]]
    # A threadblock moves a byte in two picoseconds; the edge could do it in one.
    assert measured_time(plan(*greeted), charged()) == 1000 + 2 * 400 + 30
    packets = replace(put(1), name="ppkt"), replace(copy(), name="upkt", sources=(mine(1, "s"),))
    made = plan([[packets[0]]], [[packets[1]]], protocol="LL")
    # 400 bytes become 1200 on the wire, as the flags of packets are among them.
    assert measured_time(made, charged()) == 10 + 1200 + 7
    # What is unpacked is copied.
    assert measured_time(made, charged(copy_beta=Fraction(1))) == 10 + 1200 + 7 + 400
    # A signal alone takes alpha and nothing else.
    assert measured_time(plan([[signal(1)]], [[wait(0)]]), charged()) == 1000 + 30


def test_packets_are_unpacked_as_finely_as_messages_of_ll_are() -> None:
    costs = charged(copy_beta=Fraction(1)).measured
    assert costs is not None
    fine = replace(costs.protocols["LL"], slice_bytes=4096)
    machine = replace(both(), measured=replace(costs, protocols={**costs.protocols, "LL": fine}))
    packets = replace(put(1), name="ppkt"), replace(copy(), name="upkt", sources=(mine(1, "s"),))
    made = plan([[packets[0]]], [[packets[1]]], protocol="LL")
    for size, pieces in ((4096, 1), (32 << 10, 8), (128 << 10, 32)):
        told = replay_plan(made, machine, size, replace(model_of("executor"), measured=True))
        # All but the last piece are copied while others come.
        assert told.time == 10 + 3 * size + 7 + size // pieces


def test_plans_have_costs_of_their_own_where_these_are_known() -> None:
    made = plan([[put(1), NOP, signal(1)]], [[wait(0)]])
    costs = charged().measured
    assert costs is not None
    simple = replace(costs.protocols["Simple"], launch=7000, alpha=5)
    plans = replace(costs, protocols={"Simple": simple})
    machine = replace(charged(), measured=replace(costs, plans=plans))
    assert measured_time(made, machine) == 7000 + 2 * 400 + 5
    # Packets stay what programs have, as nothing else is known of them.
    packets = replace(put(1), name="ppkt"), replace(copy(), name="upkt", sources=(mine(1, "s"),))
    sent = plan([[packets[0]]], [[packets[1]]], protocol="LL")
    assert measured_time(sent, machine) == measured_time(sent, charged())
    again = topology_from_document(topology_document(machine))
    assert again.measured == machine.measured


def test_flows_share_an_edge_and_threadblocks_are_told_late() -> None:
    two = plan([[put(1), NOP, signal(1)]] * 2, [[wait(0)]] * 2, channels=2)
    # One is limited by its threadblock, two are by the edge, which they share.
    assert measured_time(two, charged()) == 1000 + 2 * 400 + 30
    four = plan([[put(1), NOP, signal(1)]] * 4, [[wait(0)]] * 4, channels=4)
    assert measured_time(four, charged()) == 1000 + 4 * 400 + 30
    handed = plan([[put(1), NOP, give()], [take(), NOP, put(1), NOP, signal(1)]], [[], [wait(0)]])
    late = charged(flag=50, copy_beta=Fraction(1, 2))
    assert measured_time(handed, late) == 1000 + 2 * 800 + 50 + 30


def test_sends_on_a_shared_edge_wait_as_those_of_xml_do() -> None:
    ops = ([put(1), NOP, signal(1)], [put(2), NOP, signal(2)])
    made = plan([*ops], [[wait(0)]], [[wait(0)]])
    xml = program(
        [block(0, 1, None, ["s"]), block(1, 2, None, ["s"])],
        [block(0, None, 0, ["r"])], [block(0, None, 0, ["r"])],
    )  # fmt: skip
    for rule in ("occupy", "delay"):
        found, wanted = (
            trace_of(made, hub(3, rule=rule)),
            replay(xml, hub(3, rule=rule), 400, MODEL),
        )
        assert found.time == wanted.time
        assert found.edge_busy == wanted.edge_busy
        assert [one[:7] for one in sends(found)] == [one[:7] for one in sends(wanted)]


# --- what can't run ----------------------------------------------------------------------------


def test_a_deadlock_says_who_waits_for_what() -> None:
    unpack = PlanOp("upkt", (mine(1, "s"),), (mine(1, "o"),))
    made = plan([[copy(), wait(1)], [take()], [barrier(2)], [unpack], [wait(1)]], [[wait(0)]])
    trace = trace_of(made, both())
    assert (trace.time, trace.spans) == (None, ())
    assert trace.reason == (
        "deadlock: rank 0 threadblock 0 step 1 waits for a signal of rank 1; rank 0 threadblock 1"
        " step 0 waits for semaphore 0; rank 0 threadblock 2 step 0 waits for 2 threadblocks at"
        " barrier 0, 1 of which have come; rank 0 threadblock 3 step 0 waits for packet 0 in buffer"
        " s of rank 0 (6 threadblocks in all)"
    )


def test_sizes_that_do_not_divide_have_no_time() -> None:
    made = plan([[put(1)]], [[]], chunks=3)
    trace = trace_of(made, both(), 400)
    assert trace.time is None
    assert trace.reason == "400 bytes are no multiple of 48: 3 chunks that are aligned to 16"
    assert trace_of(replace(made, max_bytes=100), both(), 480).in_range is False
    none = replace(made, ranks=tuple(replace(rank, input_chunks=0) for rank in made.ranks))
    assert "rank 0 divides by 0" in trace_of(none, both(), 480).reason


def test_an_allgather_is_counted_by_its_output() -> None:
    made = plan([[put(1)]], [[]])
    ranks = tuple(replace(rank, output_chunks=2) for rank in made.ranks)
    made = replace(made, collective="allgather", ranks=ranks)
    assert [one.size for one in sends(trace_of(made, both(), 400 * 2))] == [400]


def test_pipelines_that_nobody_can_count_have_no_time() -> None:
    made = plan([[PlanOp("pipeline", unit=1, chunks=1, inner=(copy(),))]], [[]])
    assert "needs 1600000 iterations of 1 bytes" in trace_of(made, both(), 1600000).reason
    ops = [PlanOp("pipeline", unit=16, chunks=1, inner=(copy(),) * 60)]
    made = plan([ops], [[]])
    assert f"follows at most {MAX_MESSAGES}" in trace_of(made, both(), 16 * 60000).reason


def test_a_plan_for_other_ranks_or_without_measured_costs_is_refused() -> None:
    made = plan([[put(1)]], [[]])
    with pytest.raises(ProgramError, match="has 2 ranks, net has 3"):
        trace_of(made, network(3, CHAIN))
    with pytest.raises(ProgramError, match="no measured costs"):
        replay_plan(made, both(), 400, replace(MODEL, measured=True))
    with pytest.raises(ProgramError, match="no link from rank 0 to rank 1"):
        trace_of(made, network(2, [(1, 0, 100, None, 1)]))


def test_a_plan_of_nothing_takes_its_launch() -> None:
    some: list[list[list[PlanOp]]] = [[[]], [[NOP]]]
    none: list[list[list[PlanOp]]] = [[], []]
    for ranks in (some, none):
        trace = trace_of(plan(*ranks), both(launch=LAUNCH))
        assert (trace.time, trace.messages, trace.spans) == (LAUNCH, 0, ())


# --- plans of programs -------------------------------------------------------------------------

SCHEDULES = small_schedules()
CHECKED = sorted(SCHEDULES)[1::3]


def plans(made: Program, *, greeted: bool = True) -> Iterator[Plan]:
    """Yield plans of a program: memory or ports, signals or packets; perhaps without greetings."""
    ranks = made.num_ranks
    for servers in ((0,) * ranks, tuple(range(ranks))):
        for packets in (False, True):
            found = plan_of(made, PlanOptions(servers, made.in_place, packets))
            yield found if greeted else ungreeted(found)


def ungreeted(made: Plan) -> Plan:
    """Return a plan without the signals that tell that a call has begun."""
    left = {"rlxsignal", "rlxwait"}
    return replace(made, ranks=tuple(
        replace(rank, blocks=tuple(
            replace(one, ops=tuple(op for op in one.ops if op.name not in left))
            for one in rank.blocks
        ))
        for rank in made.ranks
    ))  # fmt: skip


def whole_size(made: Program) -> int:
    return made.chunks_per_loop * 16 * 64


@for_each("name", CHECKED, quick=12)
@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_a_plan_takes_as_long_as_its_program_but_for_greetings_and_copies(
    name: str, rule: str
) -> None:
    topology = SCHEDULES[name].topology.with_alpha_rule(rule)
    for fused in (frozenset[Op](), frozenset(Op)):
        made = make(SCHEDULES[name], fused=fused)
        one = next(plans(made, greeted=False))
        size = whole_size(made)
        for copies in (0, 3):
            local = LocalCosts(Fraction(copies), Fraction(2), LAUNCH)
            wanted = replay(made, replace(topology, local=local), size, MODEL)
            found = replay_plan(one, replace(topology, local=local), size, MODEL)
            assert found.time is not None
            assert wanted.time is not None
            # Lists that are too long for a threadblock hand on, which may part puts and signals.
            extra = found.messages - wanted.messages
            assert extra == 0 or max(len(b.steps) for _, b in made.blocks()) > 8
            if not extra:
                assert (found.time <= wanted.time) if copies else (found.time == wanted.time)


@for_each("name", CHECKED, quick=12)
def test_compiled_code_gives_the_same_times_and_the_critical_path_is_all_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalCosts(Fraction(3), Fraction(2), LAUNCH)
    topology = replace(SCHEDULES[name].topology, local=local)
    made = make(SCHEDULES[name])
    for one in plans(made):
        told = replay_plan(one, topology, whole_size(made), MODEL, keep_spans=True)
        monkeypatch.setattr(SPENT, "messages", LARGE)
        fast = replay_plan(one, topology, whole_size(made), MODEL)
        assert fast == replace(told, spans=())
        assert told.time is not None
        bound = bounds_of(topology, one.collective)(whole_size(made))
        assert bound is None or bound[1] <= told.time
        path = [told.spans[number] for number in told.critical_path]
        assert path[0].start == 0
        assert max(path[-1].end, path[-1].arrival or 0) == told.time - LAUNCH
        for before, after in pairwise(path):
            reached = before.arrival if after.why is Why.ARRIVAL else before.end
            assert reached == after.start or after.why is Why.LINK
        names = {
            (span.gpu, span.threadblock, span.step): one.ranks[span.gpu]
            .blocks[span.threadblock].ops[span.step].name
            for span in told.spans
        }  # fmt: skip
        assert not {"nop", "wait", "sem_acquire", "sem_release"} & set(names.values())
