"""The compiled replay: equal to the one in Python, and to formulas where there are some."""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from taccl.apps.inputs import read_program
from taccl.errors import ProgramError, TacclWarning
from taccl.msccl.interpret import find_root
from taccl.msccl.program import Buffer, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.runtimes import RUNTIMES
from taccl.replay import events
from taccl.replay.compile import columns_of, split
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.events import Machine, machine_of
from taccl.replay.interpreter import Trace, replay
from taccl.replay.sweep import BoundAt, bounds_of, sweep
from taccl.replay.timing import Snapshot, Timing, repeats, traces, watch
from taccl.topology.file import load_topology
from taccl.topology.graph import ALPHA_RULES, LocalCosts, Topology
from taccl.units import ceil_time
from tests.msccl.texts import SHARED
from tests.replay.program_builder import (
    SMALL,
    WIDE,
    block,
    hub,
    network,
    program,
    ring,
    ring_allreduce,
    step,
)
from tests.replay.random_programs import random_program, random_topology
from tests.sweep import for_each

CORPUS = sorted((SHARED / "corpus").glob("*.xml"))
SEEDS = range(40)


def small_model(runtime: str) -> ReplayModel:
    """Return a runtime with messages so small that sizes of some KB have iterations."""
    model = model_of(runtime)
    sizes = {name: size // 256 for name, size in model.message_bytes.items()}
    return replace(model, message_bytes=sizes)


def draw(seed: int) -> tuple[random.Random, Program, Topology]:
    rng = random.Random(f"timing {seed}")
    topology, made = random_topology(rng), random_program(rng)
    protocol, collective = rng.choice(("Simple", "LL", "LL128")), rng.choice(("alltoall", "reduce"))
    return rng, replace(made, protocol=protocol, collective=collective), topology


def both(made: Program, topology: Topology, size: int, model: ReplayModel) -> tuple[Trace, Trace]:
    timing = Timing(made, topology, model)
    return timing.at(size), timing.in_python(size)


@for_each("runtime", RUNTIMES, quick=3)
@for_each("rule", ALPHA_RULES)
def test_both_replays_of_random_programs_are_equal(rule: str, runtime: str) -> None:
    model = small_model(runtime)
    times = []
    for seed in SEEDS:
        rng, made, topology = draw(seed)
        topology = topology.with_alpha_rule(rule)
        timing = Timing(made, topology, model, protocol_costs=rng.random() < 0.5)
        size = 16 * rng.choice((rng.randint(1, 200), rng.randint(200, 5000)))
        compiled, plain = timing.at(size), timing.in_python(size)
        assert compiled == plain, f"seed {seed}"
        times.append(compiled.time)
    assert 0 < times.count(None) < len(SEEDS) / 2


def test_the_event_loop_means_the_same_before_it_is_compiled() -> None:
    for seed in SEEDS[:10]:
        _, made, topology = draw(seed)
        timing = Timing(replace(made, protocol="LL"), topology, SMALL)
        cut = split(timing.program, 1600, SMALL)
        machine = machine_of(timing.columns, cut, topology.local)
        assert machine is not None
        assert events.run_events(machine, 1 << 40) == events.FINISHED
        trace = timing.in_python(1600)
        assert int(machine.counter[events.SENT]) == trace.messages
        assert tuple(machine.edges[:, events.HELD].tolist()) == trace.edge_busy
        assert trace.time in (None, int(machine.counter[events.NOW]))


def local_program(rng: random.Random) -> Program:
    """Return copies, reductions into few places and nops, with any dependences, some for ever."""
    blocks = []
    for number in range(3):
        steps = []
        for _ in range(rng.randint(0, 9)):
            wait = StepRef(rng.randint(0, 3), rng.randint(0, 4)) if rng.random() < 0.1 else None
            op = rng.choice((*[Op.REDUCE] * 6, Op.COPY, Op.NOP))
            src = Slot(rng.choice((*[Buffer.INPUT] * 9, Buffer.SCRATCH)), rng.randint(0, 9))
            dst, count = Slot(Buffer.INPUT, rng.random() < 0.1), rng.choice((1, 1, 2, 90))
            posts = rng.random() < 0.3
            if op is Op.NOP:
                steps.append(Step(op, None, None, 0, wait, posts))
            else:
                steps.append(Step(op, src, dst, count, wait, posts))
        blocks.append(Threadblock(number, None, None, 0, tuple(steps)))
    return program(blocks, [], chunks=2)


def test_both_replays_of_fused_reductions_and_nops_are_equal() -> None:
    topology = network(2, [])
    topology = replace(topology, local=LocalCosts(Fraction(1, 2), Fraction(1, 3), 77))
    fused = ended = 0
    for seed in range(150):
        timing = Timing(local_program(random.Random(f"local {seed}")), topology, SMALL)
        for size in (8, 408, 5000):
            compiled, plain = timing.at(size), timing.in_python(size)
            assert compiled == plain, f"seed {seed}"
            ended += compiled.time is not None
        fused += any(kind.sources > 2 for kind in timing.columns.kinds)
    assert fused >= 50
    assert 100 <= ended <= 400


@cache
def bound_at(ranks: int, collective: str, root: int | None, rule: str) -> BoundAt:
    return bounds_of(load_topology(f"hub:{ranks}").with_alpha_rule(rule), collective, root)


@pytest.mark.skipif(not CORPUS, reason="the corpus is not on this machine")
@for_each("path", CORPUS, ids=lambda path: path.stem, quick=6)
def test_both_replays_of_shipped_programs_are_equal_and_above_the_bound(path: Path) -> None:
    made = read_program(path)
    unit = 4 * made.chunks_per_loop
    topology = load_topology(f"hub:{made.num_ranks}")
    low, high = max(1, -(-made.min_bytes // unit)) * unit, made.max_bytes // unit * unit
    for size, rule in itertools.product((low, high), ALPHA_RULES):
        network = topology.with_alpha_rule(rule)
        compiled, plain = both(made, network, size, model_of("executor"))
        assert compiled == plain
        assert compiled.in_range
        assert compiled.time is not None
        found = bound_at(made.num_ranks, made.collective, find_root(made), rule)(size)
        assert found is not None
        assert 0 < found[1] <= compiled.time


# --- formulas -----------------------------------------------------------------------------------


def exchanges(ranks: int) -> Program:
    """Recursive doubling: in every round each pair swaps its whole buffers."""
    gpus = []
    for rank in range(ranks):
        blocks: list[Threadblock] = []
        for number in range(ranks.bit_length() - 1):
            peer = rank ^ (1 << number)
            wait = (number - 1, 1) if number else None
            steps = [step("s", wait=wait), step("rrc", posts=True)]
            blocks.append(block(number, peer, peer, steps))
        gpus.append(blocks)
    return program(*gpus)


def all_pairs(ranks: int) -> Program:
    """Every rank sends to all others, each at another distance first."""
    gpus = []
    for rank in range(ranks):
        peers = [((rank + far) % ranks, (rank - far) % ranks) for far in range(1, ranks)]
        gpus.append([block(i, to, of, ["s", "r"]) for i, (to, of) in enumerate(peers)])
    return program(*gpus)


def binomial_broadcast(ranks: int) -> Program:
    """Rank 0 sends half way round, and every rank that has the buffer halves its part."""
    gpus = []
    for rank in range(ranks):
        low = rank & -rank or ranks
        blocks = [block(0, None, rank - low, [step("r", posts=True)])] if rank else []
        wait = (0, 0) if rank else None
        while low > 1:
            low //= 2
            blocks.append(block(len(blocks), rank + low, None, [step("s", wait=wait)]))
        gpus.append(blocks)
    return program(*gpus)


def mesh(ranks: int, alpha: int, beta: Fraction, rule: str) -> Topology:
    rows = [(a, b, alpha, None, beta) for a in range(ranks) for b in range(ranks) if a != b]
    return network(ranks, rows, rule=rule)


def star(ranks: int, alpha: int, beta: Fraction, rule: str) -> Topology:
    slow = hub(ranks, alpha, rule=rule)
    return replace(slow, edges=tuple(replace(edge, beta=beta) for edge in slow.edges))


def circle(ranks: int, alpha: int, beta: Fraction, rule: str) -> Topology:
    wires = [(r, (r + 1) % ranks, alpha, None, beta) for r in range(ranks)]
    return network(ranks, wires, rule=rule)


def rounds(ranks: int) -> int:
    return ranks.bit_length() - 1


@for_each("rule", ALPHA_RULES)
@for_each("ranks", [2, 8, 32])
@for_each(
    ("made", "fabric", "steps", "pieces"),
    [
        (ring_allreduce, circle, lambda n: 2 * (n - 1), lambda n: n),
        (exchanges, mesh, rounds, lambda _: 1),
        (binomial_broadcast, star, rounds, lambda _: 1),
        (all_pairs, mesh, lambda _: 1, lambda _: 1),
    ],
    ids=["ring", "recursive doubling", "binomial tree", "all pairs"],
)
def test_classical_algorithms_take_their_formulas(
    made: Callable[[int], Program],
    fabric: Callable[[int, int, Fraction, str], Topology],
    steps: Callable[[int], int],
    pieces: Callable[[int], int],
    ranks: int,
    rule: str,
) -> None:
    size, alpha, beta = 4 * 1001 * ranks, 701, Fraction(23, 7)
    expected = steps(ranks) * (alpha + ceil_time(beta, Fraction(size, pieces(ranks))))
    for trace in both(made(ranks), fabric(ranks, alpha, beta, rule), size, WIDE):
        assert trace.time == expected


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_all_pairs_on_one_switch_keep_every_port_busy(ranks: int) -> None:
    size, alpha, beta = 4004, 701, Fraction(23, 7)
    data = ceil_time(beta, size)
    for rule, expected in (
        ("occupy", (ranks - 1) * (alpha + data)), ("delay", (ranks - 1) * data + alpha),
    ):  # fmt: skip
        for trace in both(all_pairs(ranks), star(ranks, alpha, beta, rule), size, WIDE):
            assert trace.time == expected


# --- what can't run, and what is too large ------------------------------------------------------


def test_what_can_not_run_has_the_same_reason() -> None:
    stuck = program([block(0, 1, 1, ["r", "s"])], [block(0, 0, 0, ["r", "s"])])
    missing = program([block(0, None, None, [step("cpy", wait=(7, 0))])], [])
    unposted = program(
        [block(0, None, None, ["cpy"]), block(1, None, None, [step("cpy", wait=(0, 0))])], []
    )
    steps = ["s", "s", "s", "r", "r", "r"]
    full = program([block(0, 1, 1, steps)], [block(0, 0, 0, steps)])
    for made, text in (
        (stuck, "waits for a message from rank 1"), (missing, "does not exist"),
        (unposted, "without posting it"), (full, "waits for a free slot to rank 1"),
    ):  # fmt: skip
        compiled, plain = both(made, ring(2), 100, SMALL)
        assert compiled == plain
        assert text in compiled.reason


def test_sizes_that_chunks_do_not_divide_have_the_same_reason() -> None:
    for size in (0, 100, 12 * 65537 * 1000):
        compiled, plain = both(ring_allreduce(3), ring(3), size, SMALL)
        assert compiled == plain
        assert compiled.reason


@pytest.mark.parametrize(
    "made",
    [program([], []), program([block(0, 1, None, ["nop"])], [block(0, None, 0, ["nop"])])],
    ids=["no steps", "nops alone"],
)
def test_programs_that_do_nothing_take_no_time_in_both_replays(made: Program) -> None:
    compiled, plain = both(made, ring(2), 8, SMALL)
    assert compiled == plain
    assert compiled.time == 0


def test_a_step_without_a_peer_is_the_same_error() -> None:
    for op, word in (("s", "sends"), ("rrc", "receives"), ("rcs", "sends")):
        made = program([block(3, None, None, ["cpy", "nop", op])], [])
        with pytest.raises(ProgramError, match=f"rank 0 threadblock 3 step 2 {word}, but"):
            Timing(made, ring(2), SMALL).at(4)


def test_times_beyond_64_bits_are_left_to_python() -> None:
    slow = network(2, [(0, 1, 0, None, 10**9)])
    made = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])])
    compiled, plain = both(made, slow, 1 << 40, replace(WIDE, message_bytes={"Simple": 1 << 40}))
    assert compiled.time == plain.time == 10**9 << 40


