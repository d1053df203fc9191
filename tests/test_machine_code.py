"""Compiled loops: as the plain functions, kept on disk under a name that follows their source."""

import os
import types
from pathlib import Path

import numpy as np
import pytest

from taccl.timing.jit import cache_directory, jit, report_compilation, stamp_of

SOURCE = """
def square(x):
    return x * x

def total(numbers):
    found = 0
    for number in numbers:
        found += square(number)
    return found
"""


def loops(folder: Path, source: str = SOURCE) -> types.ModuleType:
    """Return a module of its own with two plain functions."""
    path = folder / "loops.py"
    path.write_text(source)
    module = types.ModuleType(f"loops_{abs(hash((folder, source)))}")
    module.__file__ = str(path)
    code = compile(source, str(path), "exec")
    exec(code, vars(module))
    return module


def test_a_compiled_loop_answers_as_the_plain_one_and_says_once_that_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    module = loops(tmp_path)
    made = jit(module.total, [module], "loops")
    numbers = np.arange(5)
    said: list[str] = []
    with report_compilation(said.append, "compiling"):
        assert made(numbers) == module.total(numbers.tolist()) == 30
    with report_compilation(said.append, "compiling"):
        assert made(numbers) == 30
    assert said == ["compiling"]


def test_the_cache_of_other_source_is_another_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = loops(tmp_path / "a")
    other = loops(tmp_path / "b", SOURCE.replace("x * x", "x + x"))
    places = [cache_directory("loops", [module], str(tmp_path)) for module in (one, other)]
    assert places[0] != places[1]
    assert {place.parent for place in places} == {tmp_path}


def test_the_same_source_elsewhere_or_written_anew_is_compiled_ahead_again(tmp_path: Path) -> None:
    # numba compiles both anew: what it finds in its cache depends on path and time of writing.
    stamps = set()
    for name, times in (("here", (1, 1)), ("there", (1, 1)), ("here", (2, 2)), ("here", (1, 1))):
        path = tmp_path / name / "part.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("def f():\n    return 1\n")
        os.utime(path, times)
        module = types.ModuleType("part")
        module.__file__ = str(path)
        stamps.add(stamp_of([module], str(tmp_path)))
    assert len(stamps) == 3


def test_without_a_place_for_the_cache_it_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    module = loops(tmp_path)
    assert jit(module.total, [module], "loops")(np.arange(3)) == 5


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = loops(tmp_path)
    assert cache_directory("loops", [module], "").parent == tmp_path / "taccl"
    assert cache_directory("loops", [module], str(tmp_path / "own")).parent == tmp_path / "own"
