"""The replay held against public measurements: ``python -m benchmarks.truth``.

Measured costs are fitted to the odd rows of each machine's tables, starting from what is public of
it, and the even rows are the judge; then each table is left out in turn. Rows of which it is not
known what ran, or whose files are not here, are told and not counted.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.sections import replace_section
from taccl.apps.measured import (
    Fit,
    Row,
    Run,
    fit,
    ordered_pairs,
    read_table,
    replayed,
    shipped_tables,
    summed_up,
)
from taccl.replay.cost import measured_costs
from taccl.topology.file import load_topology
from taccl.topology.graph import ProgramCosts, ProtocolCosts
from taccl.units import PS_PER_US, format_size

TELL_SEVERAL = ("h100-alltoall",)
"""Tables to which only `several` is fitted, after all else to the others: what all peers get is
told there alone, and NCCL's sends and receives are launched as no collective is."""

DATA = Path(__file__).parents[2] / "shared" / "data" / "measured" / "xml"
"""Where MSCCL files that runs name may lie; a clone has none."""


PAGE = Path(__file__).parents[1] / "docs" / "truth.md"

FAR_OFF = 0.25
"""Errors that are told row by row."""

LARGE = 128 << 10
"""Bytes from which on MSCCL++ runs one kernel."""

WARPS = 20
"""Warps of a threadblock that pass on a slice of LL128 together, of 1920 bytes each."""

FITTED_RANKS = 16
"""Where a machine has runs on so many ranks, costs are not fitted to those on more, which take long
to replay; they are judged."""


def _rate(gigabytes: float) -> Fraction:
    return Fraction(1000) / Fraction(str(gigabytes)) if gigabytes else Fraction(0)


Three = tuple[float, float, float]


def prior(
    parts: tuple[float, float, float, float],
    blocks: Three,
    alphas: Three,
    alphas_across: Three,
    launch: Three = (6.0, 6.0, 5.0),
    warps: int = WARPS,
) -> ProgramCosts:
    """Return what is public of a machine.

    Parameters
    ----------
    parts
        Parts of the stated bandwidth that are left for data, within a server and between servers,
        bytes of LL on the wire for each byte of data, and how many times as long they take between
        servers, through the memory of hosts.
    blocks
        GB/s of a threadblock, LL, LL128 and Simple; 0: not known.
    alphas, alphas_across, launch
        Microseconds of LL, LL128 and Simple.
    warps
        Of a threadblock that pass on a slice of LL128 together.
    """
    inside, across, wire, detour = (Fraction(str(part)) for part in parts)
    names = ("LL", "LL128", "Simple")
    wires = (wire, Fraction(109, 100), Fraction(1))
    rates = tuple(map(_rate, blocks))
    slices = (4096, 1920 * warps, 32 << 10)
    ps = [[round(us * PS_PER_US) for us in each] for each in (launch, alphas, alphas_across)]
    detours = (detour, Fraction(1), Fraction(1))
    rows = zip(names, *ps, wires, rates, slices, detours, strict=True)
    protocols = {name: ProtocolCosts(*row) for name, *row in rows}
    return ProgramCosts(
        "priors", protocols, inside, across, _rate(400), _rate(200), round(0.3 * PS_PER_US)
    )


def plans_prior(
    parts: tuple[float, float, float, float], block: float, launches: Three, alphas: Three
) -> ProgramCosts:
    """Return what is public of MSCCL++ plans on a machine; units are those of :func:`prior`.

    `parts` are as there, `block` is for signals, `launches` and `alphas` are of signals, packets
    and switches.
    """
    known = prior(parts, (0, 0, block), (0, 0, 0), (0, 0, 0))
    ps = [[round(us * PS_PER_US) for us in each] for each in (launches, alphas)]
    rows = zip(("Simple", "LL", "NVLS"), *ps, strict=True)
    wires = {"LL": known.protocols["LL"].wire}
    rates = {"Simple": known.protocols["Simple"].block_beta}
    return replace(known, protocols={
        name: ProtocolCosts(
            launch, alpha, alpha, wires.get(name, Fraction(1)), rates.get(name, Fraction(0)),
            4096 if name == "LL" else 32 << 10,
        )
        for name, launch, alpha in rows
    })  # fmt: skip


_NVIDIA = (0.6, 1.9, 3.4)
_NET = (5.0, 8.0, 14.0)
_RCCL = (12.0, 12.0, 17.0)
_H100 = Fraction(9, 10)
_GRAPH, _STORES = (3.0, 3.0, 3.0), (0.8, 0.8, 0.8)

