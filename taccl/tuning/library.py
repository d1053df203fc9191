"""The directory that a run writes: programs, an index that says why, and how to load them.

``algorithms/`` holds nothing but files of the runtime, as a scan of the directory ends at any
other. No text holds a time of day, a path or how long anything took: the same results make the
same bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby, pairwise

from taccl.msccl.deploy import DEPLOYMENTS
from taccl.msccl.program import Program
from taccl.msccl.runtimes import LOADED_BY
from taccl.msccl.verdict import CALLS
from taccl.msccl.xml import write_xml
from taccl.replay.nccl import described
from taccl.replay.sweep import BoundAt
from taccl.report.export_nccl import TUNER_HEAD, tuner_row
from taccl.report.text import us
from taccl.topology.graph import Topology
from taccl.tuning.candidate import Outcome, Setting, code_digest, versions
from taccl.tuning.choice import SLACK, Chooser, Entry, Range
from taccl.units import Time

FOLDER = "algorithms"
MSCCL_FOLDER = "msccl"
"""For the second spelling of a portable reduce-scatter."""

MOST_MSCCL = 4
"""Files that msccl takes: MSCCL_MAX_NUM_ALGOS."""

MODEL = (
    "Times are replays of the programs on the topology (docs/concepts.md), with what protocols"
    " cost in bytes; the launch of the kernel and what LL saves in latency are not in them."
)

MEASURED_MODEL = "Times are replays of the programs with the measured costs of the topology."

NCCL_MODEL = (
    "NCCL's own time model of ring and tree; its sizes are left to it where its time is less than"
    " the replay plus what NCCL's model counts for starting a kernel of the same protocol."
)


@dataclass(frozen=True, eq=False)
class Library:
    """All that is known when a run is over: the `setting` that was searched, and all `outcomes`.

    Of each collective there are its chooser, the ranges `chosen`, and its bounds; `asked` is how
    the run was asked for, as the index tells it.
    """

    setting: Setting
    topology: Topology
    outcomes: tuple[Outcome, ...]
    choosers: tuple[Chooser, ...]
    chosen: tuple[tuple[Range, ...], ...]
    bounds: tuple[BoundAt, ...]
    asked: Mapping[str, object]

    @cached_property
    def files(self) -> dict[str, str]:
        """The programs' files by their names in the directory."""
        texts: dict[str, str] = {}
        for name, program in self.programs:
            texts[f"{FOLDER}/{name}"] = write_xml(program, self.setting.runtime)
            if self.setting.runtime in LOADED_BY and program.collective == "reducescatter":
                texts[f"{MSCCL_FOLDER}/{name}"] = write_xml(program, "msccl")
        return texts

    @property
    def programs(self) -> Iterator[tuple[str, Program]]:
        """Names and programs of all files."""
        for chooser, ranges in zip(self.choosers, self.chosen, strict=True):
            for number, one in enumerate(ranges):
                if one.program is not None:
                    yield _name(chooser, number, one), one.program

    @cached_property
    def index(self) -> dict[str, object]:
        """The index."""
        machine = next((one.machine for one in self.choosers if one.machine), None)
        return {
            "taccl": "library/1",
            "topology": {
                "name": self.topology.name,
                "ranks": self.topology.num_ranks,
                "servers": self.topology.num_servers,
                "alpha_rule": self.topology.alpha_rule_stated,
                "profile": "measured" if self.setting.measured else "alpha-beta",
                "sha256": self.setting.machines[0].digest,
            },
            "sketches": [
                {"name": name, "sha256": machine.digest}
                for name, machine in zip(self.setting.names, self.setting.machines[1:], strict=True)
            ],
            "runtime": self.setting.runtime,
            "protocols": list(self.setting.protocols),
            "sizes": list(self.setting.sizes),
            "slack_percent": SLACK,
            **self.asked,
            "model": MEASURED_MODEL if self.setting.measured else MODEL,
            "nccl_model": f"{NCCL_MODEL} Inputs: {described(machine)}." if machine else None,
            "versions": versions(),
            "code_sha256": code_digest(),
            "collectives": [self._collective(number) for number in range(len(self.choosers))],
        }

    def _collective(self, number: int) -> dict[str, object]:
        chooser, ranges = self.choosers[number], self.chosen[number]
        own = [one for one in self.outcomes if one.spec.collective == chooser.collective]
        searched = [one for one in own if not one.spec.is_classical]
        return {
            "collective": chooser.collective,
            "call": CALLS[chooser.collective],
            "ranges": [self._range(chooser, place, one) for place, one in enumerate(ranges)],
            "sizes": [self._size(number, place) for place in range(len(self.setting.sizes))],
            "candidates": {
                "searched": len(searched),
                "classical": len(own) - len(searched),
                "programs": len(chooser.entries),
                "without_program": sum(not one.played and not one.failed for one in searched),
                "failed": [
                    {"candidate": one.spec.told(self.setting.names), "reason": one.reason}
                    for one in own
                    if one.failed
                ],
            },
        }  # fmt: skip

    def _range(self, chooser: Chooser, number: int, one: Range) -> dict[str, object]:
        """Return what the index says of a range."""
        found: dict[str, object] = {"min_bytes": one.low, "max_bytes": one.high}
        sizes = [place for place, size in enumerate(chooser.sizes) if one.low <= size <= one.high]
        if one.program is None or one.entry is None:
            served = "nccl" if one.left else "nothing"
            divisors = {entry.played.divisor for entry in chooser.entries}
            where = "here"
            if (
                sizes
                and divisors
                and all(chooser.sizes[place] % each for place in sizes for each in divisors)
            ):
                where = f"at sizes that are no multiples of {min(divisors)} bytes"
            why = f"no program found runs {where}: the runtime's own algorithm does"
            if one.left:
                ways = dict.fromkeys(way.way for place in sizes if (way := chooser.ways[place]))
                own = f"NCCL's own {' and '.join(ways)}"
                why = f"{own} is faster by its model than every program here"
            return {**found, "file": None, "served_by": served, "why": why}
        entry, program = chooser.entries[one.entry], one.program
        spec, name = entry.outcome.spec, _name(chooser, number, one)
        text = self.files[f"{FOLDER}/{name}"]
        modes = (("in place", program.in_place), ("out of place", program.out_of_place))
        return {
            **found,
            "file": f"{FOLDER}/{name}",
            "served_by": "file",
            "why": _why(chooser, sizes, entry),
            "engine": spec.engine,
            "made_for_bytes": spec.size,
            "chunks": spec.chunks,
            "batch": spec.batch,
            "sketch": None if spec.sketch is None else self.setting.names[spec.sketch],
            "instances": entry.played.instances,
            "protocol": program.protocol,
            "seed": spec.seed,
            "effort": spec.effort,
            "modes": [word for word, served in modes if served],
            "divisor_bytes": entry.played.divisor,
            "safe_up_to_bytes": entry.played.safe,
            "verified_at_bytes": list(chooser.verified(one)),
            "steps": entry.played.steps,
            "threadblocks": entry.played.threadblocks,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }

    def _size(self, number: int, place: int) -> dict[str, object]:
        """Return what the index says of a size."""
        chooser, size = self.choosers[number], self.setting.sizes[place]
        kind, bound = self.bounds[number](size) or (None, None)
        turn, one = next(
            (turn, one)
            for turn, one in enumerate(self.chosen[number])
            if one.low <= size <= one.high
        )
        best, textbook = chooser.fastest(place), chooser.fastest(place, textbook=True)
        served = None if one.entry is None else chooser.entries[one.entry]
        time, least, known = (
            entry.played.times[place] if entry else None for entry in (served, best, textbook)
        )
        way = chooser.ways[place]
        return {
            "size_bytes": size,
            "file": None if one.entry is None else f"{FOLDER}/{_name(chooser, turn, one)}",
            "time_us": us(time),
            "bound_us": us(bound),
            "bound_kind": kind,
            "gap": _ratio(time, bound, less=1),
            "best_us": us(least),
            "over_best": _ratio(time, least),
            "classical": textbook.outcome.spec.engine if textbook else None,
            "classical_us": us(known),
            "over_classical": _ratio(time, known),
            "bound_over_classical": _ratio(bound, known),
            "nccl": way.way if way else None,
            "nccl_us": us(way.time) if way else None,
        }

    @cached_property
    def texts(self) -> dict[str, str]:
        """All files by their names in the directory, but the report."""
        found = {"index.json": json.dumps(self.index, indent=1) + "\n", **self.files}
        found["environment.sh"] = environment(self)
        rows = list(tuner_rows(self))
        if rows:
            found["nccl_tuner.csv"] = "\n".join([TUNER_HEAD, *rows]) + "\n"
        return found


