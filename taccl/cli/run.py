"""``taccl run``: a program with real bytes, a process a rank, measured beside predicted."""

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import machine_option, output_option
from taccl.cli.options import (
    RUN_DTYPE_NAMES,
    AlphaRule,
    Begin,
    End,
    Fabric,
    Factor,
    Json,
    Nodes,
    Profile,
    Size,
    one_of,
    sizes_of,
)
from taccl.errors import InputError


def run(
    files: Annotated[
        list[str], typer.Argument(help="MSCCL XML files, or schedules.", show_default=False)
    ],
    topology: Annotated[
        str | None,
        machine_option("--topology", help="Predict times on it: a file, name or short form."),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    alpha_rule: AlphaRule = None,
    profile: Profile = "alpha-beta",
    size: Size = "1MB",
    begin: Begin = None,
    end: End = None,
    factor: Factor = 2,
    dtype: Annotated[
        str, one_of(RUN_DTYPE_NAMES, "--dtype", "One of {}.", "Collective")
    ] = "float32",
    calls: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--iters",
            min=1,
            max=100_000,
            show_default=False,
            help="Calls in a measurement; left out: 20, and 1 on an emulated machine.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=1000, help="Measurements; their median counts.")
    ] = 5,
    tcp: Annotated[
        bool, typer.Option("--tcp", help="Messages over TCP, not through shared memory.")
    ] = False,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="Be one of the ranks that mpirun has started.")
    ] = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            help="Start the ranks over ssh: a:4,b:4. All hosts need the same files.",
            show_default=False,
        ),
    ] = None,
    launched: Annotated[
        bool,
        typer.Option("--launched", help="Be one of the ranks that torchrun or srun has started."),
    ] = False,
    emulate: Annotated[
        str | None,
        machine_option(
            "--emulate",
            help="Run on this machine made of network namespaces: a file, name or short form.",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        machine_option(
            "--scale",
            min=1e-6,
            max=1e12,
            show_default=False,
            help="How many times slower it is; left out: as this machine can carry it.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        output_option("--save-topology", help="Write the emulated machine, as it was measured."),
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=0.1, help="Seconds without a step before it hangs.")
    ] = 10.0,
    as_json: Json = False,
    trace: Annotated[
        Path | None,
        output_option("--trace", help="Write a Chrome (Perfetto) trace of the last size."),
    ] = None,
) -> None:
    """Run programs with real bytes, a process a rank, and check what comes out."""
    from taccl.apps import running
    from taccl.apps.inputs import MachineOptions, load_machine
    from taccl.files import check_outputs, write_all_atomic
    from taccl.report.runs import runs_json, runs_table
    from taccl.run.hosts import parse_hosts, run_on_hosts
    from taccl.topology.core_form import topology_document
    from taccl.topology.file import document_text

    ways = {
        "--tcp": tcp, "--mpi": mpi, "--hosts": hosts is not None, "--launched": launched,
        "--emulate": emulate is not None,
    }  # fmt: skip
    chosen = [option for option, given in ways.items() if given]
    if len(chosen) > 1:
        raise InputError(f"excludes {chosen[0]}", field=chosen[1], fix="leave one of them out")
    for option, given in {"--scale": scale, "--save-topology": save}.items():
        if given is not None and emulate is None:
            raise InputError("is for --emulate", field=option, fix=f"leave {option} out")
    if emulate is not None and topology is not None:
        raise InputError(
            "is predicted on the machine that is emulated", field="--topology",
            fix="leave it out",
        )  # fmt: skip
    alone = {"--trace": trace is not None, "--hosts": hosts is not None, "--launched": launched}
    for option in (option for option, given in alone.items() if given and len(files) != 1):
        raise InputError(
            f"is for one program, got {len(files)} files", field=option, fix="give one file"
        )
    check_outputs([("--trace", trace), ("--save-topology", save)], files)
    network = None
    if topology is not None:
        network = load_machine(topology, MachineOptions(nodes, fabric, alpha_rule=alpha_rule))
    sizes = sizes_of(begin, end, factor, size)
    asked = running.Asked(
        sizes, dtype, calls or (1 if emulate else 20), repeats, logged=trace is not None
    )
    jobs = [running.load_job(file, sizes[-1], patience) for file in files]
    texts: dict[str | Path, str] = {}
    if emulate is not None:
        from taccl.apps.running import probes_told, run_emulated

        machine = load_machine(emulate, MachineOptions(nodes, fabric, alpha_rule=alpha_rule))
        factor_ = None if scale is None else Fraction(scale)
        rows, text, found, probes = run_emulated(jobs, asked, machine, factor_)
        if not as_json:
            typer.echo(probes_told(found, probes))
        if save is not None:
            texts[save] = document_text(topology_document(found))
    else:
        over = running.MPI if mpi else running.TCP if tcp else running.SHARED_MEMORY
        if hosts is not None:
            repeated = {
                "--dtype": dtype, "--iters": asked.calls, "--repeats": repeats,
                "--patience": patience, "-b": sizes[0], "-e": sizes[-1], "-f": factor,
                **({} if trace is None else {"--trace": trace}),
            }  # fmt: skip
            options = [str(part) for pair in repeated.items() for part in pair]
            over = running.Transport("tcp", partial(
                run_on_hosts, hosts=parse_hosts(hosts),
                command=["run", *files, *options, "--launched"],
            ))  # fmt: skip
        elif launched:
            over = running.LAUNCHED
        rows, text = running.run_jobs(jobs, asked, over, network, measured=profile == "measured")
    if rows:
        if trace is not None:
            texts[trace] = text
        write_all_atomic(texts)
        typer.echo(runs_json(rows) if as_json else runs_table(rows))
    if any(row.wrong for row in rows):
        raise typer.Exit(1)
