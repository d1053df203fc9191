"""The pages for people are true: generated ones are up to date, commands run, links lead on."""

import importlib
import json
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from defusedxml.ElementTree import fromstring

from benchmarks.opening import BEGIN, refreshed
from taccl.apps.measured import read_table
from taccl.cli.sketch import file_models
from taccl.collectives import COLLECTIVES
from taccl.collectives.file import read_collective
from taccl.collectives.groups import read_groups
from taccl.errors import NoScheduleError, TacclError
from taccl.files import read_document
from taccl.imports import IMPORTS
from taccl.model.problem import Options, Problem
from taccl.msccl import limits
from taccl.msccl.program import Op
from taccl.msccl.runtimes import RUNTIMES
from taccl.replay.scenario import read_scenario
from taccl.sketch import apply_sketch, load_sketch, shipped_sketches
from taccl.synth.search import engine_names
from taccl.synth.staged import staged
from taccl.topology.file import load_topology, shipped_topologies
from taccl.topology.graph import whole
from taccl.topology.lint import RULES as LINT_RULES
from taccl.topology.symmetry import free_group
from taccl.training.workload import read_workload
from taccl.verify import RULES, verify
from tests.cli.runner import Done, taccl
from tests.docs.commands_page import commands, commands_page
from tests.docs.formats_page import formats_page, records
from tests.docs.markdown import ROOT, anchors_in, blocks, commands_in, file_in, links_in
from tests.docs.meanings import (
    EXIT_STATUSES,
    EXPLANATION_FIELDS,
    FORMATS,
    JSON_FIELDS,
    MEANINGS,
    XML_ATTRIBUTES,
    XML_OPS,
)
from tests.docs.report_picture import report_picture
from tests.generators import pair, ring4, star5, twin2x2
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of
from tests.test_layers import LEVEL

