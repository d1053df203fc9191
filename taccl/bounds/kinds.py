"""What each kind of bound says, and what the bounds of each world hold for."""

from collections.abc import Mapping
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType({
    "latency": "how far data must go by alpha (weighted diameter), plus its bytes on the last link",
    "reach": "dissemination time under port limits: how soon one rank's data can reach all",
    "port": "bytes through the busiest rank, server or ranks that share a NIC, by its bandwidth",
    "cut": "bytes that must leave a set of ranks, by the bandwidth out of it; the worst set",
    "packing": "a spanning tree for every chunk, at the edge prices of the optimal tree packing",
    "flow": "a shortest path for all data, at the edge prices of the optimal multi-commodity flow",
    "drain": "the last arrival at a set of ranks, which must still spread inside it",
    "growth": "data that enters a server must still be doubled inside, one message at a time",
    "message": "all of these, with an alpha for every message of the runtime's largest size",
    "reduce": "2(n-1) messages for every piece, at the edge prices of the optimal tree packing",
})  # fmt: skip

ASSUMED = "messages go from one rank to one rank: switches copy and add nothing; no network coding"
"""What all of them assume."""

WORLDS: Mapping[str, str] = MappingProxyType({
    "any": "every algorithm, in any number of chunks and batches",
    "program": "every program of the runtime, whose messages have a largest size",
    "fixed": "every algorithm with this chunk count and one chunk to a message",
    "sketch": "every algorithm on the links that the sketch allows, in any chunks and batches",
})  # fmt: skip


def any_of(kind: str) -> str:
    """Return what is no faster than a bound of a kind: any algorithm, or any program."""
    return "any program" if kind == "message" else "any algorithm"
