"""docs/commands.md from the command line itself: every command, option, default and help text."""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from taccl.cli import app
from tests.docs.markdown import code, table
from tests.docs.meanings import EXIT_STATUSES, EXPLANATION_FIELDS, JSON_FIELDS

HEAD = """# Commands

This page is made from the command line itself (`pytest tests/test_docs.py --update-golden` \
writes it). `taccl COMMAND --help` prints the same texts. `python -m taccl` is the same as `taccl`.

TOPOLOGY is a file, the name of a shipped one (`taccl topology list`) or a short form such as \
`ring:8`, `mesh2d:4x4`, `torus2d:4x4@25GB/s,1us`, `torus3d:4x4x4`, `hypercube:16`, `full:8`, \
`hub:8`, `leaf-spine:4x8x2` (leaves, ranks of a leaf, oversubscription), `fat-tree:4` (ports of a \
switch) or `dragonfly:5x4x2` (groups, routers of a group, ranks of a router). SKETCH is a file or \
the name of a shipped one (`taccl sketch list`). Names of collectives, engines and runtimes are \
accepted in any case; `all-gather` and `all_gather` are `allgather`.

Sizes: every option takes `1MB` (1e6 bytes), `1MiB` (2^20 bytes), plain bytes, and `1M` as \
nccl-tests writes it, where K, M, G and T are powers of two. What is printed says which it is: \
`64KiB` or `64KB`.

Results go to stdout. Progress, warnings and errors go to stderr. With `--json`, one JSON object \
is all that stdout gets. `-o -` is stdout for XML and topology files; what else `synthesize` says \
then goes to stderr. Progress is one line in place on a terminal, and a line each elsewhere; `-v` \
keeps all of them, with seconds, and `-q` says nothing.
"""

EXITS = """## Exit statuses

An error is two lines: where and what, then the fix. Anything else that ends a command with a \
traceback is a bug.
"""

INTERRUPT = """The first Ctrl-C ends the search of `synthesize`; the best schedule so far is \
verified and written. The second one gives up, and says which files were written by then.
"""

JSON_HEAD = """## What `--json` prints

Times are in microseconds, sizes in bytes, bandwidths in GB/s (1e9 bytes).
"""

Command = tuple[tuple[str, ...], Callable[..., object]]


def commands(group: typer.Typer = app, path: tuple[str, ...] = ("taccl",)) -> Iterator[Command]:
    """Yield every command with the words that call it."""
    for info in group.registered_commands:
        if info.callback is not None:
            yield (*path, info.name or info.callback.__name__), info.callback
    for below in group.registered_groups:
        if below.typer_instance is not None and isinstance(below.name, str):
            yield from commands(below.typer_instance, (*path, below.name))


EXPLAIN = """With `--explain` there are `explanations`, one for each file at its last size:
"""


def commands_page() -> str:
    """Return docs/commands.md."""
    parts = [HEAD, "## The commands\n"]
    rows = [
        (f"[`{' '.join(words)}`](#{'-'.join(words)})", _summary(callback))
        for words, callback in commands()
    ]
    parts.append(table(("command", "what it does"), rows))
    parts += [_section(words, callback) for words, callback in commands()]
    parts.append(EXITS)
    parts.append(table(("status", "when"), [(str(s), text) for s, text in EXIT_STATUSES.items()]))
    parts += [INTERRUPT, JSON_HEAD]
    for command, fields in JSON_FIELDS.items():
        parts.append(f"### `{command} --json`\n")
        rows = [(code(name), text) for name, text in fields.items()]
        parts.append(table(("field", "meaning"), rows))
        if command == "taccl evaluate":
            parts.append(EXPLAIN)
            rows = [(code(name), text) for name, text in EXPLANATION_FIELDS.items()]
            parts.append(table(("field", "meaning"), rows))
    return "\n".join(parts)


def _summary(callback: Callable[..., object]) -> str:
    return (inspect.getdoc(callback) or "").splitlines()[0]


def _section(words: tuple[str, ...], callback: Callable[..., object]) -> str:
    arguments, options = [], []
    names = []
    for name, annotation, info, default in _parameters(callback):
        if isinstance(info, ArgumentInfo):
            parts = (annotation, *get_args(annotation))
            many = any(get_origin(part) is list for part in parts)
            names.append(f"{name.upper()}..." if many else name.upper())
            arguments.append((code(names[-1]), info.help or ""))
        else:
            taken = _taken(annotation, info)
            flags = ", ".join(map(code, _flags(info)))
            options.append((flags, taken, _default(default), info.help or ""))
    usage = " ".join((*words, *names, *(["[OPTIONS]"] if options else [])))
    lines = [f"### `{' '.join(words)}`\n", f"{_summary(callback)}\n", f"```text\n{usage}\n```\n"]
    if arguments:
        lines.append(table(("argument", "meaning"), arguments))
    if options:
        lines.append(table(("option", "takes", "default", "meaning"), options))
    return "\n".join(lines)


def _parameters(
    callback: Callable[..., object],
) -> Iterator[tuple[str, Any, ArgumentInfo | OptionInfo, object]]:
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        if get_origin(hint) is Annotated:
            annotation, info = get_args(hint)[:2]
            yield name, annotation, info, parameter.default


def _taken(annotation: object, info: OptionInfo) -> str:
    """Return what an option takes, with its range."""
    if annotation is bool:
        return "nothing"
    words = {int: "a number", float: "a number", str: "text"}
    parts = [part for part in (get_args(annotation) or (annotation,)) if part is not type(None)]
    text = words.get(parts[0], "a path")
    if info.min is not None and info.max is not None:
        return f"{text}, {info.min:g} to {info.max:.10g}"
    return f"{text}, at least {info.min:g}" if info.min is not None else text


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return "-" if value is None or value is False else code(value)


def _flags(info: OptionInfo) -> Iterator[str]:
    """Yield the spellings of an option; in an annotation typer keeps the first as the default."""
    for flag in (info.default, *(info.param_decls or ())):
        if isinstance(flag, str) and flag.startswith("-"):
            yield flag