def test_a_replay_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.replay.timing.MAX_REPLAYED", 50)
    monkeypatch.setattr("taccl.replay.timing.SLICE", 10)
    trace = Timing(ring_allreduce(8), ring(8), SMALL).at(8 * 4)
    assert trace.time is None
    assert trace.reason == (
        "needs 120 messages and copies, and did not repeat itself within 50 events"
    )


def test_slices_do_not_change_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.replay.timing.SLICE", 1)
    compiled, plain = both(ring_allreduce(8), ring(8), 8 * 4000, SMALL)
    assert compiled == plain


# --- which replay -------------------------------------------------------------------------------


def test_small_programs_do_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr("taccl.replay.timing.is_loaded", lambda: False)
    monkeypatch.setattr("taccl.replay.timing.compiled", fail)
    (trace,) = traces(ring_allreduce(4), ring(4), [16], SMALL)
    assert trace == replace(replay(ring_allreduce(4), ring(4), 16, SMALL), spans=())


def test_many_small_programs_are_worth_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr("taccl.replay.timing.is_loaded", lambda: False)
    monkeypatch.setattr("taccl.replay.timing.WORTH_COMPILED", 100)
    monkeypatch.setattr(Timing, "at", lambda _self, size: used.append(("compiled", size)))
    monkeypatch.setattr(Timing, "in_python", lambda _self, size: used.append(("python", size)))
    for _ in range(2):  # 28 + 28 messages and copies, then 56 more
        list(traces(ring_allreduce(4), ring(4), [16, 32], SMALL))
    assert [which for which, _ in used] == ["python", "python", "compiled", "compiled"]


