"""All-reduce on one switch that takes each rank's own value through itself, as NVLS does.

Let m ranks be joined by one switch only, each by an edge up and one down, and let the switch add
for a rank only (``turn: rank``), with that rank's own value going up like the others, and copy with
one copy down to the sender. For a piece

- a message from rank to rank uses 2 edges;
- a sum of the values of a ranks at another uses a + 1 edges up and one down: a + 2;
- a copy of one rank's value to b others uses one up and b + 1 down: b + 2; a fused fan is the two.

Of one-way messages, of which a sum is a and a copy b, gossip between m parties needs 2(m - 1). Let
f be the sums and copies, c the messages in them, and p the single ones; p + c >= 2(m - 1):

    f = 0:   2 p >= 4(m - 1)
    f = 1:   2 p + c + 2 >= 4(m - 1) - c + 2 >= 3 m - 1, as c <= m - 1
    f >= 2:  2 p + c + 2 f >= 2(m - 1) + 4 = 2 m + 2

3 m - 1 is not the least of the three for any m >= 2. So a piece holds the 2m edges, one after the
other, for min(4(m - 1), 2 m + 2) times its own time on one; an exhaustive search over all plans
finds the same for 2 to 5 ranks (tests/bounds/test_in_network.py).
"""

from collections.abc import Iterator
from fractions import Fraction

from taccl.bounds.arrival_curves import gather
from taccl.bounds.net import Crossing, Net
from taccl.collectives import Collective


def edges_used(ranks: int) -> int:
    """Return how many edges a piece of an all-reduce of so many `ranks` uses at least."""
    return min(4 * (ranks - 1), 2 * ranks + 2)


def loop_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the edges that an allreduce uses on `net`, if it is one switch with `own: through`.

    Of another `collective` nothing is said.
    """
    topology = net.topology
    if collective.name != "allreduce" or len(net.helpers) != 1 or net.num_ranks < 2:
        return
    switch = topology.switches[net.helpers[0] - net.num_ranks]
    adds, copies = switch.reduce, switch.multicast
    if adds is None or copies is None:
        return
    if not (adds.through and adds.at_rank and copies.through):
        return
    used = [topology.edges[edge] for edge in net.used]
    ups = {edge.tail for edge in used if edge.head == net.helpers[0]}
    if len(used) != 2 * net.num_ranks or len(ups) != net.num_ranks:
        return
    if not all(edge.id in net.busy and net.helpers[0] in (edge.tail, edge.head) for edge in used):
        return
    gates = gather(net.gate(edge.id, net.through[edge.id]) for edge in used)
    yield Crossing("loop", gates, Fraction(edges_used(net.num_ranks)))
