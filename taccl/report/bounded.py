"""Lower bounds of a collective, as text and as JSON: by kind at one size, or size by size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl.bounds import ASSUMED, KINDS, WORLDS, best
from taccl.synth.problem import Bound
from taccl.topology import Topology
from taccl.units import counted, format_size, format_time, gigabytes_per_second, microseconds


@dataclass(frozen=True)
class Bounded:
    """The bounds of a collective at one size.

    Parameters
    ----------
    topology
        Where.
    collective
        Its name.
    chunks
        For each rank, what the fixed bounds are for.
    size
        Bytes of the buffer that nccl-tests counts.
    free, fixed, sketched
        Bounds for every algorithm, for this chunk count with one chunk to a message, and for
        every algorithm on the links of the sketch; the last is empty without a sketch.
    """

    topology: Topology
    collective: str
    chunks: int
    size: int
    free: tuple[Bound, ...]
    fixed: tuple[Bound, ...]
    sketched: tuple[Bound, ...] = ()

    @property
    def worlds(self) -> dict[str, tuple[Bound, ...]]:
        """The bounds by world; worlds without bounds are left out."""
        found = {"any": self.free, "fixed": self.fixed, "sketch": self.sketched}
        return {world: bounds for world, bounds in found.items() if bounds}


def bounded_json(bounded: Bounded) -> dict[str, object]:
    """Return the bounds at one size as a JSON object."""
    worlds = bounded.worlds
    shown: dict[str, object] = {
        "collective": bounded.collective,
        "topology": bounded.topology.name,
        "size_bytes": bounded.size,
        "alpha_rule": bounded.topology.alpha_rule_stated,
        "costs": bounded.topology.costs,
        "chunks_per_rank": bounded.chunks,
    }
    for world, suffix in (("any", ""), ("fixed", "_fixed"), ("sketch", "_sketch")):
        bounds = worlds.get(world, ())
        largest = best(bounds) if bounds else None
        shown |= {
            f"bound{suffix}_us": largest and microseconds(largest.time),
            f"bound{suffix}_kind": largest and largest.kind,
            f"all{suffix}": {bound.kind: microseconds(bound.time) for bound in bounds},
        }
    kinds = sorted({bound.kind for bounds in worlds.values() for bound in bounds})
    return shown | {
        "kinds": {kind: KINDS[kind] for kind in kinds},
        "worlds": {world: WORLDS[world] for world in worlds},
        "assumed": ASSUMED,
    }


def bounded_text(bounded: Bounded) -> str:
    """Return the bounds at one size, each with what it says, the binding one of a world marked."""
    topology, size = bounded.topology, bounded.size
    lines = [
        f"{bounded.collective} on {topology.name}, {topology.num_ranks} ranks,"
        f" {format_size(size)} ({topology.rules_stated}), {_chunks(bounded)}"
    ]
    for world, bounds in bounded.worlds.items():
        largest = best(bounds)
        lines += [f"{world}: {WORLDS[world]}", *_lines(bounds, largest)]
        if largest.time:
            most = gigabytes_per_second(size, largest.time)
            lines.append(f"  so algbw is at most {most:.4g} GB/s")
    return "\n".join([*lines, f"assumed: {ASSUMED}"])


def _chunks(bounded: Bounded) -> str:
    return f"{counted(bounded.chunks, 'chunk')} for each rank"


def _lines(bounds: Sequence[Bound], largest: Bound) -> Iterator[str]:
    """Yield a line a kind, the largest bound first."""
    width = max(len(format_time(bound.time)) for bound in bounds)
    for bound in sorted(bounds, key=lambda bound: -bound.time):
        mark = "<- binding" if bound == largest else ""
        time = format_time(bound.time).rjust(width)
        yield f"  {bound.kind:<8} {time} {mark:<10} {KINDS[bound.kind]}"


def bounded_table(found: Sequence[Bounded]) -> str:
    """Return the binding bound of every world, size by size, and what the worlds hold for."""
    first = found[0]
    rows = [["size", *(name for w in first.worlds for name in (f"{w} us", "by")), "algbw GB/s"]]
    for bounded in found:
        largest = [best(bounds) for bounds in bounded.worlds.values()]
        cells = [cell for one in largest for cell in (f"{microseconds(one.time):.6g}", one.kind)]
        most = gigabytes_per_second(bounded.size, largest[0].time) if largest[0].time else None
        rows.append([format_size(bounded.size), *cells, "-" if most is None else f"{most:.4g}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    topology = first.topology
    return "\n".join([
        f"{first.collective} on {topology.name}, {topology.num_ranks} ranks"
        f" ({topology.rules_stated}), {_chunks(first)}",
        *lines,
        *(f"{world}: {WORLDS[world]}" for world in first.worlds),
        f"assumed: {ASSUMED}",
    ])  # fmt: skip
