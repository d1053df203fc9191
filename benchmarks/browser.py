"""Open a page of 64 ranks and over 100 000 spans in Chromium: ``python -m benchmarks.browser``.

Prints how large the page is, how long it takes until it is first painted, and how long a zoom, a
click and a step of the chunks take until they are painted. Returns 1 when one is above its limit.
The limits leave room for a machine that others use, too.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.report.browser import CHROMIUM, Browser, Page

MACHINE = ("dgx-a100", "--nodes", "8")
MIN_SPANS = 100_000
TIMELINE = "section > canvas"

LIMITS = {
    "page, MB": 4.0,
    "first paint, s": 4.0,
    "zoom, s": 0.4,
    "zoom with low rows, s": 0.4,
    "click, s": 0.4,
    "step of the chunks, s": 0.6,
}


def taccl(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "taccl", *words], check=True, capture_output=True)


def make_page(folder: Path) -> Path:
    """Return the page of a ring all-reduce on 64 ranks, at a size that needs many slices."""
    program, found = folder / "ring.xml", folder / "page.html"
    taccl(
        "synthesize", MACHINE[0], "allreduce", *MACHINE[1:], "--engine", "ring",
        "--size", "64MB", "--max-bytes", "1GB", "--quiet", "-o", str(program),
    )  # fmt: skip
    taccl("evaluate", str(program), "--topology", *MACHINE, "--size", "600MB", "--html", str(found))
    return found


def spans_of(found: Path) -> int:
    """Return how many spans a page shows."""
    data = found.read_text().split('<script id="data" type="text/plain">')[1].split("<")[0]
    return sum(view["total"] for view in json.loads(zlib.decompress(base64.b64decode(data))))


def seconds(act: Callable[[], object], page: Page) -> float:
    """Return how long something takes until it is painted."""
    start = time.perf_counter()
    act()
    page.drawn()
    return time.perf_counter() - start


def median(act: Callable[[], object], page: Page, times: int = 5) -> float:
    """Return the middle of some runs."""
    return sorted(seconds(act, page) for _ in range(times))[times // 2]


def press(page: Page, selector: str) -> None:
    """Press a button."""
    page.run(f"document.querySelector({selector!r}).click()")


def shows_a_step(page: Page, x: float, y: float) -> bool:
    """Tell whether a click at a place shows a step: there may be no span."""
    page.click(x, y)
    return "\nstep\n" in page.text("section > dl.detail")


def measure(folder: Path, found: Path) -> dict[str, float]:
    """Return all measures of a page."""
    measured = {"page, MB": found.stat().st_size / 1e6}
    browser = Browser(folder / "profile")
    start = time.perf_counter()
    with browser.page(found) as page:
        page.wait("document.body.dataset.ready === 'yes'")
        page.drawn()
        measured["first paint, s"] = time.perf_counter() - start
        place = page.at(TIMELINE, 600, 200)

        def turn() -> None:
            page.mouse("mouseWheel", *place, deltaX=0, deltaY=-20)

        measured["zoom, s"] = median(turn, page)
        press(page, "button[data-do=all]")
        for _ in range(3):
            press(page, "button[data-do=lower]")
        page.drawn()
        measured["zoom with low rows, s"] = median(turn, page)
        measured["click, s"] = median(lambda: page.click(*place), page)
        press(page, "button[data-do=all]")
        if not any(shows_a_step(page, place[0], place[1] + row) for row in range(300)):
            raise SystemExit("no click showed a step")
        press(page, "button[data-go=last]")
        measured["step of the chunks, s"] = median(
            lambda: press(page, "button[data-go=back]"), page
        )
        said = page.complaints()
    browser.close()
    if said:
        raise SystemExit(f"the browser complains: {said}")
    return measured


def main() -> int:
    """Measure, print, and compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="measure this page instead")
    given = parser.parse_args().page
    if CHROMIUM is None:
        print("chromium is not installed")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = given or make_page(folder)
        spans, measured = spans_of(found), measure(folder, found)
    print(f"{spans} spans")
    missed = int(spans < MIN_SPANS)
    for what, value in measured.items():
        missed += value > LIMITS[what]
        print(f"{what:<24}{value:8.3f}  at most {LIMITS[what]:g}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
