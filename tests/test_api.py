"""``import taccl`` gives six functions, and nothing heavy is loaded until one is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import taccl
from taccl.errors import InputError


def test_an_algorithm_goes_from_the_topology_to_real_bytes(tmp_path: Path) -> None:
    topology = taccl.load_topology("ring:4")
    found = taccl.synthesize(topology, "allgather", "64KB", engine="ring", time_limit=10)
    assert taccl.verify_program(found) == []
    (row,) = taccl.evaluate_program(found, topology, ["64KB"])
    assert row.time == found.replay
    (path,) = taccl.write_program(found, tmp_path / "ring.xml")
    assert taccl.verify_program(path) == []
    (again,) = taccl.write_program(path, tmp_path / "again.xml")
    assert again.read_text() == path.read_text()
    for measured in taccl.run_program(path, [4096], topology=topology, calls=1, repeats=1):
        assert measured.wrong == 0
        assert measured.predicted


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(InputError, match="over: should be one of shared memory, tcp, got 'pigeon'"):
        taccl.run_program("x.xml", over="pigeon")
    topology = taccl.load_topology("ring:3")
    with pytest.raises(InputError, match="nodes, sketch: are for the name of a topology"):
        taccl.synthesize(topology, "allgather", nodes=2)
    found = taccl.synthesize("ring:3", "allgather", engine="ring", runtime=None)
    with pytest.raises(InputError, match="no program was asked for"):
        taccl.verify_program(found)
    with pytest.raises(AttributeError, match="module 'taccl' has no attribute 'nothing'"):
        _ = taccl.nothing


def test_importing_it_loads_nothing_else() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, taccl; print('numpy' in sys.modules, dir(taccl))"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert told.startswith("False")
