"""What each kind of bound says, and what the bounds of each world hold for."""

from collections.abc import Mapping
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType({
    "latency": "the longest way that some data must go, and the data itself by its last link",
    "reach": "how soon all can have heard of one rank, each message keeping its ports busy",
    "port": "what a rank, server or ranks that share edges must receive or send, over these",
    "cut": "what must leave a set of ranks, over the edges that leave it; the worst set",
    "packing": "the cheapest trees of all chunks, at the prices of the best packing of trees",
    "flow": "the cheapest ways of all data, at the prices of the best flow",
    "drain": "what enters a set of ranks last, and must still spread inside it",
    "growth": "what has come into a server must still be doubled inside, one message at a time",
    "message": "all of these once more, with a latency for every message that a runtime can send",
    "reduce": "2(n-1) messages for every piece, at the prices of the best packing of trees",
})  # fmt: skip

ASSUMED = (
    "messages go from one rank to one rank: switches copy and add nothing; bytes are not mixed"
)
"""What all of them assume."""

WORLDS: Mapping[str, str] = MappingProxyType({
    "any": "every algorithm, chunking and batching",
    "program": "every program of the runtime, whose messages have a largest size",
    "fixed": "every algorithm with this chunk count and one chunk to a message",
    "sketch": "every algorithm, chunking and batching on the links that the sketch allows",
})  # fmt: skip