def test_a_routed_pair_warns_once_for_all_sizes() -> None:
    made = program([block(0, 2, None, ["s"])], [], [block(0, None, 0, ["r"])])
    timing = Timing(made, ring(3), SMALL, route=True)
    with pytest.warns(TacclWarning, match="routed through rank 1") as caught:
        found = [timing.at(size).time for size in (4, 100)]
    assert found == [2 * 700 + 3 * 4, 2 * 700 + 3 * 100]
    assert len(caught) == 1


# --- steady iterations --------------------------------------------------------------------------


def test_iterations_that_repeat_themselves_are_skipped_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.replay.timing.EXTRAPOLATED_ABOVE", 0)
    skipped = 0
    for seed in range(120):
        rng, made, topology = draw(seed)
        timing = Timing(made, topology, small_model("executor"))
        message = timing.model.message_bytes[made.protocol]
        size = 4 * message * rng.randint(10, 40) + 16 * rng.randint(0, 5)
        compiled, plain = timing.at(size), timing.in_python(size)
        assert replace(compiled, extrapolated=0) == plain, f"seed {seed}"
        skipped += compiled.extrapolated > 0
    assert skipped >= 20


def test_above_20_million_messages_the_row_says_what_was_skipped() -> None:
    # 16 x 31 messages and receives an iteration; from some iteration on each takes equally long.
    made, fabric, chunk = ring_allreduce(16), ring(16), 16 * 1000
    times = [replay(made, fabric, chunk * n, SMALL).time for n in (20, 21)]
    assert times[0] is not None
    assert times[1] is not None
    (row,) = sweep([("", made)], fabric, [chunk * 50_000], SMALL)
    assert row.time == times[0] + (50_000 - 20) * (times[1] - times[0])
    assert re.match(r"499\d\d iterations extrapolated", row.note)


