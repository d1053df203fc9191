"""Import directions, and who may import which library."""

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from benchmarks.house import chain
from benchmarks.house import imported as module_imports
from tests.sweep import for_each

pytestmark = pytest.mark.xdist_group("layers")  # one process parses the modules

ROOT = Path(__file__).parent.parent / "taccl"
MODULES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    ["errors"],
    ["units"],
    ["files"],
    ["collectives"],
    ["topology"],
    ["timing"],
    ["msccl"],
    ["training"],
    ["imports", "sketch", "mscclpp"],
    ["model"],
    ["prices", "lowering", "verify"],
    ["bounds", "synth"],
    ["replay"],
    ["placement"],
    ["run", "report"],
    ["torch"],
    ["apps"],
    ["tuning", "groups"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
"""Rooms, from the ground up: each imports only from those below it."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

ONLY_IN = {
    "pulp": {"synth/milp.py"},
    "highspy": {"synth/milp.py", "bounds/time_expanded.py"},
    "ortools": {
        "synth/templates/rings.py",
        "synth/milp.py", "synth/exact", "synth/steps_rounds.py", "synth/flow", "prices/packing.py",
        "placement", "bounds",
    },
    "google": {"imports/chakra.py"},
    "igraph": {"topology/symmetry.py"},
    "numba": {"timing/jit.py", "run/words.py"},
    "llvmlite": {"timing/jit.py", "run/words.py"},
    "mpi4py": {"run/hosts.py", "tuning"},
    "typer": {"cli"},
    "pydantic": {
        "apps/measured.py",
        "files", "topology", "collectives/file.py", "collectives/groups.py",
        "model/schedule_file.py", "replay/scenario.py",
        "training/workload.py",
        "tuning/directory.py", "sketch", "imports",
    },
}  # fmt: skip
"""By library, the rooms and modules that import it."""

SOLVERS = {"pulp", "highspy", "ortools", "numba", "llvmlite", "scipy", "igraph"}


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def top_module(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(nodes: Iterable[ast.AST]) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "taccl":
                found += [f"taccl.{alias.name}" for alias in node.names]
            else:
                found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """Return a module without what it imports for types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


@cache
def imports(path: Path) -> tuple[list[str], list[str]]:
    """Return the modules imported at run time (not those under TYPE_CHECKING): all, and on top."""
    tree = parsed(path)
    return imported(ast.walk(tree)), imported(tree.body)


@for_each("path", MODULES, ids=place)
def test_a_module_imports_only_lower_layers_and_its_own_package(path: Path) -> None:
    own = top_module(path)
    for name in imports(path)[0]:
        parts = name.split(".")
        if parts[0] == "taccl" and len(parts) > 1 and parts[1] != own:
            assert LEVEL[parts[1]] < LEVEL[own], f"{own} imports {name}"


@for_each("path", MODULES, ids=place)
def test_a_library_is_imported_only_where_the_table_says(path: Path) -> None:
    names = {place(path), *(str(folder) for folder in path.relative_to(ROOT).parents)}
    for name in imports(path)[0]:
        allowed = ONLY_IN.get(name.split(".")[0])
        assert allowed is None or names & allowed, f"{place(path)} imports {name}"


@for_each("path", MODULES, ids=place)
def test_solvers_are_imported_inside_functions(path: Path) -> None:
    if place(path) in ("synth/milp.py", "run/words.py"):
        return
    top = {name.split(".")[0] for name in imports(path)[1]}
    assert not top & SOLVERS


@cache
def neighbours() -> dict[str, frozenset[str]]:
    """Return which modules each module imports, anywhere in it."""
    named = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in MODULES
    }
    return {name: module_imports(parsed(path), named) for name, path in named.items()}


def test_no_import_leads_back_to_where_it_came_from() -> None:
    order = TopologicalSorter(neighbours())
    order.prepare()  # graphlib.CycleError names a cycle


def test_every_room_has_a_level_and_says_what_is_in_it() -> None:
    rooms = {top_module(path) for path in MODULES}
    assert rooms == set(LEVEL)
    for folder in {path.parent for path in MODULES}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_a_chain_of_imports_has_at_most_20_modules() -> None:
    assert len(chain(neighbours())) <= 20


def test_a_module_of_apps_is_at_most_three_modules_deep() -> None:
    # The API is made of what the commands are made of.
    inside = {name for name in neighbours() if name.startswith("taccl.apps.")} - {"taccl.apps.api"}
    assert len(chain({name: neighbours()[name] & inside for name in inside})) <= 3


def test_nothing_lies_loose_but_what_all_rooms_stand_on() -> None:
    loose = {path.name for path in ROOT.glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "errors.py", "units.py"}
