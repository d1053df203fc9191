"""``--bitwise-consistent``: what is written adds up in one order on all ranks."""

from pathlib import Path

from tests.cli.conftest import Run

RING = ("synthesize", "ring:3", "allreduce", "--engine", "ring", "--size", "48KB", "-q")


def test_a_consistent_program_is_written_and_verified(run: Run, tmp_path: Path) -> None:
    output = str(tmp_path / "out.xml")
    assert run(*RING, "--bitwise-consistent", "-o", output).status == 0
    assert run("verify", output, "--bitwise-consistent").status == 0


def test_the_option_changes_nothing_where_the_property_holds(run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.xml", tmp_path / "two.xml"
    assert run(*RING, "-o", str(one)).status == 0
    assert run(*RING, "--bitwise-consistent", "-o", str(two)).status == 0
    assert one.read_text() == two.read_text()
