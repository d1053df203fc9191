"""Two collectives at once: shared edges as fluids, against the replay of both programs.

``python -m benchmarks.side_by_side`` takes pairs of programs on shipped machines that begin at
once. ``taccl step`` says when each ends by what it takes alone and for how long it holds each edge
(:mod:`taccl.training.simulation`); the replay runs both, message by message, on the same edges. A
row has how far the ends of the one that is sooner over and of the other are off; so have steps in
which both kinds meet. Status 1 where a later end, which is what a step waits for, or a step is off
by more than a tenth. Where edges carry one message at a time (``occupy``), large messages hold up
small ones, which fluids do not.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sections import replace_section
from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.stepping import CallCosts, Price, under
from taccl.report.text import aligned
from taccl.topology.graph import Topology
from taccl.training.operations import Call, Meeting, Operation, Work, expanded
from taccl.training.simulation import Cost, Step, simulate
from taccl.training.workload import workload_of
from taccl.units import Time, parse_size

PAIRS = (
    ("dgx-a100", 1, ("allreduce", "64MB", "ring"), ("allreduce", "64MB", "ring")),
    ("dgx-a100", 2, ("allreduce", "64MB", "ring"), ("allgather", "64MB", "ring")),
    ("dgx-a100", 2, ("allreduce", "16MB", "halving-doubling"), ("allreduce", "64MB", "ring")),
    ("dgx-h100", 1, ("alltoall", "16MB", "best"), ("allreduce", "64MB", "ring")),
    ("dgx-h100", 2, ("allreduce", "64MB", "hierarchical"), ("reducescatter", "64MB", "ring")),
    ("ndv2", 2, ("allgather", "16MB", "ring"), ("allgather", "16MB", "ring")),
    ("dgx2", 1, ("allreduce", "64MB", "all-pairs"), ("allgather", "16MB", "ring")),
    ("torus2d:4x4", 1, ("allreduce", "16MB", "ring"), ("allgather", "16MB", "ring")),
    ("slow-uplink", 1, ("allreduce", "1MB", "ring"), ("allgather", "1MB", "ring")),
    ("mi300x", 1, ("alltoall", "64MB", "best"), ("allreduce", "64MB", "all-pairs")),
)
"""A machine with so many servers, and two collectives: what, of how many bytes, and how."""

STEPS = (
    ("dgx-a100", 1, 4, 10, "60MB", "4MB", "ring"),
    ("dgx-a100", 2, 8, 100, "30MB", "16MB", "ring"),
    ("dgx-h100", 1, 4, 10, "60MB", "4MB", "best"),
    ("dgx2", 1, 4, 10, "60MB", "4MB", "best"),
    ("ndv2", 2, 8, 400, "30MB", "16MB", "ring"),
    ("mi300x", 1, 4, 50, "30MB", "8MB", "best"),
    ("leaf-spine", 1, 8, 50, "60MB", "4MB", "ring"),
    ("slow-uplink", 1, 4, 500, "2MB", "1MB", "ring"),
    ("hub:8@100Gb/s,10us", 1, 4, 200, "30MB", "8MB", "halving-doubling"),
    ("full:8", 1, 4, 50, "30MB", "8MB", "all-pairs"),
)
"""A machine with so many servers, tensor parallelism over so many neighbours, microseconds of a
forward pass, gradients and activations of a layer, and how collectives run."""

LAYERS = 6

OFF = 0.1

HEAD = """## Two collectives at once

`python -m benchmarks.side_by_side`: pairs of programs that begin at once on one machine. *alone* is
what each takes without the other, *fluid* when each ends by what it takes alone and for how long it
holds each edge, as `taccl step` has it, and *replay* when each ends where both are replayed,
message by message, on the same edges (`alpha-beta`). The later end is what a step waits for. When
the other is over, and which it is, fluids may have wrong: an edge that carries one message at a
time serves them in the order in which they ask, and who asks for larger ones gets more of it.

"""

BELOW = """
Steps of six layers, whose tensor-parallel sums (*tp* ranks each) run beside those of gradients over
the other ranks: what `taccl step` says by default, and with `--together exact`, which replays what
runs at once side by side.

