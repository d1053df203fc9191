"""What inspect says of a program, counted by hand."""

import json
from pathlib import Path

import pytest

from taccl.msccl.program import Buffer, Gpu, Op, Program, Slot, Step, Threadblock
from taccl.msccl.runtimes import UNLIMITED
from taccl.msccl.xml import write_xml
from taccl.report.inspect import MAX_PAIRS, Pair, as_record, as_text, inspect_program
from tests.cli.runner import taccl
from tests.msccl.builders import make, ring_schedule

IN, OUT = Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0)


def program() -> Program:
    """Rank 0 sends 2 + 1 chunks to rank 1 on two channels, and copies one of its own."""
    sends = [Threadblock(n, 1, None, n, (Step(Op.SEND, IN, count=2 - n),)) for n in range(2)]
    receives = [Threadblock(n, None, 0, n, (Step(Op.RECV, None, OUT, 2 - n),)) for n in range(2)]
    local = Threadblock(2, None, None, 0, (Step(Op.COPY, IN, OUT),))
    gpus = (Gpu(0, 4, 4, 0, (*sends, local)), Gpu(1, 4, 4, 3, tuple(receives)))
    return Program("two", "allreduce", "LL", True, False, 2, 4, 8, UNLIMITED, gpus)


def test_pairs_have_the_chunks_of_their_sending_steps() -> None:
    assert inspect_program(program()).pairs == (Pair(0, 1, (0, 1), 2, 3),)


def test_a_rank_counts_what_it_sends_receives_and_moves_itself() -> None:
    first, second = inspect_program(program()).ranks
    assert (first.threadblocks, first.steps, first.channels) == (3, 3, (0, 1))
    assert (first.connections_out, first.connections_in, first.peers_out) == (2, 0, 1)
    assert (first.chunks_out, first.chunks_in, first.chunks_local) == (3, 0, 1)
    assert (second.chunks_out, second.chunks_in, second.scratch_chunks) == (0, 3, 3)


@pytest.mark.parametrize(("size", "whole", "sent"), [(100, 100, 75), (103, 100, 75), (1, 4, 3)])
def test_bytes_are_those_of_whole_chunks(size: int, whole: int, sent: int) -> None:
    record = as_record(inspect_program(program(), size))
    assert record["size_bytes"] == whole
    assert record["pairs"] == [
        {"src": 0, "dst": 1, "channels": [0, 1], "steps": 2, "chunks": 3, "bytes": sent}
    ]


def test_the_text_tells_the_head_and_both_tables() -> None:
    assert as_text(inspect_program(program())).splitlines() == [
        "two: allreduce of 2 ranks, LL",
        "  serves        in place, 8 bytes and more",
        "  chunks        4, each 1/4 of the size",
        "  channels      2",
        "  threadblocks  up to 3 a rank, with up to 1 steps",
        "  steps         2 s, 2 r, 1 cpy",
        "",
        "  rank  threadblocks  steps  channels  sends to  receives from  ends out+in  chunks out"
        "  chunks in  chunks local  scratch",
        "     0             3      3         2         1              0          2+0           3"
        "          0             1        0",
        "     1             2      2         2         0              1          0+2           0"
        "          3             0        3",
        "",
        "  pair  channels  sends  chunks",
        "  0->1         2      2       3",
    ]


def test_only_the_pairs_with_most_are_listed() -> None:
    blocks = [
        Gpu(rank, 4, 4, 0, tuple(
            Threadblock(number, peer, None, 0)
            for number, peer in enumerate(peer for peer in range(9) if peer != rank)
        ))
        for rank in range(9)
    ]  # fmt: skip
    wide = Program("w", "alltoall", "LL", False, True, 1, 9, 0, 9, tuple(blocks))
    lines = as_text(inspect_program(wide)).splitlines()
    assert sum("->" in line for line in lines) == MAX_PAIRS
    assert lines[-1] == "and 8 pairs with no more (--json lists all)"


def test_the_command_prints_both_forms(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(write_xml(make(ring_schedule("allgather", 3))))
    done = taccl(capsys, monkeypatch, "inspect", str(path), "--size", "3KB")
    assert (done.status, done.err) == (0, "")
    assert "each 1/3 of the size: 1000 of 3000 bytes" in done.out
    record = json.loads(taccl(capsys, monkeypatch, "inspect", str(path), "--json").out)
    # Each of three ranks passes its own chunk and the one it got on to the next.
    assert [(pair["src"], pair["dst"], pair["chunks"]) for pair in record["pairs"]] == [
        (0, 1, 2), (1, 2, 2), (2, 0, 2),
    ]  # fmt: skip
    assert record["pairs"][0]["bytes"] is None


def test_a_file_that_is_no_program_is_one_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "no.xml"
    path.write_text("<html/>")
    done = taccl(capsys, monkeypatch, "inspect", str(path))
    assert (done.status, done.out) == (2, "")
    assert "no.xml:1: the file starts with <html>" in done.err