def pauses(machine: Machine) -> Iterator[Snapshot]:
    """Yield the state at each iteration of the threadblock that is last of all."""
    watch(machine)
    while events.run_events(machine, 1 << 40) == events.PAUSED:
        yield Snapshot.of(machine)
        watch(machine)


def two_equal_states() -> tuple[Snapshot, Snapshot]:
    """Return states of two channels on one wire, in which a send waits and others fly."""
    made = program(
        [block(0, 1, None, [step("s", posts=True), "s"]),
         block(1, 1, None, [step("s", wait=(0, 0))], channel=1)],
        [block(0, None, 0, ["r", "r"]), block(1, None, 0, ["r"], channel=1)],
    )  # fmt: skip
    topology = network(2, [(0, 1, 5000, 0, 1)])
    columns = columns_of(made, topology)
    machine = machine_of(columns, split(made, 40_000, SMALL), topology.local)
    assert machine is not None
    found = list(pauses(machine))
    return next(
        (a, b) for a, b in itertools.combinations(found, 2)
        if repeats(a, b) and (b.blocks[:, events.PARKED] >= 0).any() and len(b.queue) > 1
    )  # fmt: skip


@for_each(
    ("table", "field"),
    [
        *(("blocks", field) for field in (
            events.PHASE, events.STEP, events.ITERATION, events.LEFT, events.NEED, events.FLAG,
        )),
        *(("connections", field) for field in (
            events.AVAILABLE, events.TAKEN, events.OFFSET, events.COURSE,
        )),
        ("edges", events.BUSY), ("queue", 0), ("queue", 1),
    ],
)  # fmt: skip
def test_states_that_differ_anywhere_do_not_repeat(table: str, field: int) -> None:
    before, state = two_equal_states()
    rows = getattr(state, table)
    for number in range(len(rows) - (table == "blocks")):
        rows[number, field] += 1
        assert not repeats(before, state), f"row {number}"
        rows[number, field] -= 1
    assert repeats(before, state)


@pytest.mark.parametrize("field", [events.SINCE, events.PARKED])
def test_states_in_which_another_send_waits_do_not_repeat(field: int) -> None:
    before, state = two_equal_states()
    (waiting,) = np.flatnonzero(state.blocks[:, events.PARKED] >= 0)
    state.blocks[waiting, field] += 1
    assert not repeats(before, state)


def test_the_last_iteration_is_never_skipped() -> None:
    before, state = two_equal_states()
    state.counter[events.ITERATIONS] = state.blocks[:, events.ITERATION].max() + 1
    assert not repeats(before, state)