"""

Asked = tuple[str, str, str]


def by_fluid(costs: Sequence[Cost]) -> list[Time]:
    """Return when collectives that begin at once end."""
    operations = tuple(
        Operation(str(n), str(n), call=Call("", "all", 1), meeting=n) for n in range(len(costs))
    )
    work = Work("pair", 1, {"all": ((0,),)}, (0,), (operations,))
    return list(simulate(work, costs, {(n, 0): n for n in range(len(costs))}).end[0])


def ends(topology: Topology, pair: Sequence[Asked]) -> tuple[list[Time], list[Time], list[Time]]:
    """Return what collectives take alone, and when both end by fluids and by replay."""
    everyone = (tuple(range(topology.num_ranks)),)
    priced = CallCosts(topology)
    meetings = [
        Meeting(Call(collective, "all", parse_size(text), via), everyone, frozenset({0}), 0)
        for collective, text, via in pair
    ]
    costs = [priced.cost(one) for one in meetings]
    replayed = priced.together([(one, 0) for one in meetings])
    return [cost.time for cost in costs], by_fluid(costs), list(replayed)


def step_times(topology: Topology, row: tuple[int, int, str, str, str]) -> list[Step]:
    """Return a step by fluids and by replay, in which sums of gradients run beside other sums."""
    width, micros, gradients, activations, via = row
    ranks = topology.num_ranks
    call = {"collective": "allreduce", "group": "tp", "bytes": activations}
    layer = {
        "bytes": gradients, "forward": micros, "backward": 2 * micros,
        "comm": [{"when": when, **call} for when in ("forward", "backward")],
    }  # fmt: skip
    groups = {
        "tp": {"each": [[f"{low}-{low + width - 1}"] for low in range(0, ranks, width)]},
        "dp": {"each": [list(range(low, ranks, width)) for low in range(width)]},
    }
    document = {
        "taccl": "workload/1", "name": "both", "ranks": ranks, "groups": groups,
        "layers": [{"name": f"layer{n}", **layer} for n in range(LAYERS)],
        "sync": [{"group": "dp", "bucket": "25MB", "wait": "layer"}],
    }  # fmt: skip
    work = expanded(workload_of(document, "benchmarks/side_by_side.py"), 6)
    costs = CallCosts(topology, via)
    return [under(work, Price(costs.cost, how)) for how in (None, costs.together)]


def main() -> None:
    """Print a row a pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="page to write the table into")
    parser.add_argument("--only", default="", help="machines whose name contains this text")
    given = parser.parse_args()
    rows = [["machine", "first", "second", "alone us", "fluid us", "replay us", "sooner", "later"]]
    worst = 0.0
    for machine, nodes, *pair in PAIRS:
        if given.only not in machine:
            continue
        topology = load_machine(machine, MachineOptions(nodes=nodes if nodes > 1 else None))
        alone, fluid, replay = ends(topology, pair)
        off = max(fluid) / max(replay) - 1
        worst = max(worst, abs(off))
        rows.append([
            topology.name, *(" ".join(one) for one in pair),
            *(", ".join(f"{time / 1e6:.1f}" for time in times) for times in (alone, fluid, replay)),
            f"{min(fluid) / min(replay) - 1:+.1%}", f"{off:+.1%}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    steps = [["machine", "tp", "pass us", "gradients", "activations", "by", "fluid us", "replay us",
              "off"]]  # fmt: skip
    for machine, nodes, width, micros, gradients, activations, via in STEPS:
        if given.only not in machine:
            continue
        topology = load_machine(machine, MachineOptions(nodes=nodes if nodes > 1 else None))
        asked = width, micros, gradients, activations, via
        fluid_, replay_ = (one.time for one in step_times(topology, asked))
        worst = max(worst, abs(fluid_ / replay_ - 1))
        steps.append([
            topology.name, *map(str, asked), f"{fluid_ / 1e6:.1f}", f"{replay_ / 1e6:.1f}",
            f"{fluid_ / replay_ - 1:+.2%}",
        ])  # fmt: skip
        print(" | ".join(steps[-1]), flush=True)
    tables = []
    for table in (rows, steps):
        print("\n".join(aligned(table, str.ljust)))
        lines = ["| " + " | ".join(row) + " |" for row in table]
        tables.append("\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]]) + "\n")
    if given.write:
        replace_section(given.write, "side_by_side", HEAD + tables[0] + BELOW + tables[1])
    print(f"later ends and steps are off by at most {worst:.1%}")
    sys.exit(worst > OFF)


if __name__ == "__main__":
    main()