GENERATED: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "formats.md": formats_page,
    "report.svg": report_picture,
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
WITH_COMMANDS = [page for page in PAGES if any(list(commands_in(b)) for b in blocks(page))]
ROWS = {
    "taccl evaluate": "rows", "taccl verify": "files", "taccl topology list": "topologies",
    "taccl measured": "tables", "taccl run": "rows",
}  # fmt: skip
"""Commands whose fields are those of the entries of a list."""

Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run commands one after the other in one empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: taccl(capsys, monkeypatch, *words)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def example(name: str) -> dict[str, Any]:
    """Return what a Python block of docs/adding.md defines."""
    found = [b for b in blocks(ROOT / "docs" / "adding.md") if file_in(b) == name]
    namespace: dict[str, Any] = {}
    exec(compile(found[0].text, name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    path, text = ROOT / "docs" / name, GENERATED[name]()
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text, (
        "run pytest tests/test_docs.py -k generated_page --update-golden"
    )


NO_ANSWER = 4
"""The status of a search that had too little time."""


def hurried(words: list[str], seconds: int = 1) -> list[str]:
    """Return a command with a time limit of at most so many seconds, or five with a sketch."""
    most = max(seconds, 5) if "--sketch" in words else seconds
    at = words.index("--time-limit") + 1 if "--time-limit" in words else len(words)
    return [
        *words[:at],
        *(str(min(most, int(word))) for word in words[at : at + 1]),
        *words[at + 1 :],
    ]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_every_command_of_a_page_runs(page: Path, run: Run, tmp_path: Path) -> None:
    for block in blocks(page):
        file = file_in(block)
        if file is not None:
            (tmp_path / file).write_text(block.text)
        for words in commands_in(block):
            done = run(*hurried(words))
            if done.status == NO_ANSWER:  # which on a slow machine says nothing
                done = run(*hurried([*words, "--time-limit", "20"], 20))
            assert done.status == 0, f"taccl {' '.join(words)}\n{done.err}"


@for_each("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for link in links_in(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        # The benchmarks write this page; it need not be there yet.
        assert path.exists() or path == ROOT / "docs" / "performance.md", link
        assert not anchor or anchor in anchors_in(path), link


@for_each("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
        path = ROOT / file
        assert path.exists(), file
        assert not test or f"\ndef {test}(" in path.read_text(), f"{file}::{test}"


@for_each("page", PAGES, ids=name_of)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    """By its path, or the end of it where the page says the rest."""
    everywhere = [str(path.relative_to(ROOT)) for path in ROOT.glob("taccl/**/*.py")]
    everywhere += [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/*.py")]
    text = re.sub(r"(?s)```.*?```", "", page.read_text())
    for file in re.findall(r"`([\w/]+\.py|(?:topologies|sketches)/)`", text):
        assert (ROOT / file).exists() or any(path.endswith(f"/{file}") for path in everywhere), file


def test_the_stops_of_a_chunk_are_functions_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert len(re.findall(r"(?m)^\d+\. ", text)) == 15
    names = re.findall(r"`(taccl(?:\.\w+)+)`", text)
    assert len(names) >= 15
    for name in names:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function)), name


def test_the_picture_of_rooms_is_that_of_the_layers() -> None:
    picture = (ROOT / "docs/architecture.md").read_text().split("```")[1].splitlines()[1:]
    rows = [line[:24].split() for line in picture if line]
    shown = sorted(room for row in rows for room in row)
    assert shown == sorted({*LEVEL} - {"__init__", "__main__"})
    levels = [LEVEL[room] for row in reversed(rows) for room in row]
    assert levels == sorted(levels)


def test_every_feature_names_a_test() -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert [row for row in rows if "tests/" not in row.split("|")[-2]] == []


@pytest.mark.parametrize(
    "names",
    [
        tuple(COLLECTIVES),
        engine_names(),
        tuple(RUNTIMES),
        tuple(IMPORTS),
        shipped_topologies(),
        shipped_sketches(),
    ],
    ids=["collectives", "engines", "runtimes", "imports", "topologies", "sketches"],
)
def test_the_features_name_everything_there_is(names: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 9000
    section = text.split("## What works")[1].split("\n## ")[0]
    assert 2 < sum(line.startswith("|") for line in section.splitlines()) - 2 <= 30
    assert "tests/" not in text


def test_the_readme_says_what_the_model_leaves_out_and_what_ring_is() -> None:
    text = (ROOT / "README.md").read_text().lower()
    section = text.split("## what the model leaves out")[1].split("\n## ")[0]
    for word in ("rate of a threadblock", "latency of ll", "launch of the kernel", "one* ring"):
        assert word in section


def test_the_home_page_is_enough_to_begin() -> None:
    page = ROOT / "docs" / "index.md"
    text = page.read_text()
    assert "pip install" in text.split("## Installation")[1].split("\n## ")[0]
    assert len(text.partition("\n![")[0].split()) > 50, "what it is for, before the first picture"
    assert {"pipeline.svg", "report.svg"} <= set(links_in(page))
    # What lies beside docs/ is not on the site.
    assert not re.search(r"README|CHANGELOG", text)


def test_the_tutorial_shows_what_its_commands_print() -> None:
    page = ROOT / "docs" / "tutorial.md"
    languages = [block.language for block in blocks(page) if block.language != "sh"]
    assert languages.count("bash") > 5
    assert all(
        "text" in (before, after)
        for before, after in pairwise(languages)
        if "bash" in (before, after)
    )
    assert {"alpha-beta.svg", "program.svg", "report.svg"} <= set(links_in(page))


def test_pages_say_it_in_the_words_of_the_field() -> None:
    texts = {page.name: " ".join(page.read_text().split()) for page in PAGES}
    assert "stops early once within 0.5 % of the bound" in texts["engines.md"]
    assert re.search("one slow NIC.* symmetry", texts["concepts.md"])
    for old in (
        "it ends within 0.5 %", "any other ends the scan", "does not divide runs NCCL",
        "must receive or send, over these", "nothing to object to", "costs nothing that was found",
        "keeps every odd edge",
    ):  # fmt: skip
        assert [name for name, text in texts.items() if old in text] == []


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    words = set(re.findall(r"[\w-]+", text))
    assert {words_[0] for words_, _ in commands()} - words - {"schema"} == set()


def test_performance_opens_with_what_its_tables_say() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert text.startswith(BEGIN)
    assert refreshed(text) == text, "run python -m benchmarks.opening docs/performance.md"


def test_the_opening_counts_what_is_faster_and_lists_what_is_not() -> None:
    page = """<!-- opening -->
<!-- /opening -->
<!-- tune -->
| collective | bytes | us | best classical | ratio | least |
| --- | --- | --- | --- | --- | --- |
| allgather | 1024 | 4.00 | ring | 0.500 | 0.400 |
| allgather | 2048 | 6.00 | ring | 1.000 | 0.700 |
| allgather | 4096 | 8.00 | ring | 1.000 | > 0.8 by growth |
<!-- /tune -->
<!-- rerun -->
| machine | theirs us | ours / theirs | bound / ours | replay us |
|---|---|---|---|---|
| a | 4.00 | 0.500 | 0.800 | 5.00 |
| b | 4.00 | 1.000 | 1.000 | 4.00 |
| c | - | - | 0.100 | 9.00 |
<!-- /rerun -->
<!-- grid -->
| cells | number | worst |
|---|---|---|
| all | 3 | 75.0% |
| 1KB | 3 | 75.0% |

| machine | collective | size | profile | us | gap |
|---|---|---|---|---|---|
| a x 1 | reduce | 1KB | occupy | 1.00 | 0.5% |
| b x 1 | reduce | 1KB | occupy | 2.00 | 75.0% |
| c x 1 | reduce | 1KB | occupy | - | - |
<!-- /grid -->
"""
    told = refreshed(page)
    assert "faster than the best classical algorithm at 1 of these 3 sizes, up to 2.00" in told
    assert "slower at none" in told
    # The third has no published time, and counts for nothing.
    assert "faster than 1 of 2 published times" in told
    assert "its median gap is 12.5%. Its program takes longer than the published time at 1" in told
    worst, least = (
        "| b x 1 reduce 1KB occupy | 2.00 | 75.0% |",
        "| a x 1 reduce 1KB occupy | 1.00 |",
    )
    assert told.index("| all | 3 | 75.0% |") < told.index(worst) < told.index(least)
    assert "| allgather | 2048 | 6.00 | ring | 0.700 |" in told
    assert told.count("| 4096 |") == 1
    assert refreshed(told) == told


def test_the_page_on_verification_names_every_rule() -> None:
    text = (ROOT / "docs" / "verification.md").read_text()
    words = set(re.findall(r"\w+", text))
    assert {*RULES, *limits.RULES} - words == set()


def test_the_page_on_machines_has_every_machine_and_every_rule() -> None:
    text = (ROOT / "docs" / "machines.md").read_text()
    assert [name for name in shipped_topologies() if f"`{name}`" not in text] == []
    rules = [f"| `{name}` | {rule.severity} | {rule.about} |" for name, rule in LINT_RULES.items()]
    assert [line for line in text.splitlines() if line in rules] == rules


def test_every_field_of_every_format_has_a_meaning_and_no_other() -> None:
    fields = {
        (name, record, field)
        for name in file_models()
        for record, _, body in records(name)
        for field in body["properties"]
    }
    assert set(FORMATS) == set(file_models())
    assert set(MEANINGS) == fields


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("schedule", "library")])
def test_the_example_of_a_format_loads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(FORMATS[name].example)
    if name.startswith("topology"):
        assert load_topology(str(path)).num_ranks > 1
    elif name == "scenario":
        assert not read_scenario(str(path), load_topology("ring:4")).is_static
    elif name == "collective":
        assert read_collective(str(path)).num_chunks == 4
    elif name == "groups":
        assert len(read_groups(str(path)).instances) == 10
    elif name == "workload":
        assert read_workload(read_document(path)).record.ranks == 8
    elif name == "measurements":
        assert [len(run.programs) for run in read_table(str(path))[1]] == [6]
    elif name == "demand":
        assert read_collective(str(path)).num_chunks == 15
    else:
        network = load_topology("ndv2", nodes=2)
        assert apply_sketch(network, load_sketch(str(path))).chunks_per_rank == 1


def test_every_step_type_is_explained() -> None:
    assert set(XML_OPS) == {op.value for op in Op}


def test_every_attribute_of_the_xml_is_explained() -> None:
    text = formats_page().partition("```xml\n")[2].partition("```")[0]
    found = {element.tag: list(element.attrib) for element in fromstring(text).iter()}
    assert found == {tag: list(attributes) for tag, attributes in XML_ATTRIBUTES.items()}


def test_every_exit_status_is_explained() -> None:
    errors: set[type[TacclError]] = {
        TacclError, *TacclError.__subclasses__(), *NoScheduleError.__subclasses__(),
    }  # fmt: skip
    assert set(EXIT_STATUSES) == {0} | {error.exit_status for error in errors}


def test_every_command_with_json_has_its_fields_explained() -> None:
    with_json = {" ".join(words) for words, call in commands() if "as_json" in call.__annotations__}
    assert set(JSON_FIELDS) == with_json


def test_the_fields_of_json_are_those_explained(run: Run) -> None:
    ring = ("synthesize", "ring:2", "allgather", "--engine", "ring", "--chunks", "1", "--quiet")
    run(*ring, "-o", "f.xml")
    sizes = ("-b", "256K", "-e", "2M", "--format", "nccl-tests")
    Path("run.txt").write_text(run("evaluate", "f.xml", "--topology", "ring:2", *sizes).out)
    measured = ("--measured", "run.txt", "--collective", "allgather")
    library = ("tune", "ring:2", "allgather", "-e", "1K", "--candidates", "0", "-q", "-o", "lib")
    run(*library)
    Path("w.yaml").write_text(FORMATS["workload"].example)
    arguments = {
        "taccl synthesize": ring,
        "taccl evaluate": ("evaluate", "f.xml", "--topology", "ring:2"),
        "taccl verify": ("verify", "f.xml"),
        "taccl inspect": ("inspect", "f.xml"),
        "taccl bound": ("bound", "ring:2", "allgather"),
        "taccl compare": ("compare", "ring:2", "allgather", "-e", "1K"),
        "taccl calibrate": ("calibrate", "ring:2", *measured),
        "taccl measured": ("measured", "mscclpp-h100"),
        "taccl step": ("step", "w.yaml", "torus2d:2x4", "--via", "bound"),
        "taccl run": ("run", "f.xml", "--size", "4K", "-n", "1", "--repeats", "1"),
        "taccl place": ("place", "--topology", "ring:4"),
        "taccl tune": library,
        "taccl explain": ("explain", "lib", "--collective", "allgather", "--size", "1K"),
        "taccl topology list": ("topology", "list"),
        "taccl topology show": ("topology", "show", "ring:2"),
        "taccl topology validate": ("topology", "validate", "ring:2"),
        "taccl topology diff": ("topology", "diff", "ring:2", "full:2"),
    }
    for command, fields in JSON_FIELDS.items():
        found = json.loads(run(*arguments[command], "--json").out)
        record = found[ROWS[command]][0] if command in ROWS else found
        assert list(record) == list(fields), command


def test_the_fields_of_an_explanation_are_those_explained(run: Run) -> None:
    run("synthesize", "ring:2", "allgather", "--engine", "ring", "--quiet", "-o", "f.xml")
    done = run("evaluate", "f.xml", "--topology", "ring:2", "--explain", "--json")
    (record,) = json.loads(done.out)["explanations"]
    assert list(record) == list(EXPLANATION_FIELDS)


@for_each("collective", COLLECTIVES)
@for_each("network", [pair, ring4, star5, twin2x2], ids=lambda make: make.__name__)
def test_the_engine_of_the_example_is_correct(network: Callable[[], Any], collective: str) -> None:
    problem = problem_of(network(), collective)
    result = example("shortest.py")["shortest"](problem, Options())
    assert verify(result.schedule, problem.logical) == []


@pytest.mark.parametrize(
    "collective", [name for name, kind in COLLECTIVES.items() if not kind.has_root]
)
def test_the_engine_of_the_example_works_on_orbits(collective: str) -> None:
    problem = problem_of(load_topology("ring:5"), collective, symmetric=True)
    result = example("shortest.py")["shortest"](problem, Options())
    assert len(problem.group) == 5
    assert verify(result.schedule, problem.logical) == []


def test_the_collective_of_the_example_is_solved() -> None:
    topology = load_topology("ring:5")
    group = free_group(topology, topology.rotations)
    collective = example("shift.py")["shift"](5, 2)
    schedule = staged(Problem(whole(topology), collective, Fraction(1000), group), QUICK).schedule
    assert schedule is not None
    assert verify(schedule) == []
    # Two chunks side by side to the next rank: 0.7 us and 20 ps for each of 2000 bytes.
    assert schedule.makespan == 740_000


def test_a_broken_page_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# A page\n\n[one](there.md#a) <img src="x.svg">\n\n```bash\n'
        "taccl verify a.xml \\\n  --json  # why\nmake demo\n```\n\n```yaml\n# t.yaml\na: 1\n```\n"
    )
    first, second = blocks(page)
    assert list(commands_in(first)) == [["verify", "a.xml", "--json"]]
    assert file_in(second) == "t.yaml"
    assert list(links_in(page)) == ["there.md#a", "x.svg"]
    assert anchors_in(page) == {"a-page"}