def _why(chooser: Chooser, sizes: Sequence[int], entry: Entry) -> str:
    """Return why a program serves the sizes at these places."""
    losses = []
    for place in sizes:
        time, best = entry.played.times[place], chooser.fastest(place)
        least = best.played.times[place] if best else None
        if time is not None and least is not None:
            losses.append(Fraction(time, least) - 1 if time != least else Fraction(0))
    fastest = losses.count(Fraction(0))
    told = (
        f"the fastest of {len(chooser.entries)} programs at {fastest} of the {len(losses)} sizes"
        " in it"
    )
    if fastest < len(losses):
        most = float(max(losses)) * 100
        told += f", at most {most:.2f} % slower at the others: one file less"
    return told


def tuner_rows(library: Library) -> Iterator[str]:
    """Yield rows for NCCL's tuner plug-in, where NCCL's own algorithms are the answer."""
    ranks, servers = library.topology.num_ranks, library.topology.num_servers
    for chooser, ranges in zip(library.choosers, library.chosen, strict=True):
        for one in ranges:
            if not one.left:
                continue
            inside = (
                (size, way)
                for size, way in zip(chooser.sizes, chooser.ways, strict=True)
                if way is not None and one.low <= size <= one.high
            )
            starts = [next(group) for _, group in groupby(inside, key=lambda each: each[1].way)]
            lows = [one.low, *(size for size, _ in starts[1:]), one.high + 1]
            for (_, way), (low, after) in zip(starts, pairwise(lows), strict=True):
                yield tuner_row(chooser.collective, (low, after - 1), way.way, (servers, ranks))


