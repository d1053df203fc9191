"""A real browser without a window, driven over the Chrome DevTools Protocol.

Chromium reads commands from file descriptor 3 and answers on 4 (``--remote-debugging-pipe``): one
JSON object each, ended by a zero byte. So the standard library is all that it takes.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60
"""Seconds to wait for an answer: only a browser that hangs takes so long."""

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-quic", "--disable-extensions", "--mute-audio", "--window-size=1200,900",
    "--remote-debugging-pipe",
]  # fmt: skip

Message = dict[str, Any]


class Browser:
    """A running Chromium; pages are opened one after the other."""

    def __init__(self, profile: Path) -> None:
        if CHROMIUM is None:
            raise FileNotFoundError("chromium")
        ours, theirs = _pipe(), _pipe()
        arguments = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = os.open(os.devnull, os.O_RDWR)
        self.process = os.posix_spawn(
            CHROMIUM, arguments, {**os.environ, "HOME": str(profile)}, setpgroup=0,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, quiet, stream) for stream in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, theirs[0], 3), (os.POSIX_SPAWN_DUP2, ours[1], 4),
            ],
        )  # fmt: skip
        for descriptor in (quiet, theirs[0], ours[1]):
            os.close(descriptor)
        self.reads, self.writes = ours[0], theirs[1]
        self.text = b""
        self.number = 0
        self.events: list[Message] = []
        self.command("Browser.getVersion")

    def command(self, method: str, session: str | None = None, **parameters: object) -> Message:
        """Send a command and return its result; events that come first are kept."""
        self.number += 1
        message: Message = {"id": self.number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: Message = answer["result"]
                return found
            self.events.append(answer)

    def _next(self) -> Message:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.text:
            ready, _, _ = select.select([self.reads], [], [], until - time.monotonic())
            assert ready, "the browser does not answer"
            more = os.read(self.reads, 1 << 20)
            assert more, "the browser has ended"
            self.text += more
        first, self.text = self.text.split(b"\0", 1)
        found: Message = json.loads(first)
        return found

    @contextlib.contextmanager
    def page(self, path: Path) -> Iterator["Page"]:
        """Open a file in a new tab, which is closed in the end."""
        self.events.clear()
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.command(f"{domain}.enable")
            page.command("Page.navigate", url=path.as_uri())
            page.wait("document.readyState === 'complete' && location.protocol === 'file:'")
            yield page
        finally:
            self.command("Target.closeTarget", targetId=target)

    def close(self) -> None:
        """End the browser and all it has started."""
        for descriptor in (self.reads, self.writes):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


class Page:
    """A tab that shows one page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def command(self, method: str, **parameters: object) -> Message:
        """Send a command to this tab."""
        return self.browser.command(method, self.session, **parameters)

    def run(self, script: str) -> Any:  # noqa: ANN401 - JSON
        """Return the value of an expression; a promise is waited for."""
        found = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.02)

    def drawn(self) -> None:
        """Wait until all that was asked for is drawn."""
        self.run("new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """Move, press or release the mouse, or turn its wheel, at a place of the window."""
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button at a place of the window."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key)

    def at(self, selector: str, x: float = 0, y: float = 0) -> tuple[float, float]:
        """Scroll to an element and return a place in it, in coordinates of the window."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'start'}); const b = e.getBoundingClientRect();"
            " return [b.left, b.top]; })()"
        )
        return box[0] + x, box[1] + y

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        found = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        assert isinstance(found, str)
        return found

    def complaints(self) -> list[str]:
        """Return what the console, the log and exceptions said since the page was opened."""
        self.run("0")
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [json.dumps(e["params"]) for e in self.browser.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        sent = (e for e in self.browser.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]


def _pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are not among those that a new process is to have."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
