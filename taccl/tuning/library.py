"""The directory that a run writes: programs, an index that says why, and how to load them.

``algorithms/`` holds nothing but files of the runtime, as a scan of the directory ends at any
other. No text holds a time of day, a path or how long anything took: the same results make the
same bytes.

**MSCCL++ plans** are a library of their own, with an index and what loads them. The run chooses
programs and their ranges of sizes as it does for XML. Each becomes a plan for calls in place and
one for calls out of place, as far as the program serves them: of the plans that are best at the
first, the middle and the last size of the range, the one that takes least on average over all its
sizes, by replay. All are judged right. The index is that of a library of XML; its times are those
of the plans, the slower mode where there are two.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby, pairwise
from math import lcm, prod
from pathlib import Path
from typing import Any

from taccl.apps.plans import ALIGNMENT, Made, Wanted, best_fan_plan, best_plan
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import LoweringError
from taccl.lowering.plans import asks
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.msccl.runtimes import DEPLOYMENTS, LOADED_BY
from taccl.msccl.verdict import CALLS
from taccl.msccl.xml import write_xml
from taccl.mscclpp import register
from taccl.mscclpp.plan import MAX_BUFFER, Plan
from taccl.mscclpp.structure import counted_chunks
from taccl.mscclpp.text import write_plan
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.nccl import described
from taccl.replay.plans import replay_plan
from taccl.replay.sweep import BoundAt
from taccl.report.export import TUNER_HEAD, tuner_row
from taccl.report.text import us
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.tuning.candidate import Outcome, Setting, code_digest, versions
from taccl.tuning.choice import SLACK, Chooser, Entry, Range
from taccl.units import Time
from taccl.verify import require_valid

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


PLAN_FOLDER = "plans"

MODES: Mapping[bool, str] = {True: "in place", False: "out of place"}

REGISTER = "register.py"
LOADING = "LOADING.md"

PLAN_MODEL = (
    "Times are replays of the plans on the topology (docs/concepts.md): a packet is twice its"
    " bytes, signals take alpha; of two modes the slower one."
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan of a range, and its times in picoseconds at the sizes that it accepts.

    `algorithm`: of IN_NETWORK, whose plan it is; None: the program's.
    """

    plan: Plan
    times: Mapping[int, Time]
    algorithm: str | None = None

    def named(self, name: str, low: int, high: int) -> "Chosen":
        """Return it by a `name`, for sizes from `low` to `high` bytes."""
        return replace(self, plan=replace(self.plan, name=name, min_bytes=low, max_bytes=high))

    @property
    def unit(self) -> int:
        """Bytes of which a size must be a multiple."""
        return lcm(*(
            max(1, self.plan.alignment) * counted_chunks(self.plan, rank)
            for rank in self.plan.ranks
        ))  # fmt: skip

    @property
    def scratch(self) -> int:
        """The most chunks of scratch that a rank has."""
        return max(rank.scratch_chunks for rank in self.plan.ranks)


def plan_texts(
    library: "Library", version: str, deadline: Deadline, machine: Topology
) -> dict[str, str]:
    """Return the files of a directory of plans, by their names, of what a `library` has chosen.

    The plans are for a `version` of MSCCL++. After the `deadline` each range gets the plan that is
    best at its middle. Where switches of the `machine` copy or add, the plans of their algorithms
    compete with that of the range's program.
    """
    index: dict[str, Any] = json.loads(json.dumps(library.index))
    index.update(runtime="mscclpp", protocols=["Simple", "LL"], model=PLAN_MODEL, nccl_model=None)
    texts, needs = dict[str, str](), dict[str, None]()
    for number, told in enumerate(index["collectives"]):
        chooser, spans = library.choosers[number], []
        fans = list(_on_switches(machine, chooser.collective, chooser.sizes[0]))
        for one, span in zip(library.chosen[number], told["ranges"], strict=True):
            for low, high, sizes, made in _pieces(one, fans, library, chooser, version, deadline):
                if not made:
                    spans.append(_nothing(span, low, high))
                    _timed(told["sizes"], sizes, None, [])
                    continue
                kept = min(high, *(each.plan.max_bytes for each in made.values()))
                stem = f"{chooser.collective}-{len(spans) + 1:02d}"
                named = [
                    each.named(f"{stem}-{each.algorithm or span['engine']}-{mode}", low, kept)
                    for mode, each in made.items()
                ]
                own = {f"{PLAN_FOLDER}/{each.plan.name}.json": write_plan(each.plan)
                       for each in named}  # fmt: skip
                texts.update(own)
                needs |= dict.fromkeys(text for each in named for text in asks(each.plan))
                spans.append({**_told(span, named, own), "min_bytes": low, "max_bytes": kept})
                if kept < high:
                    spans.append(_nothing(span, kept + 1, high))
                _timed(told["sizes"], sizes, next(iter(own)), named)
        told["ranges"] = spans
    texts["index.json"] = json.dumps(index, indent=1) + "\n"
    texts[REGISTER] = Path(register.__file__).read_text(encoding="utf-8")
    texts[LOADING] = _loading(index, version, list(needs))
    return texts


