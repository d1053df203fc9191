"""A placement as text, as JSON, and as files for launchers and for the other commands."""

from collections.abc import Callable, Mapping
from itertools import groupby
from types import MappingProxyType

from taccl.errors import ScheduleError
from taccl.msccl.interpret import judge
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml, write_xml
from taccl.pipeline.placing import Placed
from taccl.placement.orders import servers_of
from taccl.placement.permuted import permuted_program
from taccl.topology_file import document_text, topology_from_document
from taccl.topology_graph import topology_digest, topology_document
from taccl.units import format_size, microseconds

ENDINGS: Mapping[str, str] = MappingProxyType({
    "all": "every order was replayed",
    "bound": "no order can beat the bound",
    "settled": "nothing better came up any more",
    "time": "the time limit",
    "replays": "the limit of replays",
    "interrupted": "interrupted",
})  # fmt: skip
"""Why a search ended, in words."""


def placed_json(placed: Placed, outputs: Mapping[str, str]) -> dict[str, object]:
    """Return what ``--json`` prints."""
    found, seats = placed.found, placed.seats
    mean = placed.random_mean
    return {
        "program": placed.program.name,
        "collective": placed.program.collective,
        "topology": placed.topology.name,
        "ranks": placed.topology.num_ranks,
        "servers": placed.topology.num_servers,
        "alpha_rule": placed.topology.alpha_rule_stated,
        "size_bytes": placed.size,
        "order": list(placed.order),
        "hosts": [{"host": seats[p].host, "slot": seats[p].slot} for p in placed.order],
        "time_us": microseconds(placed.time),
        "identity_us": microseconds(placed.identity),
        "random": len(found.random),
        "random_mean_us": None if mean is None else mean / 1e6,
        "random_best_us": microseconds(min(found.random)) if found.random else None,
        "gain_identity": placed.identity / placed.time if placed.time else None,
        "gain_random": mean / placed.time if mean is not None and placed.time else None,
        "bound_us": None if found.bound is None else microseconds(found.bound),
        "optimal": placed.proved,
        "replays": found.replays,
        "ended": found.ended,
        "routed": placed.routed,
        "outputs": dict(outputs),
    }


def placed_text(placed: Placed, outputs: Mapping[str, str]) -> str:
    """Return what is printed for people."""
    found, topology = placed.found, placed.topology
    servers = f" in {topology.num_servers} servers" if topology.num_servers > 1 else ""
    mean = placed.random_mean
    torn = servers_of(topology.server_of).split(range(topology.num_ranks)) is None
    lines = [
        f"{placed.program.collective} of {format_size(placed.size)} on {topology.num_ranks} ranks"
        f"{servers} of {topology.name}, replayed as {placed.program.name}"
        f" ({topology.alpha_rule_stated})",
        f"order     {' '.join(map(str, placed.order))}",
        f"as given  {_us(placed.identity)}{', with servers torn apart' if torn else ''}",
    ]
    if mean is not None:
        lines.append(
            f"random    {_us(mean)} the mean of {len(found.random)} orders,"
            f" {_us(min(found.random))} the best of them"
        )
    gains = [f"{placed.identity / max(placed.time, 1):.3g} x as fast as given"]
    if mean is not None:
        gains.append(f"{mean / max(placed.time, 1):.3g} x the mean of random orders")
    lines.append(f"placed    {_us(placed.time)}: {', '.join(gains)}")
    lines.append(_bound_line(placed))
    lines.append(f"search    {found.replays} replays, ended: {ENDINGS[found.ended]}")
    if placed.routed:
        lines.append("routed    pairs without a link are replayed over other ranks")
    lines += [f"wrote {file}" for file in outputs.values()]
    return "\n".join(lines)


def _us(time: float) -> str:
    return f"{time / 1e6:.6g} us"


def _bound_line(placed: Placed) -> str:
    found = placed.found
    if placed.proved:
        return "bound     the best order there is"
    if found.bound is None:
        return "bound     none is known for this algorithm"
    gap = placed.time / max(found.bound, 1) - 1
    return f"bound     {_us(found.bound)} for any order of a ring, {gap:.2%} below"


def rankfile_text(placed: Placed) -> str:
    """Return an Open MPI rankfile: ``rank R=HOST slot=S``."""
    seats = (placed.seats[place] for place in placed.order)
    return "".join(f"rank {rank}={seat.host} slot={seat.slot}\n" for rank, seat in enumerate(seats))


def hostfile_text(placed: Placed) -> str:
    """Return a hostfile whose hosts are in the order of ranks.

    Raises
    ------
    ScheduleError
        When a host would come twice.
    """
    seats = [placed.seats[place] for place in placed.order]
    groups = [(host, list(group)) for host, group in groupby(seats, key=lambda seat: seat.host)]
    if len({host for host, _ in groups}) < len(groups):
        raise ScheduleError("hostfile", ["a host comes twice: only a rankfile can say that"])
    moved = any([seat.slot for seat in group] != sorted(s.slot for s in group)
                for _, group in groups)  # fmt: skip
    note = "# ranks change their slots within hosts, too: only the rankfile says which\n"
    lines = [f"{host} slots={len(group)}\n" for host, group in groups]
    return "".join([note] * moved + lines)


def topology_text(placed: Placed) -> str:
    """Return the permuted machine as a topology file, read back and compared.

    Raises
    ------
    ScheduleError
        When what is read back differs.
    """
    permuted = placed.permuted
    document = topology_document(permuted)
    again = topology_from_document(document)
    if topology_digest(again) != topology_digest(permuted):
        raise ScheduleError("permuted topology", ["reading it back gives another machine"])
    order = ", ".join(map(str, placed.order))
    note = f"rank r is rank order[r] of {ascii(placed.topology.name)[1:-1]}: order = [{order}]"
    return document_text(document, [note])


def xml_text(placed: Placed, runtime: str) -> str:
    """Return the program for the machine as given, verified and read back.

    Raises
    ------
    InputError
        When its ranks can't move.
    ScheduleError
        When a judge objects.
    """
    program = permuted_program(placed.program, placed.order)
    _check(placed.program, runtime)
    _check(program, runtime)
    text = write_xml(program, runtime)
    if read_xml(text, runtime=runtime) != program:
        raise ScheduleError("permuted program", ["reading it back gives another program"])
    return text


def _check(program: Program, runtime: str) -> None:
    findings = judge(program, runtime)
    if findings:
        raise ScheduleError(f"program {program.name}", findings)


def files_of(placed: Placed, wanted: Mapping[str, str], runtime: str) -> dict[str, str]:
    """Return the text of each file wanted, by kind: rankfile, hostfile, topology, xml.

    Raises
    ------
    TacclError
        When one of them can't be made: then nothing should be written.
    """
    makers: dict[str, Callable[[], str]] = {
        "rankfile": lambda: rankfile_text(placed),
        "hostfile": lambda: hostfile_text(placed),
        "topology": lambda: topology_text(placed),
        "xml": lambda: xml_text(placed, runtime),
    }
    return {file: makers[kind]() for kind, file in wanted.items()}
