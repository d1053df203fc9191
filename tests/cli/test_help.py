"""Help, version and what the parser of the command line refuses: one form, with a fix."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

import taccl
from taccl.cli import app
from taccl.cli.help import EXAMPLES, GROUPS
from tests.cli.conftest import Run

if TYPE_CHECKING:
    from typer._click.core import Command

LONG = 10
"""Options from which on headings are wanted."""


def commands(group: "Command | None" = None, path: str = "") -> Iterator[tuple[str, "Command"]]:
    """Yield every command with its name, such as ``topology show``."""
    for name, command in getattr(group or get_command(app), "commands", {}).items():
        below = list(commands(command, f"{path}{name} ")) if hasattr(command, "commands") else []
        yield from below or [(f"{path}{name}", command)]


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").out == f"taccl {taccl.__version__}\n"


def test_every_command_has_examples_that_its_own_parser_takes() -> None:
    found = dict(commands())
    assert set(EXAMPLES) == set(found)
    for name, lines in EXAMPLES.items():
        for line in lines:
            _, separator, piped = f"; {line.replace('|', ';')}".rpartition(f"; taccl {name}")
            assert separator, line
            words = shlex.split(piped.partition(";")[0])
            found[name].make_context(name, words)


@pytest.mark.parametrize("name", ["topology degrade", "topology diff", "sketch validate", "bound"])
def test_an_example_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("example"))
    for line in (*EXAMPLES["topology degrade"], *EXAMPLES[name]):
        done = run(*shlex.split(line)[1:])
        assert done.status == int(name == "topology diff" and " diff " in line), done.err


def test_help_has_headings_and_examples(run: Run) -> None:
    for name, command in commands():
        text = run(*name.split(), "--help").out
        assert "\nExamples:\n  " in text, name
        assert text.index("Examples:") > text.rindex("--help"), name
        headings = [
            found for found in re.findall(r"^(\w+):$", text, re.MULTILINE) if found in GROUPS
        ]
        assert headings == [group for group in GROUPS if group in headings]
        assert len(headings) > 1 or len(command.params) < LONG, name
    text = run("synthesize", "--help").out
    order = ("Machine:", "--nodes", "Collective:", "--size", "Search:", "--engine", "Program:",
             "--runtime", "Output:", "-o, --output")  # fmt: skip
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_help_imports_no_rich_numpy_or_solver() -> None:
    code = (
        "import sys; sys.argv = ['taccl', 'synthesize', '--help']\n"
        "from taccl.cli import run\n"
        "try: run()\nexcept SystemExit: pass\n"
        "print(sorted({'rich', 'numpy', 'numba', 'scipy', 'ortools'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "TOPOLOGY: is missing\n  fix: give "),
        (("ndv2", "allgather", "--sede", "1"), "--sede: there is no such option\n  fix: did you"),
        (("ndv2", "allgather", "--seed", "x"), "--seed: should be a valid integer"),
        (("ndv2", "allgather", "--seed", "-1"), "--seed: should be greater than or equal to 0"),
        (("ndv2", "allgather", "--seed"), "--seed: wants a value\n  fix: write it after --seed"),
        (("ndv2", "allgather", "--quiet=1"), "--quiet: takes no value\n  fix: write --quiet"),
        (("ndv2", "allgather", "more"), "got unexpected extra argument"),
    ],
)  # fmt: skip
def test_what_the_parser_refuses_is_told_as_all_errors_are(
    run: Run, words: tuple[str, ...], told: str
) -> None:
    done = run("synthesize", *words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {told}")
    assert re.fullmatch(r"error: .+\n  fix: .+\n", done.err)


def test_a_group_without_a_command_is_its_help(run: Run) -> None:
    for words in ((), ("topology",), ("sketch",)):
        done = run(*words)
        assert (done.status, done.err.startswith("Usage: ")) == (2, True)
        assert "error" not in done.err
    assert run("topology", "shaw").err.startswith(
        "error: no such command 'shaw'\n  fix: did you mean show?"
    )


@pytest.mark.parametrize(
    ("words", "close"),
    [
        (("synthesize", "ring:4", "allgater"), "allgather"),
        (("synthesize", "ring:4", "allgather", "--engine", "rign"), "ring"),
        (("synthesize", "ring:4", "allgather", "--runtime", "rcl"), "rccl"),
        (("synthesize", "dgx-a10", "allgather"), "dgx-a100"),
        (("synthesize", "ndv2", "allgather", "--nodes", "2", "--fabric", "swich"), "switch"),
        (("synthesize", "ndv2", "allgather", "--sketch", "ndv2-rely"), "ndv2-relay"),
        (("place", "--topology", "ring:4", "--algorithm", "halving-dubling"), "halving-doubling"),
        (("schema", "topologi"), "topology"),
    ],
)  # fmt: skip
def test_a_misspelt_name_gets_the_one_that_was_meant(
    run: Run, words: tuple[str, ...], close: str
) -> None:
    done = run(*words)
    assert done.status == 2
    assert f"  fix: did you mean {close}? " in done.err
