"""A claim about many cases is one test: it goes through all of them and names those that fail."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import pytest

Test = Callable[..., None]
Case = tuple[str, dict[str, Any]]
"""What it is called, and what the test is given."""
LONGEST = 100
"""Characters of values that a case is called by."""


def for_each(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[object] | Callable[..., str] | None = None,
    quick: int | None = None,
    parts: int = 1,
) -> Callable[[Test], Test]:
    """Have a test go through cases in a loop; two of these go through all combinations.

    Fixtures are made once for all cases. ``quick`` and ``parts`` are for the outermost one.

    Parameters
    ----------
    names, values
        As of ``pytest.mark.parametrize``.
    ids
        What the cases are called, if not by their values: a text for each, or a function of it.
    quick
        How many cases ``make check`` tries, spread over all; the test of the others is marked
        slow. None are left to it by default.
    parts
        How many tests the cases are dealt out to, which processes share.

    Notes
    -----
    What fails first is shown, with the names of all cases that fail. It is a skip where every case
    is one, or none is there.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    single = isinstance(names, str) and len(fields) == 1
    rows = [(value,) if single else tuple(value) for value in values]
    if ids is None or callable(ids):
        texts = [ids(*row) if ids else ", ".join(map(repr, row))[:LONGEST] for row in rows]
    else:
        texts = [str(text) for text in ids]
    own = [
        (text, dict(zip(fields, row, strict=True))) for text, row in zip(texts, rows, strict=True)
    ]

    def decorate(test: Test) -> Test:
        body, inside, further_fields = getattr(test, "swept", (test, [("", {})], ()))
        cases: list[Case] = [
            (", ".join(filter(None, (text, further))), case | more)
            for text, case in own
            for further, more in inside
        ]
        loop = _looped(test, body, {*fields, *further_fields}, _dealt(cases, quick, parts))
        loop.swept = body, cases, (*fields, *further_fields)  # type: ignore[attr-defined]
        return loop

    return decorate


def spread(total: int, count: int) -> set[int]:
    """Return some of the numbers up to a total, evenly spread, and by their remainders as well."""
    step = next(n for n in range(round(0.618 * total) or 1, 2 * total) if math.gcd(n, total) == 1)
    return {at * step % total for at in range(count)}


def _dealt(cases: list[Case], quick: int | None, parts: int) -> dict[str, tuple[list[Case], bool]]:
    """Return the cases of each test by its name, and whether it is slow."""
    kinds = [("", cases, False)]
    if quick is not None and quick < len(cases):
        drawn = spread(len(cases), quick)
        rest = [case for at, case in enumerate(cases) if at not in drawn]
        kinds = [("some", [cases[at] for at in sorted(drawn)], False), ("others", rest, True)]
    dealt: dict[str, tuple[list[Case], bool]] = {}
    for kind, some, slow in kinds:
        hands = min(parts, len(some)) or 1
        for hand in range(hands):
            name = f"{kind} {hand + 1} of {hands}".strip() if hands > 1 else kind
            dealt[name] = some[hand::hands], slow
    return dealt


class _Ends:
    """Keeps how each case ends, so that those behind it have their turn."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self.skipped: list[BaseException] = []
        self.now = ""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, pytest.skip.Exception):
            self.skipped.append(error)
        elif isinstance(error, (Exception, pytest.fail.Exception)):
            self.failed.append((self.now, error))
        else:
            return False
        return True


def _looped(
    test: Test, body: Test, fields: set[str], tests: dict[str, tuple[list[Case], bool]]
) -> Test:
    needed = [p for p in inspect.signature(body).parameters.values() if p.name not in fields]

    @functools.wraps(test)
    def loop(**fixtures: object) -> None:
        cases, _ = tests[str(fixtures.pop("cases", ""))]
        if not cases:
            pytest.skip("there are no cases")
        ends = _Ends()
        for ends.now, case in cases:
            with ends:
                body(**fixtures, **case)
        if ends.failed:
            text, first = ends.failed[0]
            first.add_note(f"case: {text}")
            if others := [text for text, _ in ends.failed[1:]]:
                first.add_note(f"{len(ends.failed)} of {len(cases)} cases fail, also: {others}")
            raise first
        if len(ends.skipped) == len(cases):
            raise ends.skipped[0]

    if set(tests) != {""}:
        needed.append(inspect.Parameter("cases", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        marked = [
            pytest.param(name, marks=[pytest.mark.slow] * slow) for name, (_, slow) in tests.items()
        ]
        loop = pytest.mark.parametrize("cases", marked)(loop)
    loop.__signature__ = inspect.Signature(needed)  # type: ignore[attr-defined]
    return loop
