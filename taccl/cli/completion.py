"""What the shell offers while a value is typed.

Names come from the same texts that help shows, and from the shipped files. Where nothing fits, the
shell goes on with file names.
"""

from collections.abc import Callable

Offer = Callable[[str], list[str]]
"""From what was typed to what it may become."""


def listed(names: str) -> Offer:
    """Offer the names of a text such as ``occupy, delay``."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in names.split(", ") if name.startswith(incomplete.lower())]

    return offer


def shipped(folder: str) -> Offer:
    """Offer the names of the files in ``topologies`` or ``sketches``."""

    def offer(incomplete: str) -> list[str]:
        from taccl.topology_file import shipped_names

        return [name for name in shipped_names(folder) if name.startswith(incomplete.lower())]

    return offer
