"""Pieces of what ranks own follow one another, where more messages cost nothing."""

from collections import defaultdict
from dataclasses import replace

from taccl.apps.inputs import MachineOptions, load_machine
from taccl.collectives import build_collective
from taccl.lowering.lower import LowerOptions, lower
from taccl.model.problem import Problem
from taccl.model.problem import problem_of as whole_problem
from taccl.replay.cost import charged_network, model_of
from taccl.replay.timing import traces
from taccl.synth.templates.classical import classical_schedules
from taccl.synth.templates.steps import ROUND_BARRIER, Step, piece_by_piece
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.synth.problems import problem_of


def asked(collective: str, chunks: int) -> Problem:
    return problem_of(load_topology("hub:3"), collective, chunks)


def test_a_message_is_cut_and_pieces_go_round_by_round() -> None:
    steps: list[Step] = [((0, 1), 0, 1, False), ((0, 1), 1, 2, False), ((4, 5), 2, 1, False)]
    assert piece_by_piece(asked("allgather", 2), steps) == [
        ((0,), 0, 1, False), ((4,), 2, 1, False), ((1,), 0, 1, False), ((5,), 2, 1, False),
        ((0,), 1, 2, False), ((1,), 1, 2, False),
    ]  # fmt: skip


def test_what_arrives_after_a_send_is_no_part_of_it() -> None:
    # Rank 1 sends what it has to rank 2 before that of rank 0 comes, which has come sooner to 0.
    steps: list[Step] = [((0, 1), 2, 0, True), ((0, 1), 1, 2, True), ((0, 1), 0, 1, True)]
    found = piece_by_piece(asked("allreduce", 2), steps)
    for chunk in (0, 1):
        assert [(src, dst) for chunks, src, dst, _ in found if chunks == (chunk,)] == [
            (src, dst) for _, src, dst, _ in steps
        ]


def test_barriers_stay_where_they_are() -> None:
    exchange: list[Step] = [((0, 1), 0, 1, True), ((0, 1), 1, 0, True), ROUND_BARRIER]
    cut: list[Step] = [((piece,), *ends, True) for piece in (0, 1) for ends in ((0, 1), (1, 0))]
    assert piece_by_piece(asked("allreduce", 2), exchange * 2) == [*cut, ROUND_BARRIER] * 2


def test_pieces_of_several_ranks_travel_together() -> None:
    steps: list[Step] = [((0, 1, 2, 3), 0, 1, False)]
    assert piece_by_piece(asked("allgather", 2), steps) == [
        ((0, 2), 0, 1, False), ((1, 3), 0, 1, False)
    ]  # fmt: skip


def test_what_has_no_pieces_in_a_message_stays_as_it_is() -> None:
    apart: list[Step] = [((1,), 0, 1, False), ((0, 2), 0, 1, False)]
    assert piece_by_piece(asked("allgather", 2), apart) == apart
    of_root: list[Step] = [((0, 1), 0, 1, False)]
    assert piece_by_piece(asked("broadcast", 2), of_root) == of_root


def test_it_is_right_for_every_algorithm() -> None:
    topology = load_machine("dgx-h100", MachineOptions(nodes=2))
    charged = charged_network(topology, "LL128")
    for collective in ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast"):
        for name in ("all-pairs", "flooding", "hierarchical", "ring", "one-shot"):
            problem = whole_problem(charged, build_collective(collective, 16, 3), 3 << 20)
            for schedule in classical_schedules(problem, name, batch=True):
                assert verify(schedule, problem.logical) == []


def test_a_piece_crosses_while_the_next_is_summed() -> None:
    # With all pieces in one message, and with a sum for each of seven threadblocks in turn, it
    # takes longer: 41.4 us in place of 34.5.
    topology = load_machine("dgx-h100", MachineOptions(nodes=2))
    model = replace(model_of("portable"), measured=True)
    collective = build_collective("reducescatter", 16, 4)
    problem = whole_problem(charged_network(topology, "LL128"), collective, 4_194_304)
    (schedule, *_) = classical_schedules(problem, "flooding", batch=True)
    times: dict[str, int] = defaultdict(int)
    for sums in ("apart", "together"):
        options = LowerOptions(
            "x", "LL128", instances=4, sums=sums, order="free", max_bytes=1 << 30
        )
        (trace,) = traces(lower(schedule, options), topology, (4_194_304,), model)
        times[sums] = trace.time or 0
    assert 0 < times["together"] < 36_000_000 < 42_000_000 < times["apart"]
