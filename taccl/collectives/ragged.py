"""Parts of unequal lengths, one after the other in flat arrays."""

import numpy as np
from numpy.typing import NDArray


def places_in(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the place of every entry in its own part, for parts of these `lengths`."""
    first = np.cumsum(lengths, dtype=np.int64) - lengths
    places: NDArray[np.int64] = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
    return places


def equals_before(keys: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return for each of some `keys`, not negative, how many equal ones come before it."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    before = np.empty(len(keys), dtype=np.int32)
    before[order] = places_in(np.diff(first, append=len(keys)))
    return before
