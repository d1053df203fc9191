"""What the house counts, on a package of three modules."""

from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.house import Module, aims, chain, measured

RINGS = '''
    """Rings."""
    from functools import cache
    from time import monotonic
    from typing import TYPE_CHECKING

    import typer

    if TYPE_CHECKING:
        from fake.trees import tree

    def ring(ranks: int, root: int) -> int:
        """Return a ring.

        Parameters
        ----------
        ranks, root
            A count and a rank.

        Returns
        -------
        time
            Picoseconds.
        """
        return _once(ranks) + sum(map(_given, range(root))) + sum(_yielded(root)) + _long(ranks)

    def turned(ranks: int, *, by: int) -> int:
        """Return the ring of ``ranks`` turned ``by`` so many places."""
        return _twice(ranks) + _twice(by) + _kept(_again(ranks))

    def halved(ranks: int, by: int) -> int:
        """Return half of the ranks, by what is asked."""
        return ranks // by

    def one(ranks: int) -> int:
        return ranks

    def _once(ranks: int) -> int:
        """Return one less."""
        if ranks:
            return ranks - 1
        return 0

    def _long(ranks: int) -> int:
        ranks += 1
        ranks += 2
        ranks += 3
        ranks += 4
        return ranks

    def _given(rank: int) -> int:
        return rank

    def _yielded(rank: int):
        yield rank

    def _twice(rank: int) -> int:
        return rank

    def _again(rank: int) -> int:
        return rank and _again(rank - 1)

    Root = Annotated[int, typer.Option("--root")]

    def command(ranks: int, root: Root) -> None:
        """Print a ring."""

    @cache
    def _kept(rank: int) -> int:
        return rank
'''

TREES = '''
    """Trees."""
    from fake import rings

    def tree() -> int:
        from fake.units import unit
        return rings.one(unit())
'''


@pytest.fixture
def fake(tmp_path: Path) -> list[Module]:
    folder = tmp_path / "fake"
    folder.mkdir()
    files = {"__init__": '"""A fake."""\n', "rings": RINGS, "trees": TREES, "units": ""}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    return measured(folder)


def test_helpers_that_need_no_function_are_those_called_once_and_short(fake: list[Module]) -> None:
    rings = next(one for one in fake if one.name == "fake.rings")
    assert rings.inlinable == ("_once",)
    assert (rings.public, rings.private) == (5, 7)


def test_parameters_are_named_in_their_section_or_in_backticks(fake: list[Module]) -> None:
    rings = next(one for one in fake if one.name == "fake.rings")
    assert (rings.named, rings.unnamed) == (("ring", "turned"), ("halved",))


def test_imports_for_types_alone_make_no_chain(fake: list[Module]) -> None:
    assert chain({one.name: one.imports for one in fake}) == ["fake.trees", "fake.rings"]


def test_the_counts_stand_beside_their_aims(fake: list[Module]) -> None:
    found = [(one.title.partition(" of ")[0], round(one.found, 2), one.met) for one in aims(fake)]
    assert found == [
        ("modules", 4, True),
        ("lines", 78, True),
        ("modules in the longest chain", 2, True),
        ("private functions for each public one", 1.17, False),
        ("private functions with one caller and at most 4 statements", 1, False),
        ("%", 66.67, False),
        ("modules that ask a clock", 1, True),
    ]
    assert [one.worst for one in aims(fake) if "caller" in one.title] == [("fake.rings 1",)]
