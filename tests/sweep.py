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
        body, inside = getattr(test, "swept", (test, [("", {})]))
        cases: list[Case] = [
            (", ".join(filter(None, (text, further))), case | more)
            for text, case in own
            for further, more in inside
        ]
        return _looped(test, body, cases, _dealt(cases, quick, parts))

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
    return {
        f"{kind} {part + 1} of {parts}".strip() if parts > 1 else kind: (some[part::parts], slow)
        for kind, some, slow in kinds
        for part in range(parts)
    }


class _Kept:
    """Keeps what fails for later, so that the cases behind it have their turn."""

    def __init__(self, text: str, failures: list[tuple[str, BaseException]]) -> None:
        self.text, self.failures = text, failures

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: object, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, (Exception, pytest.fail.Exception)):
            return False
        self.failures.append((self.text, error))
        return True


def _looped(
    test: Test, body: Test, cases: list[Case], tests: dict[str, tuple[list[Case], bool]]
) -> Test:
    given = cases[0][1] if cases else {}
    fixtures = [p for p in inspect.signature(body).parameters.values() if p.name not in given]

    @functools.wraps(test)
    def loop(**fixtures: object) -> None:
        some, _ = tests[str(fixtures.pop("cases", ""))]
        failures: list[tuple[str, BaseException]] = []
        for text, case in some:
            with _Kept(text, failures):
                body(**fixtures, **case)
        if failures:
            text, first = failures[0]
            first.add_note(f"case: {text}")
            if others := [text for text, _ in failures[1:]]:
                first.add_note(f"{len(failures)} of {len(some)} cases fail, also: {others}")
            raise first

    if set(tests) != {""}:
        fixtures.append(inspect.Parameter("cases", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        marked = [
            pytest.param(name, marks=[pytest.mark.slow] * slow) for name, (_, slow) in tests.items()
        ]
        loop = pytest.mark.parametrize("cases", marked)(loop)
    loop.swept = body, cases  # type: ignore[attr-defined]
    loop.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
    return loop
