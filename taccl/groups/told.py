"""What commands print of process groups: instances alone and together, as text and JSON."""

from collections.abc import Sequence
from pathlib import Path

from taccl.collectives import busbw_factor
from taccl.collectives.groups import Groups, Instance
from taccl.groups.directory import Played
from taccl.groups.solve import Together
from taccl.model.problem import Bound
from taccl.report.text import aligned, us_text
from taccl.topology.edit import numbers_text
from taccl.topology.graph import Topology
from taccl.units import Time, counted, format_size, microseconds

SHOWN = 40
"""Characters of a list of ranks."""


def _head(one: Instance) -> list[str]:
    ranks = numbers_text(one.members)
    cut = ranks if len(ranks) <= SHOWN else f"{ranks[:SHOWN]}..."
    return [one.group, cut, one.collective, format_size(one.size), us_text(one.start)]


HEAD = ["group", "ranks", "collective", "size", "start us"]


def _title(groups: Groups, topology: Topology) -> str:
    relays = " (others relay)" if any(one.relays for one in groups.instances) else ""
    return (
        f"{groups.name} on {topology.name}, {topology.num_ranks} ranks:"
        f" {counted(len(groups.instances), 'collective')} at once{relays}"
    )


def _cost_line(groups: Groups, ends: Sequence[Time]) -> str:
    what = "the last ends" if groups.objective == "makespan" else "weighted sum of ends"
    return f"  {what}  {us_text(round(groups.cost(ends)))} us"


def summary(found: Together, written: Sequence[Path]) -> str:
    """Return what people are told of what was `found` and `written`."""
    rows = [
        [*_head(part.instance), us_text(part.alone), us_text(part.together),
         us_text(part.bound.time), part.engine]
        for part in found.parts
    ]  # fmt: skip
    title = [*HEAD, "alone us", "together us", "bound us", "engine"]
    gap = "no gap known" if found.gap is None else f"gap {found.gap:.1%}"
    lines = [_title(found.groups, found.topology), *aligned([title, *rows])]
    lines.append(
        f"{_cost_line(found.groups, [part.end for part in found.parts])} by"
        f" {'replay' if found.replayed else 'schedule'}, bound"
        f" {us_text(round(found.bound))} us, {gap}, {found.seconds:.1f} s"
    )
    if not found.shared:
        lines.append("  no edges are shared: each runs as if it were alone")
    elif found.joint is not None:
        lines.append(f"  on shared edges, the schedule of all at once: {us_text(found.joint)} us")
    return "\n".join([*lines, *(f"  wrote  {path}" for path in written)])


def _record(one: Instance) -> dict[str, object]:
    return {
        "group": one.group, "number": one.number, "ranks": list(one.members),
        "relays": list(one.relays), "collective": one.collective, "size_bytes": one.size,
        "start_us": microseconds(one.start), "weight": float(one.weight),
    }  # fmt: skip


def record(found: Together, written: Sequence[Path]) -> dict[str, object]:
    """Return the fields of ``--json`` of what was `found` and `written`."""
    return {
        "groups": found.groups.name, "topology": found.topology.name,
        "ranks": found.topology.num_ranks, "objective": found.groups.objective,
        "cost_us": float(found.cost) / 1e6, "bound_us": float(found.bound) / 1e6, "gap": found.gap,
        "makespan_us": microseconds(max(part.end for part in found.parts)),
        "by": "replay" if found.replayed else "schedule",
        "shared": [list(numbers) for numbers in found.shared],
        "joint_schedule_us": None if found.joint is None else microseconds(found.joint),
        "seconds": round(found.seconds, 3),
        "instances": [
            {
                **_record(part.instance), "alone_us": microseconds(part.alone),
                "together_us": microseconds(part.together),
                "bound_us": microseconds(part.bound.time), "bound_kind": part.bound.kind,
                "engine": part.engine, "sends": part.schedule.num_sends,
            }
            for part in found.parts
        ],
        "output": [str(path) for path in written],
    }  # fmt: skip


def played_text(groups: Groups, topology: Topology, played: Sequence[Played]) -> str:
    """Return a table of what programs of `groups` take alone and together on a `topology`."""
    rows = []
    for one in played:
        factor = float(busbw_factor(one.instance.collective, len(one.instance.members)))
        busbw = one.size * factor * 1000 / one.together if one.together else 0.0
        rows.append([
            *_head(one.instance), us_text(one.alone), us_text(one.together),
            f"{one.together / one.alone:.2f} x" if one.alone else "", f"{busbw:.2f}",
            Path(one.file).name,
        ])  # fmt: skip
    title = [*HEAD, "alone us", "together us", "slower", "busbw GB/s", "file"]
    ends = [one.instance.start + one.together for one in played]
    return "\n".join([_title(groups, topology), *aligned([title, *rows]), _cost_line(groups, ends)])


def played_record(
    groups: Groups, topology: Topology, played: Sequence[Played]
) -> dict[str, object]:
    """Return the same as the fields of ``--json``."""
    ends = [one.instance.start + one.together for one in played]
    return {
        "groups": groups.name, "topology": topology.name, "objective": groups.objective,
        "cost_us": float(groups.cost(ends)) / 1e6, "makespan_us": microseconds(max(ends)),
        "instances": [
            {
                **_record(one.instance), "file": one.file, "replay_size_bytes": one.size,
                "alone_us": microseconds(one.alone), "together_us": microseconds(one.together),
            }
            for one in played
        ],
    }  # fmt: skip


def bounded_text(groups: Groups, topology: Topology, alone: Sequence[Bound], all_: Bound) -> str:
    """Return what nothing beats: `groups` on a `topology`, each `alone`, and all at once."""
    rows = [
        [*_head(one), us_text(bound.time), bound.kind]
        for one, bound in zip(groups.instances, alone, strict=True)
    ]
    return "\n".join([
        _title(groups, topology), *aligned([[*HEAD, "bound us", "kind"], *rows]),
        f"  all at once  {us_text(all_.time)} us ({all_.kind})",
    ])  # fmt: skip


def bounded_record(
    groups: Groups, topology: Topology, alone: Sequence[Bound], all_: Bound
) -> dict[str, object]:
    """Return the same as the fields of ``--json``."""
    return {
        "groups": groups.name, "topology": topology.name, "objective": groups.objective,
        "bound_us": microseconds(all_.time), "bound_kind": all_.kind,
        "instances": [
            {**_record(one), "bound_us": microseconds(bound.time), "bound_kind": bound.kind}
            for one, bound in zip(groups.instances, alone, strict=True)
        ],
    }  # fmt: skip
