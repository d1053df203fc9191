"""Import directions, and who may import which library."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.sweep import for_each

pytestmark = pytest.mark.xdist_group("layers")  # one process parses the modules

ROOT = Path(__file__).parent.parent / "taccl"
MODULES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    ["errors"],
    ["units", "machine_code", "deadline"],
    ["files"],
    ["links", "edges", "chunks"],
    ["topology", "collectives"],
    ["topology_grids"],
    ["topology_rates"],
    ["demand_file"],
    ["topology_graph", "collective_file"],
    ["topology_taccl", "topology_switched"],
    ["topology_shapes", "topology_original"],
    ["topology_fabrics"],
    ["topology_nodes"],
    ["topology_servers"],
    ["topology_file"],
    ["imports", "sketch"],
    ["symmetry_images"],
    ["symmetry", "slots"],
    ["symmetry_search"],
    ["topology_edit", "lint"],
    ["retiming_loop"],
    ["retiming"],
    ["schedule"],
    ["schedule_file", "scenario_file", "library_file", "verify", "suggest"],
    ["schemas", "scenario"],
    ["synth", "msccl"],
    ["bounds"],
    ["sim"],
    ["report", "placement"],
    ["pipeline"],
    ["tuning"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

ONLY_IN = {
    "pulp": {"synth/highs.py"},
    "highspy": {"synth/highs.py"},
    "ortools": {
        "synth/milp.py", "synth/contiguity.py", "synth/exact_model.py", "synth/exact_batches.py",
        "synth/exact_solve.py", "synth/rounds_question.py", "synth/rounds_gather.py",
        "synth/rounds_allreduce.py", "synth/packing.py", "synth/flow.py", "synth/improve.py",
        "placement", "bounds",
    },
    "igraph": {"symmetry_search.py"},
    "numba": {"machine_code.py"},
    "llvmlite": {"machine_code.py"},
    "typer": {"cli"},
    "pydantic": {
        "files", "topology_graph.py", "topology_shapes.py", "topology_fabrics.py",
        "topology_taccl.py", "topology_servers.py", "topology_nodes.py", "schedule_file.py",
        "collective_file.py", "demand_file.py", "scenario_file.py", "library_file.py", "sketch",
        "imports",
    },
}  # fmt: skip
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
def imports(path: Path) -> tuple[list[str], list[str]]:
    """Return the modules imported at run time (not those under TYPE_CHECKING): all, and on top."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
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
    names = {place(path), path.relative_to(ROOT).parts[0]}
    for name in imports(path)[0]:
        allowed = ONLY_IN.get(name.split(".")[0])
        assert allowed is None or names & allowed, f"{place(path)} imports {name}"


@for_each("path", MODULES, ids=place)
def test_solvers_are_imported_inside_functions(path: Path) -> None:
    if place(path) in {"synth/milp.py", "synth/highs.py"}:
        return
    top = {name.split(".")[0] for name in imports(path)[1]}
    assert not top & SOLVERS
