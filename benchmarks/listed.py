"""Arguments of benchmarks that are names with commas between."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable


def listed(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads a list of names for ``argparse``, which makes a wrong one an error.

    Parameters
    ----------
    known
        Names that there are.
    """
    names = tuple(known)

    def read(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in names:
                raise ArgumentTypeError(f"there is no {name!r}, but {', '.join(names)}")
        return found

    return read