PRIORS: Mapping[str, ProgramCosts] = MappingProxyType({
    "dgx-h100": replace(
        prior((0.8, 0.97, 2.0, 5.0), (4.4, 36.7, 38.7), _NVIDIA, _NET, warps=5), several=_H100
    ),
    "dgx-a100": prior((0.8, 0.96, 2.0, 4.3), (3.65, 20, 24), _NVIDIA, _NET),
    "a100-p4de": prior((0.8, 0.96, 2.0, 1.0), (3.65, 20, 24), _NVIDIA, (80.0, 83.0, 164.0)),
    "dgx2": prior((0.96, 0.97, 3.08, 1.0), (0, 20, 26.5), _NVIDIA, _NET),
    "mi300x": prior((0.75, 0.97, 2.5, 1.0), (0, 0, 0), (0.8, 0.8, 2.1), (9.5, 9.5, 25.0), _RCCL),
    "mi250": prior(
        (0.72, 0.97, 2.0, 1.0), (2.5, 10, 10), (0.8, 0.8, 3.6), (9.5, 9.5, 19.8), _RCCL
    ),
    "gb200-nvl72": prior((0.8, 0.97, 2.0, 1.0), (8.8, 40, 70), _NVIDIA, _NET),
    "dgx-h100 mscclpp": replace(
        plans_prior((0.8, 0.97, 2.0, 1.0), 38.7, _GRAPH, _STORES), several=_H100
    ),
    "dgx-a100 mscclpp": plans_prior((0.8, 0.96, 2.0, 1.0), 24, _GRAPH, _STORES),
    "mi300x mscclpp": plans_prior((0.75, 0.97, 2.0, 1.0), 0, _GRAPH, _STORES),
})  # fmt: skip
"""What is public of each machine: NCCL's ``tuning.cc`` (latencies of protocols over NVLink and
networks, GB/s of a channel; base latencies as launch, that of LL128 as LL's, as older releases have
it for trees: one kernel is launched for all; the most that LL moves, 141 and 87.7 GB/s on one
server of 32 and 24 channels, 39 and 22.5 GB/s on two, by the CPUs of DGX H100 and A100), what
aws-ofi-nccl's ``platform-aws.c`` says (EFA of p4de takes 75 us, which NCCL adds to its own latency,
twice for Simple), RCCL's ``tuning.cc`` (base latencies, xGMI), NVIDIA/nccl-tests#212 (a ring on
H100 moves 365 to 370 GB/s), NVIDIA/nccl#2169 (an AlltoAll on four of them 335 to 338), and data
sheets. Nothing is public of the threadblocks of MI250: 10
GB/s, and a quarter for LL, are where its fit begins. On H100 five warps of LL128 are taken to pass
on what they have, on others all twenty. Of plans: a launch in a CUDA graph takes some 3 us, and a
store over NVLink arrives within 1 us."""


def even(number: int) -> bool:
    """Tell whether a row, by its `number` from 0, is an even one: the second, the fourth ..."""
    return number % 2 == 1


