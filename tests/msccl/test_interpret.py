"""What the interpreter says of hand-made programs, right and wrong."""

from dataclasses import replace

import pytest

from taccl.collectives import build_collective
from taccl.msccl.interpret import Cells, _conflicts, _Order, find_root, interpret, judge
from taccl.msccl.program import Buffer, Finding, Gpu, Op, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.run import Flags, Ints, Run, deadlock, largest_safe_size
from taccl.msccl.runtimes import RUNTIMES, message_chunks
from taccl.msccl.xml import read_xml
from tests.msccl.builders import make, mesh, pairs_schedule, ring_schedule, with_each_step
from tests.msccl.texts import swap

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741 - the XML's letters
INPUT, OUTPUT, SCRATCH = Slot(I, 0), Slot(O, 0), Slot(S, 1)


def send(src: Slot, count: int = 1, depends: StepRef | None = None, posts: bool = False) -> Step:
    return Step(Op.SEND, src, None, count, depends, posts)


def recv(dst: Slot, count: int = 1, depends: StepRef | None = None, posts: bool = False) -> Step:
    return Step(Op.RECV, None, dst, count, depends, posts)


def copy(src: Slot, dst: Slot, count: int = 1, depends: StepRef | None = None) -> Step:
    return Step(Op.COPY, src, dst, count, depends)


def add(src: Slot, dst: Slot) -> Step:
    return Step(Op.REDUCE, src, dst, 1, None, True)


def block(number: int, *steps: Step, to: int | None = None, of: int | None = None) -> Threadblock:
    return Threadblock(number, to, of, 0, steps)


def program(collective: str, *ranks: list[Threadblock], chunks: int = 2) -> Program:
    """Return a program with roomy buffers."""
    gpus = tuple(Gpu(r, 8, 8, 8, tuple(blocks)) for r, blocks in enumerate(ranks))
    return Program("p", collective, "Simple", True, True, 1, chunks, 0, 1 << 20, gpus)


def swap_gather(*, copies: bool = True) -> Program:
    """Two ranks gather: each sends its chunk and receives the other's."""
    ranks = []
    for rank in (0, 1):
        own = [copy(Slot(I, 0), Slot(O, rank))] if copies else []
        ranks.append(
            [
                block(0, send(Slot(I, 0)), to=1 - rank),
                block(1, *own, recv(Slot(O, 1 - rank)), of=1 - rank),
            ]
        )
    return program("allgather", *ranks)


def rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def test_a_right_program_has_no_findings() -> None:
    assert interpret(swap_gather(), in_place=True) == []
    assert interpret(swap_gather(), in_place=False) == []


def test_without_the_own_copy_only_calls_in_place_are_right() -> None:
    plain = swap_gather(copies=False)
    assert interpret(plain, in_place=True) == []
    wrong = interpret(plain, in_place=False)
    assert [f.explanation for f in wrong] == [
        "out of place: output 0 should be input 0 of rank 0, and is never written",
        "out of place: output 1 should be input 0 of rank 1, and is never written",
    ]


def test_reading_scratch_that_nothing_wrote_is_found() -> None:
    wrong = program(
        "allgather", [block(0, send(Slot(S, 3)), to=1)], [block(0, recv(Slot(O, 0)), of=0)]
    )
    found = interpret(wrong, in_place=False)
    assert ("undefined", 0, 0, 0) in [(f.rule, f.gpu, f.threadblock, f.step) for f in found]
    assert any("made of undefined data" in f.explanation for f in found)


def test_writing_the_input_out_of_place_is_found() -> None:
    wrong = program("allreduce", [block(0, copy(Slot(I, 0), Slot(I, 1)))], [])
    assert "input" in rules(interpret(wrong, in_place=False))
    assert "input" not in rules(interpret(wrong, in_place=True))


def test_a_value_counted_twice_is_named() -> None:
    add = Step(Op.REDUCE, Slot(S, 0), Slot(O, 0))
    receiving = [copy(Slot(I, 0), Slot(O, 0)), recv(Slot(S, 0)), add, add]
    wrong = program(
        "reducescatter", [block(0, *receiving, of=1)], [block(0, send(Slot(I, 0)), to=0)]
    )
    explanations = [f.explanation for f in interpret(wrong, in_place=False)]
    assert (
        "out of place: output 0 should be input 0 of ranks 0, 1,"
        " and is input 0 of ranks 0, 1 (twice)"
    ) in explanations


