"""What is written: one file or a pair, and all of it or nothing."""

from pathlib import Path

import pytest

from taccl.apps import Request, Synthesis, Target, load_network, synthesize
from taccl.apps.inputs import whole_size
from taccl.apps.outputs import convert, report, write_outputs
from taccl.errors import InputError
from taccl.files import check_outputs
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import read_xml


def ring(collective: str, target: Target | None) -> Synthesis:
    return synthesize(
        Request(
            load_network("ring:4"), collective, 1 << 20, chunks=1, engine="ring", target=target,
            deterministic=True, workers=1, time_limit=1.0,
        )
    )  # fmt: skip


def test_a_portable_reducescatter_is_a_pair_of_files(tmp_path: Path) -> None:
    output = tmp_path / "out.xml"
    written = write_outputs(ring("reducescatter", Target()), output, None)
    assert [path.name for path in written] == ["out.xml", "out.msccl.xml"]
    assert 'coll="reducescatter"' in written[0].read_text()
    assert 'coll="reduce_scatter"' in written[1].read_text()
    assert judge_text(written[0].read_bytes(), "executor").findings == ()
    assert judge_text(written[1].read_bytes(), "msccl").findings == ()


@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl"])
def test_a_reducescatter_for_one_runtime_is_one_file(tmp_path: Path, runtime: str) -> None:
    target = Target(runtime=runtime)
    written = write_outputs(ring("reducescatter", target), tmp_path / "out.xml", None)
    assert len(written) == 1
    assert judge_text(written[0].read_bytes(), runtime).findings == ()


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_other_portable_programs_are_one_file(tmp_path: Path, collective: str) -> None:
    written = write_outputs(ring(collective, Target()), tmp_path / "out.xml", None)
    assert [path.name for path in written] == ["out.xml"]


def test_without_a_runtime_there_is_no_xml_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--runtime none stops at the schedule"):
        write_outputs(ring("allgather", None), tmp_path / "out.xml", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_file_converts_to_the_program_of_its_schedule(tmp_path: Path) -> None:
    result = ring("allgather", Target())
    write_outputs(result, tmp_path / "one.xml", tmp_path / "one.json")
    convert(tmp_path / "one.json", Target(), 1 << 20, tmp_path / "two.xml")
    one, two = (read_xml((tmp_path / f"{name}.xml").read_text()) for name in ("one", "two"))
    assert one.gpus == two.gpus


def test_a_size_too_small_to_convert_is_an_error_with_the_least(tmp_path: Path) -> None:
    write_outputs(ring("allgather", Target()), None, tmp_path / "one.json")
    with pytest.raises(InputError, match="3 bytes are less than one element") as caught:
        convert(tmp_path / "one.json", Target(), 3, None)
    assert "at least 16 bytes" in (caught.value.fix or "")


def test_a_place_that_can_not_be_written_is_an_error_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        check_outputs([("-o", None), ("--schedule", tmp_path / "nowhere" / "out.xml")])


def test_without_a_program_its_fields_are_null() -> None:
    fields = report(ring("allgather", None), [])
    assert fields["replay_us"] is None
    assert fields["threadblocks"] is None
    assert fields["steps"] is None


def test_the_whole_size_divides_by_the_chunks_of_all_files(tmp_path: Path) -> None:
    output = tmp_path / "out.xml"
    write_outputs(ring("allgather", Target()), output, None)
    assert whole_size([str(output)], 1000) == 992
    assert whole_size([str(output)], 5) == 16
