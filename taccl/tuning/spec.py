"""What a candidate is: one search for a schedule, and everything its result depends on.

A task is plain text (JSON), so that any executor can carry it to any machine, and its key is the
hash of that text: two tasks with one key have one result.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import taccl
from taccl.units import counted

PACKAGES = ("ortools", "highspy", "numpy", "scipy", "numba", "igraph")
"""What results depend on, beside this program."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One candidate.

    Parameters
    ----------
    collective
        A name of COLLECTIVES.
    engine
        A name of ENGINES or CLASSICAL.
    size
        Bytes that the search is for.
    chunks
        For each rank (and pair).
    sketch
        Its place among the sketches; None: the whole topology.
    instances
        Copies of the program; 0: as many as the replay finds worth it.
    effort
        Seconds for the engine, or work counted in the place of seconds.
    seed
        For the solvers.
    batch
        Whether chunks may travel together, in one message.
    """

    collective: str
    engine: str
    size: int
    chunks: int = 1
    sketch: int | None = None
    instances: int = 0
    effort: float = 0.0
    seed: int = 0
    batch: bool = True

    def told(self, sketches: Sequence[str] = ()) -> str:
        """Return the candidate in words."""
        words = [self.engine, f"{counted(self.chunks, 'chunk')} a rank"]
        if not self.batch:
            words.append("one to a message")
        if self.sketch is not None and self.sketch < len(sketches):
            words.append(f"sketch {sketches[self.sketch]}")
        if self.instances > 1:
            words.append(f"{self.instances} instances")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Machine:
    """The network that a candidate is for, as text.

    Parameters
    ----------
    topology
        A topology file in the core form.
    sketch
        The text of a sketch file; None: no sketch.
    """

    topology: str
    sketch: str | None = None

    @property
    def digest(self) -> str:
        """The hash of both."""
        return digest_of([self.topology, self.sketch])


@dataclass(frozen=True, slots=True)
class Setting:
    """What all candidates of a run share.

    Parameters
    ----------
    machines
        The network without a sketch, then under each sketch.
    names
        Of the sketches.
    sizes
        Bytes, ascending: where every program is replayed.
    runtime
        A name of RUNTIMES.
    protocols
        Of PROTOCOLS, the preferred one first.
    deterministic
        Whether searches count work instead of seconds.
    """

    machines: tuple[Machine, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    runtime: str
    protocols: tuple[str, ...] = ("Simple", "LL128", "LL")
    deterministic: bool = True

    def task(self, spec: Spec) -> str:
        """Return a candidate as text, with all that its result depends on."""
        machine = self.machines[0 if spec.sketch is None else spec.sketch + 1]
        return canonical({
            "spec": asdict(spec),
            "topology": machine.topology,
            "sketch": machine.sketch,
            "sizes": list(self.sizes),
            "runtime": self.runtime,
            "protocols": list(self.protocols),
            "deterministic": self.deterministic,
            "versions": versions(),
            "code": code_digest(),
        })  # fmt: skip


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value's JSON text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def key_of(task: str) -> str:
    """Return the name of a task's result."""
    return hashlib.sha256(task.encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return the hash of this package's source files."""
    found = hashlib.sha256()
    root = Path(taccl.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    found = {"taccl": taccl.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
