"""The rows of ``benchmarks.seeds``: verdicts follow from numbers, and inputs have sources."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.seeds import cells, missed, page
from benchmarks.seeds_layers import macs_of, params_of, resnet50, times_of, vgg16
from benchmarks.seeds_rows import ROWS, Input, Row

CHEAP = ("CoCoNet", "Overlap-Local-SGD", "DLion", "Cloud Collectives", "Pufferfish")
"""Rows that take a second at most."""

GIVEN = Row(
    "X", (2.0, 2.0), "a paper", "a / b", 1.5, 1.6, "a stack", (Input("n", "checked", "it"),)
)


@cache
def row(name: str) -> Row:
    """Return a row, computed once."""
    return ROWS[name][0]()


def test_models_have_the_parameters_that_are_known() -> None:
    assert params_of(vgg16()) == 138_357_544  # torchvision's
    assert params_of(resnet50()) == 25_557_032
    assert params_of(resnet50(2)) == 68_883_240
    # Of Pufferfish's own code, each convolution and batch normalization counted.
    assert params_of(resnet50(1, 4)) == 15_202_344
    assert macs_of(vgg16()) == 15_470_264_320


def test_times_of_layers_are_those_of_the_step() -> None:
    step = 415_584_415_585
    times = times_of(vgg16(), step)
    assert sum(map(sum, times)) == step
    assert all(abs(backward - 2 * forward) <= 2 for forward, backward in times)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "explained"),
        ({"model": 1.7}, "reproduced"),  # 2 less 15 %
        ({"model": 1.69}, "explained"),
        ({"model": 2.31, "ceiling": 2.4}, "not modelled"),
        ({"paper": (1.7, 4.0)}, "reproduced"),
        ({"ceiling": 2.0}, "not modelled"),  # Bytes would allow what was not found.
        ({"ceiling": None}, "not modelled"),
        ({"missing": ""}, "not modelled"),
        ({"model": None}, "not modelled"),
        ({"inputs": (Input("n", "own", "a guess"),), "model": 2.0}, "not modelled"),
    ],
)
def test_the_verdict_follows_from_the_numbers(changes: dict[str, object], verdict: str) -> None:
    assert replace(GIVEN, **changes).verdict == verdict  # type: ignore[arg-type]


def test_a_row_that_is_not_reproduced_any_more_is_told() -> None:
    lost = replace(GIVEN, seed="CoCoNet")
    assert missed([lost]) == ["CoCoNet"]
    assert missed([replace(lost, model=2.0)]) == []
    assert missed([replace(lost, seed="PHub")]) == []


@pytest.mark.parametrize("name", CHEAP)
def test_a_row_has_the_verdict_that_it_has_to_have(name: str) -> None:
    found = row(name)
    assert found.seed == name
    assert found.verdict == ROWS[name][1]
    assert found.model is not None
    assert found.ceiling is None or found.model <= found.ceiling * (1 + 1e-9)


@pytest.mark.parametrize("name", CHEAP)
def test_no_row_is_without_a_source(name: str) -> None:
    found = row(name)
    assert "arXiv" in found.source or "HPDC" in found.source
    assert found.inputs
    assert all(one.what and one.source for one in found.inputs)
    assert "" not in cells(found)


def test_the_section_has_every_row_and_where_its_inputs_are_from() -> None:
    rows = [row(name) for name in CHEAP]
    text = page(rows)
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == len(rows) + 2
    assert {line.count("|") for line in table} == {8}
    assert all(one.source in text for found in rows for one in found.inputs)


def test_every_seed_has_its_place_among_related_work() -> None:
    text = (Path(__file__).parent.parent / "docs" / "related.md").read_text()
    assert [name for name in ROWS if f"**{name}**" not in text] == []