def test_two_threadblocks_that_write_one_chunk_race() -> None:
    wrong = program(
        "allreduce",
        [block(0, copy(Slot(I, 0), Slot(O, 0))), block(1, copy(Slot(I, 0), Slot(O, 0)))],
        [],
    )
    (race,) = [f for f in interpret(wrong, in_place=False) if f.rule == "race"]
    assert (race.gpu, race.threadblock, race.step) == (0, 1, 0)
    assert "step 0 of threadblock 0" in race.explanation


def test_a_copy_of_a_cell_onto_itself_only_reads() -> None:
    # In place both copies are the identity; out of place they race.
    both = program(
        "allreduce",
        [block(0, copy(Slot(I, 0), Slot(O, 0))), block(1, copy(Slot(I, 0), Slot(O, 0)))],
        [],
    )
    assert "race" not in rules(interpret(both, in_place=True))


def test_a_dependence_orders_two_writes() -> None:
    first = replace(copy(Slot(I, 0), Slot(O, 0)), posts=True)
    ordered = program(
        "allreduce",
        [block(0, first), block(1, copy(Slot(I, 0), Slot(O, 0), depends=StepRef(0, 0)))],
        [],
    )
    assert "race" not in rules(interpret(ordered, in_place=False))


def test_a_dependence_is_released_by_the_first_step_that_posts_from_there_on() -> None:
    # Step 1 posts, so waiting for step 0 is waiting for step 1, which writes the chunk, too.
    writes = copy(Slot(I, 0), Slot(O, 0))
    ordered = program(
        "allreduce",
        [
            block(0, copy(Slot(I, 0), Slot(O, 1)), replace(writes, posts=True)),
            block(1, replace(writes, depends=StepRef(0, 0))),
        ],
        [],
    )
    assert "race" not in rules(interpret(ordered, in_place=False))


def test_messages_order_the_ranks_they_join() -> None:
    # Rank 0 reads i[0], rank 1 answers, rank 0 overwrites i[0] (in place: o[0]).
    ping = program(
        "allreduce",
        [block(0, send(Slot(I, 0)), to=1), block(1, recv(Slot(O, 0)), of=1)],
        [block(0, recv(Slot(S, 0)), send(Slot(S, 0)), to=0, of=0)],
    )
    assert "race" not in rules(interpret(ping, in_place=True))


def test_a_full_fifo_orders_nothing() -> None:
    # Rank 0 sends i[0] twice; only back-pressure could delay the copy that overwrites it.
    racy = program(
        "allreduce",
        [block(0, *[send(Slot(I, 0))] * 3, to=1), block(1, copy(Slot(I, 1), Slot(O, 0)))],
        [block(0, *[recv(Slot(S, 0))] * 3, of=0)],
    )
    assert "race" in rules(interpret(racy, in_place=True))


def test_a_wait_in_a_circle_names_who_waits_for_what() -> None:
    stuck = program(
        "allreduce",
        [block(0, recv(Slot(S, 0)), send(Slot(I, 0)), to=1, of=1)],
        [block(0, recv(Slot(S, 0)), send(Slot(I, 0)), to=0, of=0)],
    )
    (finding,) = [f for f in interpret(stuck, in_place=True) if f.rule == "deadlock"]
    assert finding.explanation == (
        "in place: gpu 0 threadblock 0 at step 0 waits for a message from gpu 1 on channel 0;"
        " gpu 1 threadblock 0 at step 0 waits for a message from gpu 0 on channel 0"
    )


def test_waiting_for_a_step_that_never_posts_is_a_deadlock() -> None:
    stuck = program(
        "allreduce",
        [
            block(0, copy(Slot(I, 0), Slot(O, 0))),
            block(1, copy(Slot(I, 1), Slot(O, 1), depends=StepRef(0, 0))),
        ],
        [],
    )
    (finding,) = [f for f in interpret(stuck, in_place=False) if f.rule == "deadlock"]
    assert "no step from there on posts" in finding.explanation


def test_a_message_that_nobody_receives_is_left_over() -> None:
    wrong = program("allreduce", [block(0, send(Slot(I, 0)), to=1)], [])
    (finding,) = [f for f in interpret(wrong, in_place=True) if f.rule == "leftover"]
    assert (finding.gpu, finding.threadblock, finding.step) == (0, 0, 0)
    assert "a message is never received by gpu 1 on channel 0" in finding.explanation


