"""The load of a network in a page: the topology, pairs of ranks and edges, by how long held."""

import contextlib
from collections.abc import Iterator, Sequence

from taccl.errors import InputError
from taccl.report.graph import lines_of, loaded_svg
from taccl.report.heat import heat_scale
from taccl.report.html_table import BAR, bar, table, text_of, us
from taccl.topology import Topology
from taccl.units import Time

MAX_TOP = 12
"""Rows of the table of edges that are seen at once."""

MAX_DRAWN = 3000
"""Lines of the picture of a topology: more would make the page too large."""

MAX_EDGES = 1000
"""Rows of the table of edges: the busiest."""


def load(topology: Topology, held: Sequence[Time], time: Time | None) -> Iterator[str]:
    """Yield the picture of the network, the map of pairs and the table of edges.

    Parameters
    ----------
    topology
        The network.
    held
        Picoseconds for which each edge is held.
    time
        Picoseconds that the program takes.
    """
    yield "<h3>Topology by load</h3>"
    drawn = 0
    with contextlib.suppress(InputError):  # more lines than any picture may have
        drawn = len(lines_of(topology))
    if 0 < drawn <= MAX_DRAWN:
        yield heat_scale()
        yield f'<div class="scroll">{loaded_svg(topology, held, time or 0)}</div>'
        yield (
            '<p class="hint">A line has the colour of its busiest edge; grey ones carry nothing.'
            " Point at a line for numbers.</p>"
        )
    else:
        yield '<p class="hint">There are too many edges for a picture.</p>'
    yield f"""<h3>Heat map of links</h3>
<div class="traffic">
{heat_scale()}
<div class="scroll"><canvas role="img" aria-label="From ranks to ranks"></canvas></div>
<p class="status" aria-live="polite">Colour: how much of the time the messages of a pair hold the
edge that they hold longest. Point at a cell for numbers.</p>
</div>"""
    yield "<h3>Load of the edges</h3>"
    used = [edge for edge, busy in enumerate(held) if busy]
    used.sort(key=lambda edge: (-held[edge], edge))
    lines = [_edge(topology, number, held[number], time) for number in used[:MAX_EDGES]]
    yield table(_EDGE_COLUMNS, lines[:MAX_TOP])
    more = len(lines) - MAX_TOP
    if more > 0:
        rest = table(_EDGE_COLUMNS, lines[MAX_TOP:])
        yield f"<details><summary>{more} more edges</summary>{rest}</details>"
    idle = len(topology.edges) - len(used)
    cut = f" The busiest {MAX_EDGES} of {len(used)} are shown." if len(used) > MAX_EDGES else ""
    yield f'<p class="hint">{idle} of {len(topology.edges)} edges carry nothing.{cut}</p>'


_EDGE_COLUMNS = ("edge", "from", "to", "GB/s", "busy us", "share", BAR)


def _edge(topology: Topology, number: int, busy: Time, time: Time | None) -> list[str]:
    edge = topology.edges[number]
    ends = (topology.vertex_name(edge.tail), topology.vertex_name(edge.head))
    rate = f"{float(1000 / edge.beta):.4g}" if edge.beta else ""
    return [
        text_of(edge.name), *(text_of(end) for end in ends), rate, us(busy),
        *bar(busy, time, heat=True),
    ]  # fmt: skip
