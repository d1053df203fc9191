"""Two collectives at once: shared edges as fluids, against the replay of both programs.

``python -m benchmarks.side_by_side`` takes pairs of programs on shipped machines that begin at
once. ``taccl step`` says when each ends by what it takes alone and for how long it holds each edge
(:mod:`taccl.training.simulation`); the replay runs both, message by message, on the same edges. A
row has how far the ends of the one that is sooner over and of the other are off; status 1 where
the later end, which is what a step waits for, is off by more than a tenth. Where edges carry one
message at a time (``occupy``), large messages hold up small ones, which fluids do not.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sections import replace_section
from taccl.apps.call_costs import CallCosts
from taccl.apps.networks import load_machine
from taccl.report.text import aligned
from taccl.topology.graph import Topology
from taccl.training.operations import Call, Meeting, Operation, Work
from taccl.training.simulation import Cost, simulate
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

OFF = 0.1

HEAD = """## Two collectives at once

`python -m benchmarks.side_by_side`: pairs of programs that begin at once on one machine. *alone* is
what each takes without the other, *fluid* when each ends by what it takes alone and for how long it
holds each edge, as `taccl step` has it, and *replay* when each ends where both are replayed,
message by message, on the same edges (`alpha-beta`). The later end is what a step waits for. When
the other is over, and which it is, fluids may have wrong: an edge that carries one message at a
time serves them in the order in which they ask, and who asks for larger ones gets more of it.

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
        topology = load_machine(machine, nodes=nodes if nodes > 1 else None)
        alone, fluid, replay = ends(topology, pair)
        off = max(fluid) / max(replay) - 1
        worst = max(worst, abs(off))
        rows.append([
            topology.name, *(" ".join(one) for one in pair),
            *(", ".join(f"{time / 1e6:.1f}" for time in times) for times in (alone, fluid, replay)),
            f"{min(fluid) / min(replay) - 1:+.1%}", f"{off:+.1%}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    print("\n".join(aligned(rows, str.ljust)))
    if given.write:
        table = ["| " + " | ".join(row) + " |" for row in rows]
        table.insert(1, "|---" * len(rows[0]) + "|")
        replace_section(given.write, "side_by_side", HEAD + "\n".join(table) + "\n")
    print(f"the later end is off by at most {worst:.1%}")
    sys.exit(worst > OFF)


if __name__ == "__main__":
    main()
