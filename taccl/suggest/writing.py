"""Put a suggestion together, part by part, and try it: what is written loads and applies.

Parts are chosen in an order in which each can look at what the parts before it left: links, ways
between servers, switches, chunks, paths, symmetry. Where the best way between servers cuts a rank
off, the next one is taken.
"""

import textwrap
from collections.abc import Sequence

from taccl.collectives import Collective
from taccl.errors import NoScheduleError
from taccl.files import parse_document
from taccl.sketch import apply_sketch
from taccl.sketch.native import Sketch, read_native
from taccl.suggest.choices import chunks, limits, links, paths, switches
from taccl.suggest.machine import WIDTH, Choice, Machine, quoted
from taccl.suggest.relays import internode
from taccl.suggest.turns import symmetry
from taccl.topology import LogicalTopology, Topology
from taccl.units import format_size

MAX_NAME = 100
"""Letters of the name of a sketch."""

AUTO = Choice("", ("symmetry: auto",))


def suggest_sketch(topology: Topology, collective: Collective, size: int) -> str:
    """Return a sketch for a machine as YAML; comments say why each part is as it is.

    Parameters
    ----------
    topology
        The network.
    collective
        What the sketch is for, with one chunk for each rank (and pair).
    size
        Bytes of the buffer that nccl-tests counts.

    Raises
    ------
    NoScheduleError
        When the links of the topology leave a rank that can't be reached.
    """
    machine = Machine(topology, collective, size)
    closed = links(machine)
    way, logical = _joined(machine, closed)
    allowed = logical.allowed
    parts = [
        chunks(machine, allowed), closed, switches(machine, allowed), way, paths(machine, allowed),
        symmetry(logical, collective), limits(machine, allowed),
    ]  # fmt: skip
    text = _text(machine, parts)
    apply_sketch(topology, _read(text))
    return text


def _joined(machine: Machine, closed: Choice) -> tuple[Choice, LogicalTopology]:
    """Return the first way to join the servers that leaves nobody out, and what remains then."""
    refused: NoScheduleError | None = None
    for way in internode(machine):
        try:
            sketch = _read(_text(machine, [closed, way, AUTO]))
            return way, apply_sketch(machine.topology, sketch)
        except NoScheduleError as error:
            refused = refused or error
    raise refused or NoScheduleError("no way joins the servers")


def _read(text: str) -> Sketch:
    return read_native(parse_document(text, "the suggested sketch"))


def _text(machine: Machine, parts: Sequence[Choice]) -> str:
    topology, collective = machine.topology, machine.collective
    count = len(machine.servers)
    servers = f"{count} servers" if count > 1 else "1 server"
    head = (
        f"A sketch for {collective.name} of {format_size(machine.size)} on {topology.name} with"
        f" {servers}, {topology.num_ranks} ranks, by taccl sketch suggest. Change what you know"
        " better."
    )
    lines = [*_comment(head), "taccl: sketch/1", f"name: {quoted(_name(machine))}"]
    for part in parts:
        lines += ["", *_comment(part.why), *part.lines]
    return "\n".join(lines) + "\n"


def _name(machine: Machine) -> str:
    half = MAX_NAME // 2 - 4
    machine_, collective = machine.topology.name[:half], machine.collective.name[:half]
    return f"{machine_.strip()}-x{len(machine.servers)}-{collective.strip()}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