def read_runs(only: str, kind: str = "xml") -> dict[str, list[Run]]:
    """Return the runs that can be replayed by machine; ``only`` those whose name contains this.

    ``kind``: ``xml``, programs; ``mscclpp``, plans and what switches do.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    for name in shipped_tables():
        folder = DATA if name == "mi250-teccl" else DATA / "ndv5"
        table, found = read_table(name, folder if folder.is_dir() else None)
        if only in table.costs:
            machine = table.costs + " mscclpp" * (kind == "mscclpp")
            runs[machine] += [run for run in found if run.programs and run.kind == kind]
    return {machine: own for machine, own in sorted(runs.items()) if own}


def small(runs: Sequence[Run]) -> list[Run]:
    """Return those of the ``runs`` that costs are fitted to."""
    most = max(FITTED_RANKS, min((run.ranks for run in runs), default=0))
    return [run for run in runs if run.ranks <= most]


def fitted_to(
    runs: Sequence[Run], known: ProgramCosts, keep: Callable[[int], bool] | None = None
) -> Fit:
    """Return costs that were ``known`` before fitted to rows of the ``runs`` that `keep` keeps."""
    last = [run for run in small(runs) if run.kind == "xml" and run.table in TELL_SEVERAL]
    others = [run for run in small(runs) if run not in last]
    first = fit(others, known, keep, lambda name: name != "several")
    if not last:
        return first
    more = fit(last, first.costs, keep, lambda name: name == "several")
    moved, free = {**first.moved, **more.moved}, (*first.free, *more.free)
    return Fit(more.costs, first.rows + more.rows, moved, free)


def rows_of(runs: Sequence[Run], costs: ProgramCosts) -> dict[str, list[list[Row]]]:
    """Return the rows of each of the ``runs`` that were replayed, by table; ``costs`` hold."""
    found: dict[str, list[list[Row]]] = defaultdict(list)
    for run in runs:
        found[run.table].append([row for row in replayed(run, costs) if row.replayed])
    return found


def judged(rows: Sequence[Row]) -> list[float]:
    """Return the errors of the even of the ``rows`` of a run, and of one that is alone."""
    return [row.error for number, row in enumerate(rows) if even(number) or len(rows) == 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors by table, of even rows, and with each table left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machine", help="only machines whose name contains this", default="")
    parser.add_argument("--kind", help="xml, or mscclpp: fit plans", default="xml")
    parser.add_argument("--left-out", action="store_true", help="leave each table out in turn")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args(arguments)
    runs = read_runs(options.machine, options.kind)
    lines: list[Line] = []
    everything: list[Row] = []
    for machine, own in runs.items():
        known = PRIORS[machine]
        if options.kind == "mscclpp":
            costs = measured_costs(load_topology(machine.split()[0]))
            known = replace(known, inside=costs.inside, across=costs.across, several=costs.several)
        fitted = fitted_to(own, known, lambda number: not even(number))
        print(f"{machine}: {fitted.rows} rows fitted", flush=True)
        for cost, (value, far) in fitted.moved.items():
            print(f"    {cost:22} {value:9.4g}   moved {far:+.1f}")
        for table, found in rows_of(own, fitted.costs).items():
            everything += [row for rows in found for row in rows]
            left = left_out(own, table, known) if options.left_out else []
            lines.append(Line(table, machine, [e for rows in found for e in judged(rows)], left))
            for rows in found:
                record = rows[0].run.record if rows else None
                what = (
                    f"{record.collective:13} {record.place:3} {record.what[:24]}" if record else ""
                )
                errors = " ".join(f"{100 * row.error:+.0f}" for row in rows)
                print(f"  {table:14} {what:42} {errors}", flush=True)
            if left:
                errors = " ".join(f"{100 * error:+.0f}" for error in left)
                print(f"  {table:14} left out: {errors}", flush=True)
    texts = {"truth": told(lines, everything)}
    if options.kind == "xml":
        texts["plans"] = plans_told(options.machine)
    for section, text in texts.items():
        print(text)
        if options.write:
            replace_section(PAGE, section, text)
    return 0


def plans_told(only: str) -> str:
    """Return how far off plans and what switches do are with the costs that machines ship."""
    lines = [f"| table | ran | rows | median | most from {format_size(LARGE)} on |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for machine, runs in read_runs(only, "mscclpp").items():
        costs = measured_costs(load_topology(machine.split()[0]))
        for run in runs:
            errors = {row.size: abs(row.error) for row in replayed(run, costs) if row.replayed}
            most = max((error for size, error in errors.items() if size >= LARGE), default=None)
            place = "in place" if run.record.place == "in" else "out of place"
            lines.append(
                f"| {run.table} | {run.record.collective}, {run.record.what}, {place} |"
                f" {len(errors)} | {summed_up(list(errors.values()))['median']:.1%} |"
                f" {'-' if most is None else f'{most:.1%}'} |"
            )
    head = "Plans, and what switches do, with the costs that the machines ship:\n"
    return "\n".join([head, *lines, ""])


class Line(NamedTuple):
    """A table: its machine, errors of even rows, and errors of all rows when it is left out."""

    table: str
    machine: str
    even: list[float]
    left: list[float]


def left_out(runs: Sequence[Run], table: str, known: ProgramCosts) -> list[float]:
    """Return errors of a ``table`` with costs fitted to the other tables of the ``runs`` alone.

    They start at ``known``, and stay there where the machine has no other table.
    """
    others = [run for run in runs if run.table != table]
    costs = fitted_to(others, known).costs if small(others) else known
    rows = rows_of([run for run in runs if run.table == table], costs)[table]
    return [row.error for of_run in rows for row in of_run]


def told(lines: Sequence[Line], rows: Sequence[Row]) -> str:
    """Return the ``lines`` as a table, what all come to, and the ``rows`` that stay unexplained."""

    def cells(errors: Sequence[float]) -> list[str]:
        found = summed_up(errors) if errors else None
        return [f"{value:.1%}" for value in found.values()] if found else ["-", "-"]

    head = (
        "table",
        "costs",
        "even rows",
        "median",
        "ninth decile",
        "left out: median",
        "ninth decile",
    )
    table = [head, ["---"] * len(head)]
    table += [[each.table, each.machine, str(len(each.even)), *cells(each.even), *cells(each.left)]
              for each in lines]  # fmt: skip
    of_all = [error for each in lines for error in each.even]
    left = [error for each in lines for error in each.left]
    table.append(["all", "", str(len(of_all)), *cells(of_all), *cells(left)])
    right, pairs = ordered_pairs(rows)
    far = [row for row in rows if abs(row.error) > FAR_OFF]
    names = sorted(
        {(row.run.table, row.run.record.collective, row.run.record.place) for row in far}
    )
    unexplained = [
        f"- {name} {collective} {'in place' if place == 'in' else 'out of place'}: "
        + ", ".join(
            f"{format_size(row.size)} {row.error:+.0%}"
            for row in far
            if (row.run.table, row.run.record.collective, row.run.record.place)
            == (name, collective, place)
        )
        for name, collective, place in names
    ]
    return "\n".join([
        "Made by `python -m benchmarks.truth --left-out`: costs are fitted to the odd rows of each"
        " machine, starting from what is public of it, and *even rows* are the judge; *left out* is"
        " the error of a table with costs fitted to the other tables of its machine alone, or with"
        " the priors where there is none.\n",
        *("| " + " | ".join(line) + " |" for line in table),
        f"\nOf {pairs} pairs of runs of one collective and size on one machine {right} are replayed"
        " in the measured order.\n",
        f"Rows that are off by more than {FAR_OFF:.0%}:\n",
        *unexplained,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