def test_a_wrong_result_is_told_at_the_step_that_wrote_it() -> None:
    wrong = program(
        "allreduce", [block(0, copy(Slot(I, 1), Slot(O, 0)), copy(Slot(I, 0), Slot(O, 0)))], []
    )
    found = [f for f in interpret(wrong, in_place=False) if f.rule == "result"]
    places = {(f.gpu, f.threadblock, f.step): f.explanation.split(", and ")[1] for f in found}
    assert places == {
        (0, 0, 1): "is input 0 of rank 0",
        (0, None, None): "is never written",
        (1, None, None): "is never written",
    }
    assert all(finding.fix for finding in found)


def test_only_a_deadlock_that_depends_on_the_size_is_mended_by_one() -> None:
    stuck = program("allreduce", [block(0, recv(Slot(I, 0)), of=1)], [])
    (finding,) = [f for f in interpret(stuck, in_place=True) if f.rule == "deadlock"]
    assert finding.fix == "reorder the steps, or what they wait for"
    (finding,) = [f for f in [deadlock(read_xml(swap(3, "Simple")), 1, 2)] if f]
    assert finding.fix == "reorder the steps, or lower --max-bytes"


def test_different_counts_at_the_ends_of_a_message_are_found() -> None:
    wrong = program(
        "allreduce", [block(0, send(Slot(I, 0), 2), to=1)], [block(0, recv(Slot(S, 0)), of=0)]
    )
    (finding,) = [f for f in interpret(wrong, in_place=True) if f.rule == "count"]
    assert "receives 1 chunks, and its message has 2" in finding.explanation


def test_overlapping_source_and_target_are_found() -> None:
    wrong = program("allreduce", [block(0, copy(Slot(O, 0), Slot(O, 1), 2))], [])
    assert "overlap" in rules(interpret(wrong, in_place=False))


def test_a_collective_without_known_result_is_a_finding() -> None:
    for name in ("custom", "gather", "scatter"):
        (finding,) = interpret(program(name, [], []), in_place=True)
        assert finding.rule == "unknown collective"


def handing_on(*, reads: Slot = INPUT, to: Slot = OUTPUT) -> Program:
    """Rank 1 broadcasts one chunk to rank 0."""
    return program(
        "broadcast",
        [block(0, recv(to), of=1)],
        [block(0, send(reads), to=0), block(1, copy(Slot(I, 0), Slot(O, 0)))],
        chunks=1,
    )


def test_a_broadcast_is_right_for_the_root_that_it_serves() -> None:
    for in_place in (True, False):
        assert interpret(handing_on(), in_place=in_place) == []
    assert find_root(handing_on()) == 1
    other = build_collective("broadcast", 2, 1, root=0)
    assert rules(interpret(handing_on(), in_place=False, collective=other)) >= {"result"}


def test_a_broadcast_that_reads_the_output_before_it_is_written_is_wrong() -> None:
    found = interpret(handing_on(reads=Slot(O, 0)), in_place=False)
    assert rules(found) & {"undefined", "race"}


def test_a_broadcast_into_scratch_is_no_broadcast() -> None:
    assert rules(interpret(handing_on(to=Slot(S, 0)), in_place=False)) == {"result"}


def adding(*, into: Slot = SCRATCH) -> Program:
    """Ranks 0 to 2 reduce to rank 2, rank 1 adding on the way."""
    return program(
        "reduce",
        [block(0, send(Slot(I, 0)), to=1)],
        [
            block(0, copy(Slot(I, 0), into), recv(Slot(S, 0)), add(Slot(S, 0), into), of=0),
            block(1, send(into, depends=StepRef(0, 2)), to=2),
        ],
        [
            block(
                0, copy(Slot(I, 0), Slot(O, 0)), recv(Slot(S, 0)), add(Slot(S, 0), Slot(O, 0)), of=1
            )
        ],
        chunks=1,
    )  # fmt: skip


def test_a_reduction_is_right_for_the_root_that_it_serves() -> None:
    for in_place in (True, False):
        assert interpret(adding(), in_place=in_place) == []
    assert find_root(adding()) == 2


