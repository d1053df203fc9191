"""What a newcomer gets: a wheel that works wherever it is installed, and `make demo`."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from email.message import Message
from importlib.metadata import packages_distributions, version
from pathlib import Path
from zipfile import ZipFile

import pytest

import taccl
from taccl.sketch import shipped_sketches
from taccl.topology.file import shipped_topologies
from tests.cli.runner import taccl as run

ROOT = Path(__file__).parent.parent
SOURCES = (
    "pyproject.toml", "setup.py", "README.md", "LICENSE", "taccl", "topologies", "sketches",
    "measurements",
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILDS_WHEELS = 77
"""The first setuptools that knows licences by name, as the build needs."""

pytestmark = pytest.mark.xdist_group("package")


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(list(map(str, command)), check=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, so that nothing is left in the checkout."""
    if int(version("setuptools").split(".")[0]) < BUILDS_WHEELS:
        pytest.skip(f"setuptools {BUILDS_WHEELS} builds the wheel: make install brings it")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", built, source)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_an_installed_wheel_runs_anywhere(wheel: Path, tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip("install", "--no-deps", "--no-index", "--target", place, wheel)

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=elsewhere, check=True, capture_output=True,
            text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(place)},
        )  # fmt: skip
        return done.stdout

    # A checkout may be installed, too: what runs here is the wheel.
    assert Path(python("-c", "import taccl; print(taccl.__file__)")).is_relative_to(place)
    listed = python("-m", "taccl", "topology", "list")
    assert [name for name in shipped_topologies() if name not in listed] == []
    assert tuple(python("-m", "taccl", "sketch", "list").split()) == shipped_sketches()
    python(
        "-m", "taccl", "synthesize", "ndv2", "allgather", "--sketch", "ndv2-relay", "--engine",
        "ring", "--chunks", "1", "--quiet", "-o", "ring.xml", "--report", "ring.html",
    )  # fmt: skip
    assert (elsewhere / "ring.xml").read_text().startswith("<algo")
    assert "<script" in (elsewhere / "ring.html").read_text()


def test_the_wheel_says_its_licence_authors_and_version(metadata: Message) -> None:
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Author"] == "The taccl authors"
    assert metadata["Version"] == taccl.__version__
    assert metadata["License-File"] == "LICENSE"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n")


def test_the_wheel_has_a_name_of_its_own_and_types(wheel: Path, metadata: Message) -> None:
    # `taccl` is the distribution of microsoft/taccl.
    assert metadata["Name"] == "taccl-synth"
    assert PROJECT["project"]["scripts"] == {"taccl": "taccl.__main__:run"}
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "taccl/py.typed" in names
    # Nothing but the package: no `topologies` that any other distribution could have, too.
    assert {name.split("/")[0].split("-")[0] for name in names} == {"taccl", "taccl_synth"}


def test_what_is_installed_with_it_is_what_it_imports() -> None:
    imported = {
        (name.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for path in (ROOT / "taccl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
        for name in node.names
    }
    declared = {re.split(r"[<>=]", line)[0].lower() for line in PROJECT["project"]["dependencies"]}
    used = {
        name.lower()
        for module, names in packages_distributions().items()
        if module in imported
        for name in names
    }
    assert declared - used == set()


def test_the_demo_evaluates_what_its_file_serves_and_says_where_the_command_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0].splitlines()
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    told = []
    for line in recipe:
        program, *words = shlex.split(line.replace("$(OUT)", "out"))
        if program == "$(BIN)/taccl":
            quick = ["--engine", "ring"] if words[0] == "synthesize" else []
            told.append(run(capsys, monkeypatch, *words, *quick).out)
    assert len(told) == 4
    sizes = [line for line in told[-1].splitlines() if line.startswith("out/")]
    assert len(sizes) >= 4
    assert [line for line in sizes if "outside" in line] == []
    assert recipe[-1].lstrip().startswith('@echo "the command is $(BIN)/taccl')
