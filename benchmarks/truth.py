"""The replay held against public measurements: ``python -m benchmarks.truth``.

Measured costs are fitted to the odd rows of each machine's tables, starting from what is public of
it, and the even rows are the judge; then each table is left out in turn. Rows of which it is not
known what ran, or whose files are not here, are told and not counted.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from taccl.apps.measured import (
    Row,
    Run,
    ordered_pairs,
    read_table,
    replayed,
    shipped_tables,
    summed_up,
)
from taccl.apps.measured_fit import fit
from taccl.topology.graph import ProgramCosts, ProtocolCosts
from taccl.units import PS_PER_US

DATA = Path(__file__).parents[2] / "shared" / "data" / "measured" / "xml"
"""Where MSCCL files that runs name may lie; a clone has none."""


def _rate(gigabytes: float) -> Fraction:
    return Fraction(1000) / Fraction(str(gigabytes)) if gigabytes else Fraction(0)


Three = tuple[float, float, float]


def prior(
    parts: tuple[float, float, float],
    blocks: tuple[float, float],
    alphas: Three,
    alphas_across: Three,
) -> ProgramCosts:
    """Return what is public of a machine.

    Parameters
    ----------
    parts
        Parts of the stated bandwidth that are left for data, within a server and between servers,
        and bytes of LL on the wire for each byte of data.
    blocks
        GB/s of a threadblock, LL128 and Simple; 0: not known.
    alphas, alphas_across
        Microseconds of LL, LL128 and Simple.
    """
    inside, across, wire = (Fraction(str(part)) for part in parts)
    names, launch = ("LL", "LL128", "Simple"), (6.0, 12.1, 5.0)
    wires = (wire, Fraction(109, 100), Fraction(1))
    rates = (Fraction(0), _rate(blocks[0]), _rate(blocks[1]))
    slices = (4096, 38400, 32 << 10)
    ps = [[round(us * PS_PER_US) for us in each] for each in (launch, alphas, alphas_across)]
    rows = zip(names, *ps, wires, rates, slices, strict=True)
    protocols = {name: ProtocolCosts(*row) for name, *row in rows}
    return ProgramCosts(
        "priors", protocols, inside, across, _rate(400), _rate(200), round(0.3 * PS_PER_US)
    )


_NVIDIA = (0.6, 1.9, 3.4)
_NET = (5.0, 8.0, 14.0)

PRIORS: Mapping[str, ProgramCosts] = MappingProxyType({
    "dgx-h100": prior((0.8, 0.97, 2.55), (36.7, 38.7), _NVIDIA, _NET),
    "dgx-a100": prior((0.8, 0.96, 2.74), (20, 24), _NVIDIA, _NET),
    "a100-p4de": prior((0.8, 0.96, 2.74), (20, 24), _NVIDIA, (25.0, 28.0, 34.0)),
    "dgx2": prior((0.96, 0.97, 3.08), (20, 26.5), _NVIDIA, _NET),
    "mi300x": prior((0.75, 0.97, 2.5), (0, 0), (0.8, 0.8, 2.1), (9.5, 9.5, 25.0)),
    "mi250": prior((0.72, 0.97, 2.5), (10, 10), (0.8, 0.8, 3.6), (9.5, 9.5, 19.8)),
    "gb200-nvl72": prior((0.8, 0.97, 2.55), (0, 70), _NVIDIA, _NET),
})  # fmt: skip
"""What is public of each machine: NCCL's ``tuning.cc`` (latencies of protocols over NVLink and
networks, GB/s of a channel, base latencies as launch), aws-ofi-nccl's tuner (20 us of EFA),
NVIDIA/nccl-tests#212 (a ring on H100 moves 365 to 370 GB/s), and data sheets."""


def even(number: int) -> bool:
    """Tell whether a row, by its `number` from 0, is an even one: the second, the fourth ..."""
    return number % 2 == 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors by table, of even rows, and with each table left out; 0: as near as asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machine", help="only machines whose name contains this", default="")
    parser.add_argument("--left-out", action="store_true", help="leave each table out in turn")
    options = parser.parse_args(arguments)
    runs: dict[str, list[Run]] = defaultdict(list)
    for name in shipped_tables():
        folder = DATA if name == "mi250-teccl" else DATA / "ndv5"
        table, found = read_table(name, folder if folder.is_dir() else None)
        runs[table.costs] += [run for run in found if run.programs]
    judged: list[Row] = []
    all_rows: list[Row] = []
    for machine, own in sorted(runs.items()):
        if options.machine not in machine or not own:
            continue
        fitted = fit(own, PRIORS[machine], lambda number: not even(number))
        print(f"{machine}: {fitted.rows} rows fitted", flush=True)
        for cost, (value, far) in fitted.moved.items():
            print(f"    {cost:22} {value:9.4g}   moved {far:+.1f}")
        for run in own:
            rows = [row for row in replayed(run, fitted.costs) if row.replayed]
            all_rows += rows
            judged += [row for number, row in enumerate(rows) if even(number) or len(rows) == 1]
            errors = " ".join(f"{100 * row.error:+.0f}" for row in rows)
            what = f"{run.record.collective:10} {run.record.place:3} {run.record.what[:24]:24}"
            print(f"  {run.table:14} {what} {errors}", flush=True)
    told = summed_up([row.error for row in judged])
    right, pairs = ordered_pairs(all_rows)
    print(
        f"even rows: {len(judged)}, median {told['median']:.1%}, ninth decile"
        f" {told['ninth decile']:.1%}; order {right} of {pairs} pairs"
    )
    if options.left_out:
        left = _left_out(runs, options.machine)
        print(f"left out: median {left['median']:.1%}, ninth decile {left['ninth decile']:.1%}")
    return 0


def _left_out(runs: Mapping[str, list[Run]], only: str) -> Mapping[str, float]:
    errors: list[float] = []
    for machine, own in sorted(runs.items()):
        for table in sorted({run.table for run in own if only in machine}):
            costs = PRIORS[machine]
            others = [run for run in own if run.table != table]
            if others:
                costs = fit(others, costs).costs
            rows = [row for run in own if run.table == table for row in replayed(run, costs)]
            off = [row.error for row in rows if row.replayed]
            errors += off
            told = summed_up(off)
            print(f"  without {table:14} median {told['median']:.1%}", flush=True)
    return summed_up(errors)


if __name__ == "__main__":
    sys.exit(main())
