"""How easily the package is read, counted: ``python -m benchmarks.house``, beside its aims.

Calls are found by name within a module, so that a count needs no import of what it counts.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent / "taccl"

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}

FEW = 4
"""Statements of a helper that its one caller can hold."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """What is counted of one module.

    Parameters
    ----------
    name
        With its packages: ``taccl.bounds.cut``.
    lines
        All of them.
    public, private
        How many functions of the module's top level have each kind of name.
    inlinable
        Names of the private ones with one caller and at most ``FEW`` statements.
    named, unnamed
        Names of the public functions with two or more parameters whose docstring names them all,
        and of the others.
    clock
        Whether it asks a clock.
    imports
        Names of the modules of the package that it imports at run time, anywhere in it.
    """

    name: str
    lines: int
    public: int
    private: int
    inlinable: tuple[str, ...]
    named: tuple[str, ...]
    unnamed: tuple[str, ...]
    clock: bool
    imports: frozenset[str]


@dataclass(frozen=True)
class Aim:
    """One count beside its aim.

    Parameters
    ----------
    title
        What is counted.
    found, aim
        The count, and how much it should be.
    at_least
        Whether the aim is the least that is wanted, not the most.
    worst
        Modules that are furthest from it, each with its own count.
    """

    title: str
    found: float
    aim: float
    at_least: bool = False
    worst: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether the count is on the right side of the aim."""
        return self.found >= self.aim if self.at_least else self.found <= self.aim


