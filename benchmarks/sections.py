"""Parts of a page, each written by a command, from ``<!-- NAME -->`` to ``<!-- /NAME -->``."""

from pathlib import Path

from benchmarks.opening import refreshed


def replace_section(page: Path, name: str, text: str) -> None:
    """Write a part of a page, at its end where the page does not have it yet, and its opening."""
    old = page.read_text() if page.exists() else ""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    part = f"{begin}{text}{end}"
    if begin in old and end in old:
        before, after = old[: old.index(begin)], old[old.index(end) + len(end) :]
        page.write_text(refreshed(before + part + after))
    else:
        page.write_text(refreshed(f"{old}\n{part}" if old else part))