def environment(library: Library) -> str:
    """Return a shell file that makes a runtime load the library, wherever it lies."""
    runtime = library.setting.runtime
    lines = [
        "# How to load this library: source this file before the program starts, on every node.",
        'here=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)',
    ]
    programs = list(library.programs)
    for name in LOADED_BY.get(runtime, (runtime,)):
        row, told = DEPLOYMENTS[name], []
        folders = (MSCCL_FOLDER, FOLDER) if name == "msccl" else (FOLDER,)
        files = [
            next(path for folder in folders if (path := f"{folder}/{file}") in library.files)
            for file, _ in programs
        ]
        for note in (*row.variables, *row.needed):
            if any(note.when(program) for _, program in programs):
                paths = ":".join(f"$here/{file}" for file in files[:MOST_MSCCL])
                text = note.text.format(path=paths, directory=f"$here/{FOLDER}")
                variable, value = text.split("=", 1)
                told.append(f'export {variable}="{value}"')
        pitfalls = {
            note.text.format(chunks="the file's nchunksperloop"): None
            for note in row.pitfalls
            if any(note.when(program) for _, program in programs)
        }
        lines += ["", f"# {name}{row.version}", *told, *(f"# note: {text}" for text in pitfalls)]
        if name == "msccl" and len(files) > MOST_MSCCL:
            rest = ", ".join(files[MOST_MSCCL:])
            lines.append(f"# note: msccl takes {MOST_MSCCL} files; not in the list: {rest}")
    if any(tuner_rows(library)):
        lines += ["", "# where NCCL's own algorithms are faster (NCCL's example tuner plug-in)",
                  "# export NCCL_TUNER_PLUGIN=libnccl-tuner-example.so",
                  '# export NCCL_TUNER_CONFIG_FILE="$here/nccl_tuner.csv"']  # fmt: skip
    return "\n".join(lines) + "\n"


def entries_of(collective: str, outcomes: Sequence[Outcome]) -> tuple[Entry, ...]:
    """Return the programs of a `collective` among `outcomes`, in the order of these."""
    return tuple(
        Entry(outcome, played)
        for outcome in outcomes
        if outcome.spec.collective == collective
        for played in outcome.played
    )


def _name(chooser: Chooser, number: int, one: Range) -> str:
    spec = chooser.entries[one.entry or 0].outcome.spec
    return f"{chooser.collective}-{number + 1:02d}-{spec.engine}.xml"


def _ratio(time: Time | None, other: Time | None, less: int = 0) -> float | None:
    return float(Fraction(time, other) - less) if time is not None and other else None