def test_a_reduction_in_place_leaves_the_other_ranks_buffers_alone() -> None:
    # nccl-tests compares recvbuff of the ranks that are not the root with what was there before.
    found = interpret(adding(into=Slot(I, 0)), in_place=True)
    assert rules(found) == {"input"}
    assert "a rank that is to get nothing" in found[0].explanation


def test_a_collective_without_a_root_has_none() -> None:
    assert find_root(swap_gather()) is None


def test_a_program_that_does_nothing_has_the_first_rank_for_root() -> None:
    assert find_root(program("broadcast", [], [], chunks=1)) == 0


def test_chunks_that_ranks_can_not_share_are_a_finding() -> None:
    (finding,) = interpret(program("allgather", [], [], chunks=3), in_place=True)
    assert "3 chunks can't be shared by 2 ranks" in finding.explanation


def test_another_collective_can_be_expected() -> None:
    gather = swap_gather()
    wanted = build_collective("alltoall", 2, 1)
    assert "result" in rules(interpret(gather, in_place=False, collective=wanted))


def test_every_op_does_what_the_runtime_does() -> None:
    # A ring of three: 0 sends i[0]; 1 adds and forwards (rrs); 2 adds, keeps, sends back (rrcs);
    # 0 keeps and forwards (rcs); 1 keeps. With chunk 1 through rrc the other way round.
    fused = [
        [block(0, send(Slot(I, 0)), Step(Op.RECV_COPY_SEND, None, Slot(O, 0)), to=1, of=2)],
        [block(0, Step(Op.RECV_REDUCE_SEND, Slot(I, 0), None), recv(Slot(O, 0)), to=2, of=0)],
        [block(0, Step(Op.RECV_REDUCE_COPY_SEND, Slot(I, 0), Slot(O, 0)), to=0, of=1)],
    ]
    ring = program("allreduce", *fused, chunks=3)
    wrong = interpret(ring, in_place=False)
    # Output 0 is right everywhere; outputs 1 and 2 were not the subject.
    assert {f.explanation.split(" should")[0] for f in wrong} == {
        "out of place: output 1",
        "out of place: output 2",
    }


def test_receive_reduce_copy_adds_its_source() -> None:
    pair = program(
        "reducescatter",
        [
            block(0, Step(Op.RECV_REDUCE_COPY, Slot(I, 0), Slot(O, 0)), of=1),
            block(1, send(Slot(I, 1)), to=1),
        ],
        [
            block(0, send(Slot(I, 0)), to=0),
            block(1, Step(Op.RECV_REDUCE_COPY, Slot(I, 1), Slot(O, 0)), of=0),
        ],
    )
    assert interpret(pair, in_place=False) == []
    assert interpret(pair, in_place=True) == []


def exchange(count: int) -> Program:
    """Two ranks send ``count`` chunks each, then receive, in one threadblock."""
    steps = (send(Slot(I, 0), count), recv(Slot(S, 0), count))
    return program("allreduce", [block(0, *steps, to=1, of=1)], [block(0, *steps, to=0, of=0)])


@pytest.mark.parametrize(
    ("chunks_per_message", "slots", "stuck"),
    [(1, 2, True), (2, 2, False), (1, 4, False), (4, 1, False), (3, 1, True)],
)
def test_a_send_of_more_messages_than_slots_deadlocks(
    chunks_per_message: int, slots: int, stuck: bool
) -> None:
    # Four chunks are ceil(4 / m) messages, which must fit the connection.
    assert (deadlock(exchange(4), chunks_per_message, slots) is not None) == stuck


def test_the_largest_safe_size_is_where_messages_get_too_small() -> None:
    # Simple has 2 slots, so two chunks a message are needed: floor(2 MiB / chunk) >= 2, 1 MiB each,
    # and the buffer has two chunks: 2 MiB.
    assert largest_safe_size(exchange(4), "executor", 1024, 1 << 30) == 2 << 20


def test_a_program_that_always_deadlocks_has_no_safe_size() -> None:
    assert largest_safe_size(exchange(8), "executor", 4 << 20, 1 << 30) == 0


