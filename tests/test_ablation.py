"""The mechanisms that the ablation switches off."""

import importlib

from benchmarks.ablation import MECHANISMS, MORE
from benchmarks.frozen import CELLS


def test_every_name_that_is_switched_off_exists() -> None:
    for mechanism in MECHANISMS:
        for path in mechanism.off:
            module, _, name = path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), f"{mechanism.what}: {path}"


def test_every_mechanism_has_cells_and_a_name_of_its_own() -> None:
    assert len({mechanism.what for mechanism in MECHANISMS}) == len(MECHANISMS)
    for mechanism in MECHANISMS:
        for text in mechanism.cells:
            assert any(text in cell for cell in (*CELLS, *MORE)), f"{mechanism.what}: {text}"
