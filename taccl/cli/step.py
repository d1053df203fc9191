"""``taccl step``: what a training step takes."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import collective_option, machine_option, output_option, progress
from taccl.cli.options import (
    AlphaRule,
    Constants,
    Fabric,
    InNetwork,
    Json,
    Nodes,
    Profile,
    Quiet,
    TopologyArgument,
    Verbose,
    one_of,
)
from taccl.errors import InputError

if TYPE_CHECKING:
    from taccl.msccl.program import Program
    from taccl.topology.graph import Topology


def step(
    workload: Annotated[
        str,
        typer.Argument(
            help="A workload file, a table of layers (.csv), SimAI's text (.txt), or a Chakra trace"
            " (.et).",
            show_default=False,
        ),
    ],
    topology: TopologyArgument,
    traces: Annotated[
        list[str] | None,
        typer.Argument(help="More Chakra traces: one for each rank.", show_default=False),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    alpha_rule: AlphaRule = None,
    in_network: InNetwork = "auto",
    profile: Profile = "alpha-beta",
    library: Annotated[
        Path | None,
        collective_option("--library", help="Take what taccl tune wrote into this directory."),
    ] = None,
    via: Annotated[
        str,
        collective_option(
            "--via",
            help="Algorithm of collectives: best (of the classical ones), one of them, an engine,"
            " nccl, bound, or alpha=10us,busbw=120GB/s.",
        ),
    ] = "best",
    against: Annotated[
        str | None,
        collective_option("--against", help="Another algorithm: what would be saved or lost."),
    ] = None,
    together: Annotated[
        str,
        one_of(
            "fluid, exact",
            "--together",
            "Collectives at once: {}: share edges as fluids, or are replayed side by side.",
            "Collective",
        ),
    ] = "fluid",
    runtime: Constants = "executor",
    time_limit: Annotated[
        float, machine_option("--time-limit", min=0.1, max=86400, help="Seconds of an engine.")
    ] = 2,
    steps: Annotated[
        int, machine_option("--steps", min=1, max=1000, help="Steps that are played; at least 4.")
    ] = 6,
    sweep: Annotated[
        bool, collective_option("--sweep", help="Try policies of summing gradients.")
    ] = False,
    expand: Annotated[
        bool,
        output_option(
            "--expand", help="Print the operations of the steps as a workload file, and end."
        ),
    ] = False,
    trace: Annotated[
        Path | None, output_option("--trace", help="Write a Chrome (Perfetto) trace of the steps.")
    ] = None,
    html: Annotated[
        Path | None, output_option("--html", help="Write a page: times, what-ifs, a timeline.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say what a training step takes, and how much of it is communication that nothing hides."""
    from taccl.apps.inputs import MachineOptions, fans_wanted, load_machine
    from taccl.apps.stepping import (
        CallCosts,
        Price,
        Question,
        asks_switches,
        check_via,
        has_programs,
        load_work,
        quicker,
    )
    from taccl.apps.stepping import step as solve
    from taccl.files import check_outputs, write_all_atomic
    from taccl.report.steps import as_object, as_text, step_page, step_trace
    from taccl.training.operations import expanded, graph_text
    from taccl.training.workload import Workload

    files = (workload, *(traces or ()))
    inputs = [*files, topology]
    if library is not None:
        if not library.is_dir():
            raise InputError("is no directory", file=str(library), fix="write one with taccl tune")
        inputs += map(str, library.iterdir())
    check_outputs([("--trace", trace), ("--html", html)], inputs)
    for option, asked in (("--via", via), ("--against", against)):
        if asked is not None:
            try:
                check_via(asked, library=False)
            except InputError as error:
                raise InputError(error.problem, field=option, fix=error.fix) from None
            if together == "exact" and not has_programs(asked):
                raise InputError(
                    "is for what has programs", field="--together",
                    fix=f"leave it out, or give {option} an algorithm",
                )  # fmt: skip
    measured = profile == "measured"
    fused = fans_wanted(in_network, carried=asks_switches(via) or asks_switches(against or ""))
    options = MachineOptions(nodes, fabric, alpha_rule=alpha_rule, in_network=fused)
    machine = load_machine(topology, options)
    if expand:
        if as_json or trace or html:
            raise InputError(
                "prints text and nothing else", field="--expand",
                fix="leave out --json, --trace and --html",
            )  # fmt: skip
        found = load_work(files, machine.num_ranks, library=True)
        work = expanded(found, steps) if isinstance(found, Workload) else found
        typer.echo(graph_text(work), nl=False)
        return
    if measured:
        from taccl.replay.cost import measured_costs

        for option, given in (("--in-network", fused), ("--together", together == "exact")):
            if given:
                raise InputError(
                    "is not known with measured costs", field=option,
                    fix="leave out --profile measured",
                )  # fmt: skip
        measured_costs(machine)

    def served(directory: Path, collective: str, size: int) -> tuple[Path | None, int]:
        from taccl.tuning.directory import answer

        found = answer(directory, collective, size)
        return found["file"] and directory / found["file"], found["ranks"]

    with progress(quiet=quiet or as_json, verbose=verbose) as report:

        def engine(part: "Topology", collective: str, size: int, name: str) -> "Program | None":
            from taccl.apps.api import synthesize

            return synthesize(
                part, collective, size, engine=name, runtime=runtime, profile=profile,
                time_limit=time_limit,
            ).program  # fmt: skip

        served_by = None if library is None else partial(served, library)
        way = via if library is None else "library"
        rest = served_by, runtime, measured, engine, report
        costs = CallCosts(machine, way, *rest)
        more, what = quicker(machine)

        def price(found: CallCosts) -> Price:
            return Price(found.cost, found.together if together == "exact" else None)

        rivals = {} if against is None else {against: price(CallCosts(machine, against, *rest))}
        # What a table says does not depend on links.
        quick = {} if "=" in way else {f"{what} were twice as fast": price(costs.on(more))}
        result = solve(Question(
            files, machine, profile, way, price(costs), quick, rivals, steps, sweep,
            library is not None,
        ))  # fmt: skip
    texts = {trace: step_trace, html: step_page}
    write_all_atomic({path: make(result) for path, make in texts.items() if path is not None})
    typer.echo(json.dumps(as_object(result), indent=2) if as_json else as_text(result))