def measured(root: Path) -> list[Module]:
    """Return the counts of every module below the package ``root``, in order of name."""
    trees = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        text = path.read_text()
        trees[".".join(parts).removesuffix(".__init__")] = ast.parse(text), text.count("\n")
    options = {"typer"} | {
        target.id
        for tree, _ in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and "typer." in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [
        _module(name, tree, lines, (trees.keys(), options)) for name, (tree, lines) in trees.items()
    ]


def _module(
    name: str, tree: ast.Module, lines: int, known: tuple[Collection[str], Collection[str]]
) -> Module:
    """Return the counts of a module, given the names of all modules and of options of commands."""
    names, options = known
    if not any(
        isinstance(node, ast.Import) and node.names[0].name == "typer" for node in tree.body
    ):
        options = ()  # another thing of the same name
    functions = [node for node in tree.body if isinstance(node, Function)]
    public = [one for one in functions if not one.name.startswith("_")]
    asked = [one for one in public if len(parameters(one)) > 1 and not _is_command(one, options)]
    named = {one.name for one in asked if names_its_parameters(one)}
    return Module(
        name, lines, len(public), len(functions) - len(public), tuple(inlinable(tree)),
        tuple(one.name for one in asked if one.name in named),
        tuple(one.name for one in asked if one.name not in named),
        _asks_a_clock(tree), imported(tree, names),
    )  # fmt: skip


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters."""
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [one.arg for one in every if one is not None]


def _is_command(function: Function, options: Collection[str]) -> bool:
    """Return whether ``--help`` tells what its parameters are, not the docstring."""
    nodes = ast.walk(function.args)
    return any(isinstance(node, ast.Name) and node.id in options for node in nodes)


def names_its_parameters(function: Function) -> bool:
    """Return whether the docstring names all: under ``Parameters``, or in backticks."""
    text = ast.get_docstring(function) or ""
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}$|\Z)", text, re.MULTILINE | re.DOTALL
    )
    listed = re.findall(r"^\S.*$", section[1], re.MULTILINE) if section else []
    words = {word.strip("* ") for line in listed for word in line.partition(":")[0].split(",")}
    words |= set(re.findall(r"`\**(\w+)\b[^`]*`", text))
    return words >= set(parameters(function))


def inlinable(tree: ast.Module) -> Iterator[str]:
    """Yield private functions that one other function calls, at one place, and are short.

    What is decorated, yields or is given as a value has to be a function.
    """
    functions = {node.name: node for node in tree.body if isinstance(node, Function)}
    calls = Counter(
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    mentions = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    for name, function in functions.items():
        inside = list(ast.walk(function))
        needed = function.decorator_list or any(
            isinstance(node, ast.Yield | ast.YieldFrom) for node in inside
        )
        recursive = any(isinstance(node, ast.Name) and node.id == name for node in inside)
        if name.startswith("_") and not needed and not recursive:
            told = isinstance(function.body[0], ast.Expr)  # the docstring
            statements = sum(isinstance(node, ast.stmt) for node in inside) - 1 - told
            if calls[name] == mentions[name] == 1 and statements <= FEW:
                yield name


def _asks_a_clock(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == "time"
         and any(alias.name in CLOCKS for alias in node.names))
        or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            and node.value.id == "time" and node.attr in CLOCKS)
        for node in ast.walk(tree)
    )  # fmt: skip


def imported(tree: ast.Module, names: Collection[str]) -> frozenset[str]:
    """Return which of the modules ``names`` are imported in ``tree``, but for types alone."""
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    typed = [node for node in checks if ast.unparse(node.test) == "TYPE_CHECKING"]
    hidden = {part for node in typed for part in ast.walk(node)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    nodes = [node for node in found if node not in hidden]
    parts = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
    return frozenset(names) & {part if part in names else part.rpartition(".")[0] for part in parts}


def chain(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the longest way down from a module through its ``imports``, by name."""
    longest: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        below = [longest[other] for other in sorted(imports.get(name, ()))]
        longest[name] = [name, *max(below, key=len, default=[])]
    return max(longest.values(), key=len)


def aims(modules: Sequence[Module], worst: int = 5) -> list[Aim]:
    """Return every count of the ``modules`` beside its aim, with so many of the ``worst``."""

    def most(counts: Mapping[str, float]) -> tuple[str, ...]:
        ordered = sorted(counts, key=lambda name: (-counts[name], name))[:worst]
        return tuple(f"{name} {counts[name]:g}" for name in ordered if counts[name])

    way = chain({one.name: one.imports for one in modules})
    named, unnamed = (sum(len(part) for part in parts) for parts in (
        [one.named for one in modules], [one.unnamed for one in modules]
    ))  # fmt: skip
    helpers = {one.name: one.private / max(one.public, 1) for one in modules}
    return [
        Aim("modules", len(modules), 210),
        Aim("lines", sum(one.lines for one in modules), 54_000,
            worst=most({one.name: one.lines for one in modules})),
        Aim("modules in the longest chain of imports", len(way), 20, worst=(" > ".join(way),)),
        Aim("private functions for each public one",
            sum(one.private for one in modules) / max(sum(one.public for one in modules), 1), 0.8,
            worst=most({name: round(ratio, 1) for name, ratio in helpers.items()})),
        Aim(f"private functions with one caller and at most {FEW} statements",
            sum(len(one.inlinable) for one in modules), 0,
            worst=most({one.name: len(one.inlinable) for one in modules})),
        Aim("% of functions of two or more parameters that name them all",
            100 * named / max(named + unnamed, 1), 80, at_least=True,
            worst=most({one.name: len(one.unnamed) for one in modules})),
        Aim("modules that ask a clock", sum(one.clock for one in modules), 1,
            worst=tuple(one.name for one in modules if one.clock)[:worst]),
    ]  # fmt: skip


def main() -> None:
    """Print the counts beside the aims; with ``--all``, the names of what is in the way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="modules that begin so: taccl.report")
    parser.add_argument("--all", action="store_true", help="also name the functions")
    parser.add_argument("--check", action="store_true", help="end with 1 where an aim is missed")
    given = parser.parse_args()
    modules = [one for one in measured(ROOT) if one.name.startswith(given.only)]
    every = aims(modules)
    for one in every:
        mark, sign = ("ok" if one.met else "--"), (">=" if one.at_least else "<=")
        print(f"{mark} {one.found:8.5g} {sign} {one.aim:<6g} {one.title}")
        print("".join(f"{'':12}{line}\n" for line in one.worst), end="")
    if given.all:
        for module in modules:
            for what in ("inlinable", "unnamed"):
                if told := getattr(module, what):
                    print(f"{module.name}: {what}: {', '.join(told)}")
    sys.exit(given.check and not all(one.met for one in every))


if __name__ == "__main__":
    main()
