"""A library of MSCCL++ plans: the programs of a run, as plans, with an index and what loads them.

The run chooses programs and their ranges of sizes as it does for XML. Each becomes a plan for calls
in place and one for calls out of place, as far as the program serves them: of the plans that are
best at the first, the middle and the last size of the range, the one that takes least on average
over all its sizes, by replay. All are judged right. The index is that of a library of XML; its
times are those of the plans, the slower mode where there are two.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.apps.plans import ALIGNMENT, Made, Wanted, best_plan
from taccl.errors import LoweringError
from taccl.msccl.program import Program
from taccl.mscclpp import register
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.structure import counted_chunks
from taccl.mscclpp.text import write_plan
from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.plans import replay_plan
from taccl.report.text import us
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Topology
from taccl.units import Time

if TYPE_CHECKING:
    from taccl.tuning.library import Library

FOLDER = "plans"

MODES: Mapping[bool, str] = {True: "in place", False: "out of place"}

REGISTER = "register.py"
LOADING = "LOADING.md"

MODEL = (
    "Times are replays of the plans on the topology (docs/concepts.md): a packet is twice its"
    " bytes, signals take alpha; of two modes the slower one."
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan of a range, and its times in picoseconds at the sizes that it accepts."""

    plan: Plan
    times: Mapping[int, Time]

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


def plan_texts(library: "Library", version: str, deadline: Deadline) -> dict[str, str]:
    """Return the files of a directory of plans, by their names, of what a `library` has chosen.

    The plans are for a `version` of MSCCL++. After the `deadline` each range gets the plan that is
    best at its middle.
    """
    index: dict[str, Any] = json.loads(json.dumps(library.index))
    index.update(runtime="mscclpp", protocols=["Simple", "LL"], model=MODEL, nccl_model=None)
    texts: dict[str, str] = {}
    for number, told in enumerate(index["collectives"]):
        chooser, spans = library.choosers[number], []
        for one, span in zip(library.chosen[number], told["ranges"], strict=True):
            sizes = [size for size in chooser.sizes if one.low <= size <= one.high]
            made: dict[bool, Chosen] = {}
            if one.program is not None and sizes:
                made = _chosen(one.program, library, sizes, version, deadline)
            if not made:
                spans.append(_nothing(span, one.low, one.high))
                _timed(told["sizes"], sizes, None, [])
                continue
            high = min(one.high, *(each.plan.max_bytes for each in made.values()))
            stem = span["file"].rpartition("/")[2].removesuffix(".xml")
            made = {
                mode: each.named(f"{stem}-{MODES[mode].replace(' ', '')}", one.low, high)
                for mode, each in made.items()
            }
            own = {
                f"{FOLDER}/{each.plan.name}.json": write_plan(each.plan) for each in made.values()
            }
            texts.update(own)
            plans = [
                {
                    "name": one.plan.name, "file": file, "in_place": mode,
                    "min_bytes": one.plan.min_bytes, "max_bytes": high, "unit_bytes": one.unit,
                    "protocol": one.plan.protocol, "scratch_chunks": one.scratch,
                    "times_us": {str(size): us(time) for size, time in one.times.items()},
                    "sha256": hashlib.sha256(own[file].encode()).hexdigest(),
                }
                for (mode, one), file in zip(made.items(), own, strict=True)
            ]  # fmt: skip
            blocks = [rank.blocks for one in made.values() for rank in one.plan.ranks]
            spans.append({
                **span, "max_bytes": high, "file": plans[0]["file"], "plans": plans,
                "modes": [MODES[mode] for mode in made], "sha256": plans[0]["sha256"],
                "protocol": " or ".join(dict.fromkeys(one.plan.protocol for one in made.values())),
                "divisor_bytes": lcm(*(one.unit for one in made.values())),
                "safe_up_to_bytes": high, "verified_at_bytes": [],
                "steps": max(len(block.ops) for each in blocks for block in each),
                "threadblocks": max(map(len, blocks)),
            })  # fmt: skip
            if high < one.high:
                spans.append(_nothing(span, high + 1, one.high))
            _timed(told["sizes"], sizes, next(iter(own)), list(made.values()))
        told["ranges"] = spans
    texts["index.json"] = json.dumps(index, indent=1) + "\n"
    texts[REGISTER] = Path(register.__file__).read_text(encoding="utf-8")
    texts[LOADING] = _loading(index, version)
    return texts


def _nothing(span: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """Return a range of sizes that no plan serves; where there was a program, it can't be one."""
    why = "no plan found runs here: MSCCL++'s own algorithm does"
    if span["file"] is None and span["served_by"] == "nothing":
        why = span["why"]
    return {
        "min_bytes": low, "max_bytes": high, "file": None, "served_by": "nothing", "why": why,
    }  # fmt: skip


def _loading(index: dict[str, Any], version: str) -> str:
    """Return how the plans of an `index` are loaded by a `version` of MSCCL++."""
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
"""


def _chosen(
    program: Program, library: "Library", sizes: Sequence[int], version: str, deadline: Deadline
) -> dict[bool, Chosen]:
    """Return the plan of each mode that a program serves, over some sizes."""
    topology = library.topology
    model = replace(model_of("executor"), measured=library.setting.measured)
    unit = ALIGNMENT * program.chunks_per_loop
    runs = [size for size in sizes if size % unit == 0]
    if not runs:
        return {}
    tried = list(dict.fromkeys((runs[len(runs) // 2], runs[0], runs[-1])))
    found: dict[bool, Chosen] = {}
    for mode, served in ((True, program.in_place), (False, program.out_of_place)):
        options: dict[str, Chosen] = {}
        for size in tried if served else ():
            if options and deadline.over:
                break
            try:
                made = best_plan(
                    program, topology, Wanted(size, version=version, model=model), in_place=mode
                )
            except LoweringError:
                continue
            _add(options, made, runs, topology, model)
        if options:
            most = max(len(each.times) for each in options.values())
            full = [each for each in options.values() if len(each.times) == most]
            found[mode] = min(full, key=lambda each: prod(map(float, each.times.values())))
    return found


def _add(
    options: dict[str, Chosen], made: Made, sizes: Sequence[int], topology: Topology,
    model: ReplayModel,
) -> None:  # fmt: skip
    plan = made.plan
    text = write_plan(plan)
    if text not in options:
        times = {
            size: time
            for size in sizes
            if (time := replay_plan(plan, topology, size, model).time) is not None
        }
        options[text] = Chosen(plan, times)


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
