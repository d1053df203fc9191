"""Which files a command has written, told by the files themselves: for the second Ctrl-C."""

from collections.abc import Iterator, Sequence
from pathlib import Path

MAX_NAMED = 8

States = dict[Path, tuple[int, int, int]]
"""Device, inode and time of the last change of files: one that is replaced has another inode."""


def states_of(outputs: Sequence[Path | None]) -> States:
    """Return the states of the outputs that exist, those in a directory one by one."""
    found: States = {}
    for file in _files(outputs):
        try:
            known = file.stat()
        except (OSError, ValueError):
            continue
        found[file] = (known.st_dev, known.st_ino, known.st_mtime_ns)
    return found


def _files(outputs: Sequence[Path | None]) -> Iterator[Path]:
    for path in outputs:
        if path is not None:
            yield from path.iterdir() if path.is_dir() else [path]


def told(before: States, after: States) -> str:
    """Return what an interrupted command has written between two moments."""
    written = sorted(str(path) for path, state in after.items() if before.get(path) != state)
    if not written:
        return "interrupted before anything could be written"
    more = f" and {len(written) - MAX_NAMED} more" if len(written) > MAX_NAMED else ""
    return f"interrupted after writing {', '.join(written[:MAX_NAMED])}{more}, and nothing else"
