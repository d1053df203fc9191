"""Engines: a problem in, a schedule out.

An engine is a function ``(problem, options) -> Result``; a new one is a module here and a row in
:data:`ENGINES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from taccl.errors import InputError
from taccl.model.problem import Options, Problem, Result
from taccl.synth.exact.engine import exact
from taccl.synth.flow.engine import flow
from taccl.synth.guided.engine import guided
from taccl.synth.search import Engine, auto
from taccl.synth.staged.engine import staged
from taccl.synth.templates.classical import CLASSICAL, run_classical

ENGINES: Mapping[str, Engine] = MappingProxyType({
    "auto": auto,
    "guided": guided,
    "flow": flow,
    "taccl": staged,
    "exact": exact,
})  # fmt: skip


def engine_names() -> tuple[str, ...]:
    """Return every name that ``--engine`` takes."""
    return (*ENGINES, *CLASSICAL)


def solve(problem: Problem, engine: str, options: Options) -> Result:
    """Run an engine of ENGINES or an algorithm of CLASSICAL on a problem.

    Raises InputError when there is no such engine; NoScheduleError when no schedule exists or none
    was found in time.
    """
    if engine in ENGINES:
        return ENGINES[engine](problem, options)
    if engine in CLASSICAL:
        return run_classical(engine, problem, options)
    raise InputError(
        f"unknown engine {engine[:40]!r}",
        field="--engine",
        fix=f"use one of {', '.join(engine_names())}",
    )
