"""``taccl tune`` from what was asked to the directory on disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from taccl.apps.inputs import (
    MachineOptions,
    asked_collective,
    fans_wanted,
    load_machine,
    load_network,
)
from taccl.apps.programs import serves
from taccl.bounds import ANY
from taccl.collectives import COLLECTIVES
from taccl.errors import InputError, OutOfTimeError
from taccl.files import read_text
from taccl.msccl.runtimes import RUNTIMES
from taccl.replay.cost import floor_networks, is_measured, least_costs, measured_costs, of_plans
from taccl.replay.nccl import Settings, machine_of
from taccl.replay.sweep import bounds_of, measured_bounds_of
from taccl.report.html import library_page
from taccl.timing.deadline import Deadline
from taccl.topology.file import expand_text, shipped_file
from taccl.topology.graph import Topology
from taccl.tuning.candidate import Machine, Outcome, Setting, digest_of
from taccl.tuning.choice import Chooser
from taccl.tuning.directory import Journal, beside, check_place, locked, write_directory
from taccl.tuning.executors import Workshop
from taccl.tuning.exports import EXPORTS
from taccl.tuning.library import Library, entries_of, plan_texts
from taccl.tuning.search import Budget, Plan, Progress, Run, run_key

SEARCHED = 0.93
"""Share of a time limit for the search; the rest is for judging and writing."""

SEARCHED_FOR_PLANS = 0.6
"""Likewise where programs become plans afterwards."""

EFFORT = (0.01, 1.0, 6.0)
"""Seconds of a first timed search: a share of the time limit, at least, and at most."""


@dataclass(frozen=True, eq=False)
class Order:
    """What is asked of :func:`tune`.

    `topology`, `nodes`, `fabric`, `alpha_rule`: the machine, as the command line names it.
    `collectives`: names of COLLECTIVES.
    `sizes`: bytes, ascending; searched are the sizes that cut into whole chunks, and the ranges of
    the library end with the last one of these.
    `runtime`: a name of RUNTIMES.
    `sketches`: files, or names of shipped ones, that are tried beside the whole topology.
    `budget`: how much to search.
    `seed`: for the solvers.
    `output`: the directory.
    `nccl`: inputs of NCCL's model; None: nothing is left to NCCL.
    `profile`: what messages are charged, of PROFILES; None: ``measured`` where the machine has
    such costs and no ``alpha_rule`` is given. With measured costs nothing is left to NCCL.
    `plans`: the version of MSCCL++, of VERSIONS, that plans are written for in place of XML; None:
    XML. The programs are then those of the executor.
    `in_network`: whether switches may copy and add in plans, of IN_NETWORK_MODES.
    `exports`: names of EXPORTS, each a file more in the directory.
    `workshop`: makes what runs the candidates.
    `stop`, `watch`: set to end the search; called with progress.
    """

    topology: str
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    runtime: str
    budget: Budget
    output: Path
    workshop: Callable[[], Workshop]
    nodes: int | None = None
    fabric: str | None = None
    alpha_rule: str | None = None
    sketches: tuple[str, ...] = ()
    seed: int = 0
    nccl: Settings | None = field(default_factory=Settings)
    profile: str | None = "alpha-beta"
    plans: str | None = None
    in_network: str = "auto"
    exports: tuple[str, ...] = ()
    stop: Event = field(default_factory=Event)
    watch: Callable[[Progress], None] = lambda _progress: None


@dataclass(frozen=True, eq=False)
class Tuned:
    """What :func:`tune` has written: `texts` by their names in the directory `output`.

    So many `candidates` were evaluated or known, 0: the whole library was; this run took `seconds`
    of wall clock.
    """

    output: Path
    texts: dict[str, str]
    candidates: int
    seconds: float


def tune(order: Order) -> Tuned:
    """Search, choose, judge and write a library.

    Raises InputError when what is asked can't be used; OutOfTimeError when no program was found in
    time.
    """
    clock = Deadline()
    check_place(order.output)
    topology, setting = _setting(order)
    machine = topology
    if fans_wanted(order.in_network, carried=order.plans is not None):
        machine = load_machine(order.topology, MachineOptions(
            order.nodes, order.fabric, alpha_rule=order.alpha_rule, in_network=True))  # fmt: skip
    order, end = replace(order, sizes=setting.sizes), order.sizes[-1]
    if setting.measured:
        order = replace(order, profile="measured", nccl=None)
    seconds, effort = order.budget.seconds, None
    if seconds is not None:
        part, least, most = EFFORT
        effort = round(min(most, max(least, part * seconds)), 1)
    plan = Plan(
        order.collectives, order.sizes, topology.num_ranks, {}, len(order.sketches), effort,
        order.seed, len(set(topology.server_of)),
        max(RUNTIMES[order.runtime].message_bytes.values()),
    )  # fmt: skip
    share = SEARCHED if order.plans is None else SEARCHED_FOR_PLANS
    budget = replace(order.budget, seconds=None if seconds is None else share * seconds)
    with locked(order.output), Journal(beside(order.output, ".journal")) as journal:
        key = digest_of(
            [
                "library",
                run_key(setting, plan, budget),
                str(order.nccl),
                end,
                str(order.plans),
                expand_text(machine),
            ]
        )
        done, kept = 0, journal.find(key)
        if kept is not None:
            texts = {str(name): str(text) for name, text in json.loads(kept).items()}
        else:
            floors: Sequence[Topology] = ()
            if setting.measured:
                # Of plans the bounds are those at what plans are charged.
                floors = (
                    floor_networks(machine, measured_costs(topology))
                    if order.plans is None
                    else [least_costs(machine, measured_costs(of_plans(topology)))]
                )
            bounds = {
                name: measured_bounds_of(floors, name, world=ANY)
                if floors
                else bounds_of(machine, name, message_bytes=plan.message_bytes, world=ANY)
                for name in order.collectives
            }
            plan = replace(plan, bounds={
                name: tuple(found[1] if (found := at(size)) else None for size in order.sizes)
                for name, at in bounds.items()
            })  # fmt: skip
            run = Run(
                setting, plan, budget, order.workshop(), journal, order.stop, order.watch,
                clock=clock,
            )  # fmt: skip
            outcomes = run.search()
            done = len(outcomes)
            choosers = _choosers(order, topology, plan, outcomes, end)
            asked = {
                "budget": {"candidates": order.budget.candidates, "time_limit_s": seconds},
                "seed": order.seed,
                "interrupted": order.stop.is_set(),
            }
            library = Library(
                setting, topology, tuple(outcomes), choosers,
                tuple(chooser.choose() for chooser in choosers), tuple(bounds.values()), asked,
            )  # fmt: skip
            texts = library.texts
            if order.plans is not None:
                deadline = Deadline() if seconds is None else Deadline.after(
                    SEARCHED * seconds, spent=clock.spent
                )  # fmt: skip
                texts = plan_texts(library, order.plans, deadline, machine)
            texts = {**texts, "report.html": library_page(json.loads(texts["index.json"]))}
            # The same command may find more where something passed, unless its time is over.
            again = seconds is None and any(one.passing for one in outcomes)
            if not asked["interrupted"] and not again:
                journal.keep(key, json.dumps(texts))
        index = json.loads(texts["index.json"])
        texts |= {EXPORTS[kind].file: EXPORTS[kind].write(index) for kind in order.exports}
        write_directory(order.output, texts)
    return Tuned(order.output, texts, done, clock.spent)


def _setting(order: Order) -> tuple[Topology, Setting]:
    """Return the machine, and what all candidates share."""
    options = MachineOptions(order.nodes, order.fabric, alpha_rule=order.alpha_rule)
    topology = load_network(order.topology, options).topology
    measured = is_measured(order.profile, topology, order.alpha_rule)
    if topology.num_ranks < 2:
        raise InputError("has one rank: nothing to send", file=order.topology, field="ranks")
    for name in order.collectives:
        if COLLECTIVES[name].has_root:
            raise InputError(
                f"{name} has a root, and a file answers calls for every root", field="COLLECTIVE",
                fix="tune allgather, reducescatter, allreduce or alltoall",
            )  # fmt: skip
        if not serves(order.runtime, asked_collective(name, topology)):
            raise InputError(f"{order.runtime} has no XML for {name}", field="COLLECTIVE")
    for kind in order.exports:
        known = EXPORTS[kind].collectives
        if not set(known) & set(order.collectives):
            raise InputError(
                f"{kind} has no place for {', '.join(order.collectives)}", field="--export",
                fix=f"tune one of {', '.join(known)}, too, or leave {kind} out",
            )  # fmt: skip
    machines = [Machine(expand_text(topology))]
    names = []
    for sketch in order.sketches:
        logical = load_network(order.topology, replace(options, sketch=sketch))
        text = read_text(shipped_file(sketch, "sketches", "sketch"))
        machines.append(Machine(expand_text(logical.topology), text))
        names.append(logical.name or sketch)
    setting = Setting(
        tuple(machines), tuple(names), whole_sizes(order.sizes, topology.num_ranks), order.runtime,
        deterministic=order.budget.seconds is None, measured=measured,
    )  # fmt: skip
    return topology, setting


def whole_sizes(sizes: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Return `sizes`, in bytes, that cut into whole chunks for so many `ranks`.

    Each is at most the one that it stands for.

    A program takes sizes that are multiples of ranks, chunks, instances and 4 bytes. Each size is
    cut to a multiple of 4 bytes for each rank, and of as many times that, a power of two, as it is
    16 times as large as. What is less than 4 bytes a rank stays. On a power of two of ranks,
    powers of two stay what they are.
    """
    found = set()
    for size in sizes:
        unit = 4 * ranks
        while unit * 2 <= size // 16:
            unit *= 2
        found.add(size - size % unit or size)
    return tuple(sorted(found))


def _choosers(
    order: Order, topology: Topology, plan: Plan, outcomes: Sequence[Outcome], end: int
) -> tuple[Chooser, ...]:
    """Return what chooses for every collective, up to a size; raise when there is no program."""
    machine = None if order.nccl is None else machine_of(topology, order.nccl)
    choosers = tuple(
        Chooser(
            name, topology, order.runtime, order.sizes, entries_of(name, outcomes), machine, end,
            tuple(plan.bounds[name]), order.profile == "measured",
        )
        for name in order.collectives
    )  # fmt: skip
    if not any(chooser.entries for chooser in choosers):
        reasons = sorted({one.reason for one in outcomes if one.reason})
        more = "--time-limit" if order.budget.candidates is None else "--candidates"
        raise OutOfTimeError(
            f"no program was found{': ' + reasons[0] if reasons else ''}", fix=f"raise {more}"
        )
    return choosers
