"""Every malformed description of a machine is one error with its line, and nothing is written."""

import re
import string
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taccl.errors import InputError, TacclWarning
from taccl.imports import IMPORTS, ImportOptions, TacclOptions, import_files
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.imports.host_files import ALL, text_of
from tests.imports.malformed import BASES as HOSTS
from tests.imports.malformed import Case, spoilt
from tests.imports.malformed_json import BASES_JSON
from tests.sweep import for_each

BASES = HOSTS | BASES_JSON
GIVEN = {"taccl": ("--chunk-size", "1MB", "--time-unit", "1us")}
TACCL = TacclOptions(None, Fraction(10**6), "1us")
CASES = [(kind, case) for kind, (_, cases) in BASES.items() for case in cases]


def test_every_format_is_spoilt() -> None:
    assert BASES.keys() == IMPORTS.keys()


@pytest.mark.parametrize("kind", BASES)
def test_there_are_fifty_cases_and_they_spoil_something_good(kind: str, tmp_path: Path) -> None:
    base, cases = BASES[kind]
    assert len({spoilt(base, case) for case in cases}) >= 50
    path = tmp_path / "good"
    path.write_text(base)
    assert import_files([str(path)], None, ImportOptions(taccl=TACCL)).document


@pytest.mark.filterwarnings("ignore::taccl.errors.TacclWarning")
@for_each(("kind", "case"), CASES)
def test_a_malformed_file_is_one_error_with_its_line(tmp_path: Path, kind: str, case: Case) -> None:
    path = tmp_path / "host"
    path.write_bytes(spoilt(BASES[kind][0], case))
    with pytest.raises(InputError, match=re.escape(case[2])) as caught:
        import_files([str(path)], kind, ImportOptions(taccl=TACCL))
    assert caught.value.where().partition(": ")[0] == f"{path}:{case[3]}"
    assert caught.value.fix


@pytest.mark.filterwarnings("ignore::taccl.errors.TacclWarning")
@for_each("named", [True, False], quick=20)
@for_each(("kind", "case"), CASES[::12])
def test_the_command_says_so_and_writes_nothing(
    run: Run, tmp_path: Path, kind: str, case: Case, named: bool
) -> None:
    path, output = tmp_path / "host", tmp_path / "out.yaml"
    path.write_bytes(spoilt(BASES[kind][0], case))
    told = ("--from", kind) if named else ()
    done = run("topology", "import", path, *told, *GIVEN.get(kind, ()), "-o", output)
    assert done.status == 2, done.err
    assert done.err.count("error: ") == 1
    assert re.match(rf"error: {re.escape(str(path))}:\d+: ", done.err), done.err
    assert "\n  fix: " in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == [path]


@for_each(("kind", "name"), ALL)
def test_line_ends_of_other_systems_are_no_error(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / f"{name}.txt"
    path.write_bytes(text_of(kind, name).replace("\n", "\r\n").encode())
    found = import_files([str(path)], None, ImportOptions()).document
    path.write_bytes(b"\xef\xbb\xbf" + text_of(kind, name).encode())
    assert found == import_files([str(path)], None, ImportOptions()).document


def error_places(path: Path, kind: str) -> Iterator[tuple[str | None, bool]]:
    """Yield the file of the error that an import ends with, and whether it has a line."""
    try:
        import_files([str(path)], kind, ImportOptions())
    except InputError as error:
        yield error.file, error.line is not None


PIECES = st.one_of(
    st.sampled_from([
        "", "X", "NV2", "NV12", "PIX", "SYS", "GPU0", "GPU1", "NIC0", "0", "1", "XGMI", "PCIE",
        "-1", "<", ">", '"', "/>", "<pci>", "</cpu>", "count", "99999999999", "======", "\x1b[4m",
    ]),
    st.text(string.printable, max_size=6),
)  # fmt: skip


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_no_change_of_lines_or_words_gives_anything_but_a_topology_or_an_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    kind, name = data.draw(st.sampled_from(ALL))
    lines = text_of(kind, name).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        words = re.split(r"(\s+|[<>\"=])", lines[at])
        word = data.draw(st.integers(0, len(words) - 1))
        other = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["word", "drop", "double", "swap", "cut"]))
        if change == "word":
            words[word] = data.draw(PIECES)
            lines[at] = "".join(words)
        elif change == "drop":
            lines[at] = ""
        elif change == "double":
            lines.insert(other, lines[at])
        elif change == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines = [*lines[:at], "".join(words[:word])]
    path = tmp_path / "host"
    path.write_text("\n".join(lines), newline="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        places = list(error_places(path, kind))
    assert places in ([], [(str(path), True)])
