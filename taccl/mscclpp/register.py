"""Register the MSCCL++ plans that lie beside this file, and choose among them call by call.

``taccl tune --runtime mscclpp`` writes this file into every directory of plans. It needs MSCCL++
0.9 or later and nothing else. In a program of PyTorch, before its process group is made::

    import register

    register.register(rank, ranks_per_node)

and the program is started with MSCCL++'s NCCL library (``LD_PRELOAD=.../libmscclpp_nccl.so``). What
no plan fits is done by what MSCCL++ does otherwise.

Plans add up; a request does not say which operation is asked for (``CollectiveRequest``). So
collectives that reduce are only registered with ``sums_only=True``: for programs whose reductions
are all sums.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent

REDUCES = ("allreduce", "reducescatter")


class Request(Protocol):
    """A call, as MSCCL++ tells a selector of it (``CollectiveRequest``); sizes are bytes."""

    collective: str
    message_size: int
    world_size: int
    rank: int
    input_buffer: int
    output_buffer: int


def plans_of(index: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the plans of an `index`: name, file, collective, sizes in bytes, unit, and mode."""
    return [
        {**plan, "collective": one["collective"]}
        for one in index["collectives"]
        for span in one["ranges"]
        for plan in span.get("plans", ())
    ]


def is_in_place(request: Request) -> bool:
    """Tell whether a `request` is in place, as NCCL defines it."""
    sent, received = request.input_buffer, request.output_buffer
    if request.collective == "allgather":
        received += request.rank * request.message_size
    if request.collective == "reducescatter":
        sent += request.rank * request.message_size // request.world_size
    return bool(sent == received)


def fits(plan: dict[str, Any], request: Request, ranks: int) -> bool:
    """Tell whether a `plan` of so many `ranks` serves a `request`.

    A request of allgather counts what one rank sends, all others the larger buffer.
    """
    gathers = plan["collective"] == "allgather"
    size = request.message_size * (request.world_size if gathers else 1)
    return bool(
        request.collective == plan["collective"]
        and request.world_size == ranks
        and plan["min_bytes"] <= size <= plan["max_bytes"]
        and size % plan["unit_bytes"] == 0
        and is_in_place(request) == plan["in_place"]
    )


def register(rank: int, ranks_per_node: int, *, sums_only: bool = False) -> list[Any]:
    """Register all plans for a `rank`, with so many `ranks_per_node`, and the choice among them.

    Collectives that reduce are left out unless the program reduces by `sums_only`. The result are
    the algorithms, which ``execute`` runs with an ``Executor`` of one's own, too.
    """
    mscclpp, core = (importlib.import_module(name) for name in ("mscclpp", "mscclpp._mscclpp"))
    read = getattr(core, "CppExecutionPlan", None) or core.ExecutionPlan
    builder_of = getattr(mscclpp, "AlgorithmCollectionBuilder", None)
    if builder_of is None:
        builder_of = importlib.import_module("mscclpp.ext").AlgorithmCollectionBuilder
    index = json.loads((HERE / "index.json").read_text(encoding="utf-8"))
    ranks = index["topology"]["ranks"]
    plans = [
        plan for plan in plans_of(index) if sums_only or plan["collective"] not in REDUCES
    ]  # fmt: skip
    builder, made = builder_of(), []
    for plan in plans:
        algorithm = mscclpp.Algorithm(
            id=plan["name"],
            execution_plan=read(str(HERE / plan["file"]), rank),
            constraint=mscclpp.Algorithm.Constraint(ranks, ranks_per_node),
        )
        builder.add_algorithm_builder(algorithm)
        made.append(algorithm)

    def select(algorithms: Mapping[str, Mapping[str, object]], request: Request) -> object:
        own = algorithms.get(request.collective, {})
        found = (own.get(plan["name"]) for plan in plans if fits(plan, request, ranks))
        return next((algorithm for algorithm in found if algorithm is not None), None)

    builder.set_algorithm_selector(select)
    return made