def test_a_program_that_never_deadlocks_is_safe_up_to_the_end() -> None:
    assert largest_safe_size(swap_gather(), "rccl", 1, 1 << 40) == 1 << 40


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_the_largest_safe_size_is_safe_and_the_next_is_not(protocol: str) -> None:
    risky = replace(exchange(16), protocol=protocol)
    size = largest_safe_size(risky, "rccl", 1, 1 << 30)
    slots = RUNTIMES["rccl"].fifo_slots[protocol]
    for total, stuck in ((size, False), (size + risky.chunks_per_loop, True)):
        chunks = message_chunks(
            "rccl", protocol, risky.collective, -(-total // risky.chunks_per_loop)
        )
        assert (deadlock(risky, chunks, slots) is not None) == stuck


@pytest.mark.parametrize(("past", "stuck"), [(0, False), (2, True)])
def test_the_judge_wants_no_deadlock_at_the_declared_sizes(past: int, stuck: bool) -> None:
    # 2 MiB is the largest size at which four chunks are two messages.
    declared = replace(exchange(4), max_bytes=(2 << 20) + past)
    assert ("deadlock" in rules(judge(declared, "executor"))) == stuck


def test_every_cut_of_a_long_program_is_looked_at() -> None:
    # Two messages of 2 MiB hold 8 chunks while 4 fit into one, however much else there is to do.
    short = exchange(8)
    much = block(1, *[copy(Slot(S, 0), Slot(O, 0), 71)] * 3000)
    longer = replace(
        short, gpus=(replace(short.gpus[0], threadblocks=(*short.gpus[0].threadblocks, much)),
                     *short.gpus[1:]),
    )  # fmt: skip
    size = short.chunks_per_loop * (512 << 10)
    assert largest_safe_size(short, "executor", 1, 1 << 30) == size
    assert largest_safe_size(longer, "executor", 1, 1 << 30) == size


def test_what_is_portable_must_not_deadlock_with_the_smaller_messages_of_rccl() -> None:
    # LL has 8 slots; 16 chunks need two a message: of 32 KiB in the executor, of 16 KiB in rccl.
    risky = replace(exchange(16), protocol="LL")
    assert largest_safe_size(risky, "executor", 1, 1 << 30) == 2 * (16 << 10)
    assert largest_safe_size(risky, "portable", 1, 1 << 30) == 2 * (8 << 10)


def test_an_all_reduce_may_have_any_number_of_chunks() -> None:
    def half(peer: int) -> list[Threadblock]:
        copies = Step(Op.COPY, Slot(I, 0), Slot(O, 0), 3)
        adds = Step(Op.RECV_REDUCE_COPY, Slot(O, 0), Slot(O, 0), 3)
        return [block(0, send(Slot(I, 0), 3), copies, adds, to=peer, of=peer)]

    three = replace(
        program("allreduce", half(1), half(0)), chunks_per_loop=3,
        in_place=False, out_of_place=True,
    )  # fmt: skip
    assert interpret(three, in_place=False) == []


def test_a_chunk_that_an_uneven_all_reduce_leaves_out_is_found() -> None:
    copies = Step(Op.COPY, Slot(I, 0), Slot(O, 0), 2)
    adds = Step(Op.RECV_REDUCE_COPY, Slot(O, 0), Slot(O, 0), 2)
    blocks = [[block(0, send(Slot(I, 0), 2), copies, adds, to=r, of=r)] for r in (1, 0)]
    three = replace(program("allreduce", *blocks), chunks_per_loop=3)
    assert "result" in rules(interpret(three, in_place=False))


def test_the_judge_looks_at_claimed_modes_only() -> None:
    plain = replace(swap_gather(copies=False), gpus=swap_gather(copies=False).gpus)
    fitted = replace(
        plain, gpus=tuple(replace(gpu, input_chunks=1, output_chunks=2) for gpu in plain.gpus)
    )
    assert "result" in rules(judge(fitted, "portable"))
    assert judge(replace(fitted, out_of_place=False), "portable") == []


def test_a_finding_reads_as_one_line() -> None:
    finding = Finding("race", "both write", 1, 2, 3, "add a dependence")
    assert str(finding) == (
        "race: gpu 1, threadblock 2, step 3: both write (fix: add a dependence)"
    )


def test_races_are_found_with_clocks_of_one_rank_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.msccl.interpret.MAX_CLOCKS", 1)
    clean = make(ring_schedule("allreduce", 3))
    assert judge(clean, "portable") == []
    loose = with_each_step(clean, lambda step: replace(step, depends=None))
    assert "race" in rules(judge(loose, "portable"))


def test_a_program_whose_ranks_order_their_own_steps_needs_no_clocks_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    longest: list[int] = []

    def watched(
        run: Run, cells: Cells, order: _Order, column: Ints, asked: Flags, most: int
    ) -> tuple[Flags, Ints]:
        longest.append(int(column.max()) + 1)
        return _conflicts(run, cells, order, column, asked, most)

    monkeypatch.setattr("taccl.msccl.interpret._conflicts", watched)
    for collective in ("allgather", "reducescatter", "alltoall"):
        clean = make(pairs_schedule(collective, mesh(6)))
        assert judge(clean, "portable") == []
        assert max(longest) == max(len(gpu.threadblocks) for gpu in clean.gpus)


def test_dependences_found_without_messages_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = make(ring_schedule("allreduce", 3))
    monkeypatch.setattr("taccl.lowering.dependencies.MAX_CLOCKS", 1)
    local = make(ring_schedule("allreduce", 3))
    waits = [
        sum(s.depends is not None for _, b in p.blocks() for s in b.steps) for p in (exact, local)
    ]
    assert judge(local, "portable") == []
    assert waits[0] <= waits[1]


def test_an_alltoall_of_many_ranks_is_interpreted() -> None:
    many = make(pairs_schedule("alltoall", mesh(12)), in_place=False)
    assert judge(many, "portable") == []


def test_a_program_without_threadblocks_leaves_its_results_unwritten() -> None:
    assert rules(interpret(program("allgather", [], []), in_place=True)) == {"result"}


def test_counts_beyond_what_can_be_followed_are_one_finding() -> None:
    huge = program("allgather", [block(0, send(Slot(I, 0), 10**9), to=1)], [])
    assert rules(interpret(huge, in_place=True)) == {"size"}
    assert {"size", "counts"} <= rules(judge(huge, "executor"))


def summed_at(target: int) -> Program:
    """Two ranks add two chunks each into their output, the target shifted against the source."""
    adds = Step(Op.RECV_REDUCE_COPY, Slot(O, 0), Slot(O, target), 2)
    blocks = [
        [block(0, copy(Slot(I, 0), Slot(O, 0), 2), send(Slot(I, 0), 2), adds, to=r, of=r)]
        for r in (1, 0)
    ]
    return program("allreduce", *blocks)


def test_a_reduction_into_where_it_reads_is_right() -> None:
    assert interpret(summed_at(0), in_place=False) == []


def test_a_reduction_shifted_against_where_it_reads_overlaps() -> None:
    # One chunk a message: the second would add to what the first has written.
    assert "overlap" in rules(interpret(summed_at(1), in_place=False))


@pytest.mark.parametrize(("offset", "found"), [(1, set()), (2, {"outside"}), (7, {"outside"})])
def test_a_call_has_no_room_beyond_its_chunks_whatever_the_file_says(
    offset: int, found: set[str]
) -> None:
    # The output of an all-gather of two ranks is 2 chunks; the file says 8, which is not checked.
    spare = copy(Slot(I, 0), Slot(O, offset))
    gathers = swap_gather().gpus[0].threadblocks
    first = replace(gathers[1], steps=(spare, *gathers[1].steps))
    gpus = (replace(swap_gather().gpus[0], threadblocks=(gathers[0], first)),
            swap_gather().gpus[1])  # fmt: skip
    assert rules(interpret(replace(swap_gather(), gpus=gpus), in_place=False)) == found


def test_an_input_that_is_added_up_ever_so_often_is_told_without_listing_it() -> None:
    copied, *grows = copy(INPUT, OUTPUT), add(INPUT, OUTPUT), add(OUTPUT, INPUT)
    found = interpret(
        program("allreduce", [block(0, copied, *grows * 50)], chunks=1), in_place=False
    )
    results = [finding for finding in found if finding.rule == "result"]
    assert "(very many times)" in results[0].explanation


def test_small_programs_and_large_ones_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = make(ring_schedule("allreduce", 4))
    programs = [clean, with_each_step(clean, lambda step: replace(step, depends=None))]
    compiled = [judge(one, "rccl") for one in programs]
    monkeypatch.setattr("taccl.msccl.interpret.is_worth_compiling", lambda *_: False)
    monkeypatch.setattr("taccl.msccl.run.is_worth_compiling", lambda *_: False)
    assert [judge(one, "rccl") for one in programs] == compiled
    assert not compiled[0]
    assert compiled[1]