def _told(span: dict[str, Any], made: Sequence[Chosen], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return what the index says of a range: what it said, with its plans, by their `texts`."""
    plans = [
        {
            "name": one.plan.name, "file": file, "in_place": one.plan.in_place,
            "min_bytes": one.plan.min_bytes, "max_bytes": one.plan.max_bytes,
            "unit_bytes": one.unit, "protocol": one.plan.protocol, "scratch_chunks": one.scratch,
            "times_us": {str(size): us(time) for size, time in one.times.items()},
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        for one, (file, text) in zip(made, texts.items(), strict=True)
    ]  # fmt: skip
    blocks = [rank.blocks for one in made for rank in one.plan.ranks]
    found = {
        **span, "file": plans[0]["file"], "plans": plans,
        "modes": [MODES[one.plan.in_place] for one in made], "sha256": plans[0]["sha256"],
        "protocol": " or ".join(dict.fromkeys(one.plan.protocol for one in made)),
        "divisor_bytes": lcm(*(one.unit for one in made)),
        "safe_up_to_bytes": made[0].plan.max_bytes, "verified_at_bytes": [],
        "steps": max(len(block.ops) for each in blocks for block in each),
        "threadblocks": max(map(len, blocks)),
    }  # fmt: skip
    if made[0].algorithm is not None:
        why = f"what switches copy and add takes less than a plan of {span['engine']}"
        found |= {"engine": made[0].algorithm, "why": why, "chunks": 1, "batch": True,
                  "sketch": None, "instances": 1}  # fmt: skip
    return found


def _pieces(
    one: Range, fans: Sequence[tuple[str, Schedule]], library: "Library", chooser: Chooser,
    version: str, deadline: Deadline,
) -> Iterator[tuple[int, int, list[int], dict[str, Chosen]]]:  # fmt: skip
    """Yield the parts of a range that one algorithm each serves: its ends, sizes, plans by mode."""
    sizes = [size for size in chooser.sizes if one.low <= size <= one.high]
    found: dict[str | None, dict[str, Chosen]] = {}
    if one.program is not None and sizes:
        found = _chosen(one.program, fans, library, sizes, version, deadline)
    most = max(map(len, found.values()), default=0)
    served = {name: made for name, made in found.items() if len(made) == most}

    def slower(name: str | None, size: int) -> float:
        return max((each.times.get(size, math.inf) for each in served[name].values()), default=0)

    best = [min(served, key=lambda name: slower(name, size), default=None) for size in sizes]
    parts = [list(part) for _, part in groupby(range(len(sizes)), key=best.__getitem__)] or [[]]
    lows = [one.low, *(sizes[part[0]] for part in parts[1:]), one.high + 1]
    for part, (low, after) in zip(parts, pairwise(lows), strict=True):
        made = served[best[part[0]]] if served else {}
        yield low, after - 1, [sizes[place] for place in part], made


def _on_switches(machine: Topology, collective: str, size: int) -> Iterator[tuple[str, Schedule]]:
    """Yield names and schedules of what switches copy and add, one chunk for each rank."""
    if not machine.copies_or_adds:
        return
    cut = build_collective(collective, machine.num_ranks, 1)
    problem = Problem(whole(machine), cut, chunk_size_of(cut, size), make_group(machine, ()))
    for name, ways in IN_NETWORK.items():
        for decisions in ways(problem):
            schedule = problem.timed(decisions)
            require_valid(schedule, problem.logical)
            yield name, schedule


def _nothing(span: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """Return a range of sizes that no plan serves; where there was a program, it can't be one."""
    why = "no plan found runs here: MSCCL++'s own algorithm does"
    if span["file"] is None and span["served_by"] == "nothing":
        why = span["why"]
    return {
        "min_bytes": low, "max_bytes": high, "file": None, "served_by": "nothing", "why": why,
    }  # fmt: skip


def _loading(index: dict[str, Any], version: str, needs: Sequence[str]) -> str:
    """Return how the plans of an `index` are loaded by a `version` of MSCCL++, and what they need.

    The `needs` are of plans on switch channels, if there are any.
    """
    plan = next((plan for plan in register.plans_of(index)), None)
    if plan is None:
        return "No plan was found: there is nothing to load.\n"
    ranks, size = index["topology"]["ranks"], next(iter(plan["times_us"]))
    place = " -in_place" if plan["in_place"] else ""
    scratch = max(one["scratch_chunks"] for one in register.plans_of(index))
    return f"""# Loading these plans

They are for MSCCL++ {version}, {ranks} ranks on {index["topology"]["name"]}. `index.json` says for
which sizes each is.

One plan, by MSCCL++'s own test:

    mpirun -np {ranks} executor_test -path {plan["file"]} -size {size}{place}

All of them in PyTorch (MSCCL++ 0.9 or later): copy nothing, import `register.py` from here before
the process group is made, and start the program with MSCCL++'s NCCL library:

    import register
    register.register(rank, ranks_per_node)

    LD_PRELOAD=/path/to/libmscclpp_nccl.so torchrun ... program.py

- Plans add up. MSCCL++ does not tell a selector which reduction is asked for, so allreduce and
  reducescatter are only registered with `register.register(..., sums_only=True)`: for programs
  all of whose reductions are sums.
- Every rank must register the same plans in the same order: the flags of packets count launches.
- The ranks of a server must be neighbours (0, 1, 2, ...), as in the topology.
- Scratch: up to {scratch} chunks of a call, four times that with packets; MSCCL++'s default is
  128 MiB.
{"".join(f"- {text}.{chr(10)}" for text in needs)}"""


def _chosen(
    program: Program, fans: Sequence[tuple[str, Schedule]], library: "Library",
    sizes: Sequence[int], version: str, deadline: Deadline,
) -> dict[str | None, dict[str, Chosen]]:  # fmt: skip
    """Return plans of a program (None) and of fans by name: of each mode that it serves.

    Of those that are best at some of the sizes it is the one that takes least on average.
    """
    topology = library.topology
    model = replace(model_of("executor"), measured=library.setting.measured)
    unit = ALIGNMENT * program.chunks_per_loop
    runs = [size for size in sizes if size % unit == 0]
    tried = list(dict.fromkeys((runs[len(runs) // 2], runs[0], runs[-1]))) if runs else []
    options: dict[tuple[str | None, str], dict[str, Chosen]] = defaultdict(dict)
    for mode, served in ((True, program.in_place), (False, program.out_of_place)):
        word = MODES[mode].replace(" ", "")
        for size in tried if served else ():
            if options[None, word] and deadline.over:
                break
            wanted = Wanted(size, version=version, model=model, min_bytes=0, max_bytes=MAX_BUFFER)
            with suppress(LoweringError):
                made = best_plan(program, topology, wanted, in_place=mode)
                _add(options[None, word], made, runs, topology, model)
            for name, schedule in fans:
                with suppress(LoweringError):
                    made = best_fan_plan(schedule, wanted, name, in_place=mode)
                    _add(options[name, word], made, runs, schedule.topology, model, name)
    found: dict[str | None, dict[str, Chosen]] = defaultdict(dict)
    for (own, word), plans in options.items():
        if plans:
            most = max(len(each.times) for each in plans.values())
            full = [each for each in plans.values() if len(each.times) == most]
            found[own][word] = min(full, key=lambda each: prod(map(float, each.times.values())))
    return found


def _add(
    options: dict[str, Chosen], made: Made, sizes: Sequence[int], topology: Topology,
    model: ReplayModel, algorithm: str | None = None,
) -> None:  # fmt: skip
    plan = made.plan
    text = write_plan(plan)
    if text not in options:
        times = {
            size: time
            for size in sizes
            if (time := replay_plan(plan, topology, size, model).time) is not None
        }
        options[text] = Chosen(plan, times, algorithm)


def _timed(
    rows: Sequence[dict[str, Any]], sizes: Sequence[int], file: str | None, made: Sequence[Chosen]
) -> None:
    """Put the times of plans into the rows of an index, at some sizes."""
    for row in rows:
        if row["size_bytes"] not in sizes:
            continue
        times = [one.times.get(row["size_bytes"]) for one in made]
        time = None if None in times or not times else us(max(filter(None, times)))
        row.update(file=file if time is not None else None, time_us=time)
        for name, other, less in (
            ("gap", "bound_us", 1), ("over_best", "best_us", 0),
            ("over_classical", "classical_us", 0),
        ):  # fmt: skip
            row[name] = time / row[other] - less if time is not None and row[other] else None
