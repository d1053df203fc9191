"""A second judge of times: SimGrid runs what we time. ``python -m benchmarks.simgrid``.

SimGrid (Casanova, Giersch, Legrand, Quinson, Suter) shares the bandwidth of links by max-min
fairness between flows. Two rules are held against it:

- *exclusive*: schedules under the rule ``delay``. Every edge is a link that carries one flow at a
  time; a message begins once its data is there and those before it on its edges have left, and
  arrives alpha later.
- *shared*: programs with measured costs. Every threadblock is an actor that goes through what the
  replay compiles of its steps: flags, slots, slices, local work, and a flow of at most its own
  rate.

Both are deterministic, and there is no arithmetic of ours in them but sizes and betas. The shared
replay splits an edge equally where SimGrid gives what one flow can't use to the others, so they
agree where every flow on an edge is held up alike. Needs SimGrid's Python module (Debian:
``apt install python3-simgrid``, for the system's version of Python); says so where it is absent.
"""

import argparse
import importlib
import importlib.util
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from taccl.apps.inputs import MachineOptions, load_network
from taccl.apps.programs import Target, lowering_of
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import TacclError
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.replay.compile import among_peers, columns_of, split
from taccl.replay.cost import WORK, Sharing, charged_network, measured_costs, sharing_of
from taccl.replay.interpreter import Action, Block, Compiled, compile_program
from taccl.replay.timing import Timing
from taccl.synth.plan import Plan, plan_decisions, rows_of
from taccl.synth.templates.classical import textbook_schedule
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.units import Time

DEBIAN = "/usr/lib/python3/dist-packages"

CLOSE = 0.001
"""By what part both may differ."""

Case = tuple[str, int, str, str, int, str]
"""Machine, nodes, collective, algorithm, bytes, protocol; no protocol: the exclusive rule."""

CASES: tuple[Case, ...] = (
    *(
        (machine, nodes, collective, algorithm, 1 << 20, "")
        for machine, nodes, algorithms in (
            ("ring:16", 1, ("ring", "double-ring")), ("torus2d:8x8", 1, ("ring", "double-ring")),
            ("full:8", 1, ("ring", "double-ring", "bruck")), ("dgx2", 1, ("ring", "double-ring")),
            ("dgx2", 2, ("ring", "hierarchical")),
        )
        for algorithm in algorithms
        for collective in ("allgather", "allreduce")
    ),
    *((machine, 1, "alltoall", "ring", 1 << 20, "") for machine in ("ring:16", "full:8", "dgx2")),
    *(
        (machine, 1, collective, algorithm, size, protocol)
        for machine in ("dgx-h100", "mi300x", "dgx2")
        for collective, algorithm in (
            ("allgather", "all-pairs"), ("alltoall", "all-pairs"), ("allgather", "ring"),
            ("allreduce", "halving-doubling"),
        )
        for size, protocol in ((1 << 16, "LL"), (1 << 20, "Simple"))
    ),
)  # fmt: skip
"""Both rules, on up to 64 ranks."""


def module() -> ModuleType | None:
    """Return SimGrid; None where there is none for this Python."""
    if importlib.util.find_spec("simgrid") is None:
        sys.path.append(DEBIAN)
    try:
        return importlib.import_module("simgrid")
    except ImportError:
        return None


def _engine(simgrid: ModuleType) -> Any:  # noqa: ANN401 - SimGrid has no types
    """Return an engine that moves bytes at the bandwidth of links, and nothing else."""
    flags = (
        "network/model:CM02", "network/TCP-gamma:1e30", "network/crosstraffic:0",
        "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0",
        "surf/precision:1e-9",
    )  # fmt: skip
    return simgrid.Engine(
        ["judge", "--log=root.thres:critical", *(f"--cfg={one}" for one in flags)]
    )


class Places:
    """A network in SimGrid whose second is our nanosecond: a pair of hosts for each route."""

    def __init__(self, simgrid: ModuleType, rates: dict[int, float], *, alone: bool) -> None:
        self.simgrid, self.zone = simgrid, simgrid.NetZone.create_full_zone("machine")
        self.links: dict[int, Any] = {}
        for edge, rate in rates.items():
            link = self.zone.create_link(f"e{edge}", rate)
            link.set_latency(0)
            if alone:
                link.set_concurrency_limit(1)
            self.links[edge] = link.seal()
        self.hosts: dict[int, tuple[Any, ...]] = {}

    def route(self, number: int, edges: tuple[int, ...]) -> None:
        """Add a pair of hosts, from one of which to the other messages cross ``edges``."""
        ends = tuple(self.zone.create_host(f"{side}{number}", 1e9).seal() for side in "ab")
        links = [self.simgrid.LinkInRoute(self.links[edge]) for edge in edges]
        both = False
        self.zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, links, both)
        self.hosts[number] = ends

    def actor(self, what: Callable[..., None], *given: object) -> None:
        """Let something run beside all else, on any host."""
        self.simgrid.Actor.create("actor", next(iter(self.hosts.values()))[0], what, *given)

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """Do something after a delay, in nanoseconds."""
        if delay <= 0:
            what()
            return

        def wait() -> None:
            self.simgrid.this_actor.sleep_for(delay)
            what()

        self.actor(wait)


Waits = dict[str, dict[int, set[int]]]
"""By ``start``, ``left`` (its edges) or ``arrival`` of a message, the messages that wait for it."""


def _messages(schedule: Schedule) -> tuple[Plan, dict[int, list[int]]]:
    """Return the moves of a schedule, and the messages that they make, by their start."""
    problem = Problem(
        whole(schedule.topology), schedule.collective, schedule.chunk_size,
        make_group(schedule.topology, ()),
    )  # fmt: skip
    decisions = schedule.decisions()
    plan = plan_decisions(problem, rows_of(decisions))
    messages: dict[int, list[int]] = defaultdict(list)
    for move, batch in enumerate(decisions.batch.tolist()):
        messages[batch].append(move)
    columns = (schedule.chunk, schedule.link, schedule.reduce, schedule.start)
    begins = {(c, k, r): at for c, k, r, at in zip(*(x.tolist() for x in columns), strict=True)}
    starts = [begins[one.chunk, one.link, one.reduce] for one in plan.moves]
    order = sorted(messages, key=lambda one: (starts[messages[one][0]], one))
    return plan, {one: messages[one] for one in order}


def _waits(
    plan: Plan, messages: dict[int, list[int]], crossed: Callable[[int], tuple[int, ...]]
) -> Waits:
    """Return what each message waits for: data, those that it must follow, and free edges."""
    after: Waits = {kind: defaultdict(set) for kind in ("start", "left", "arrival")}
    of_move = {move: one for one, moves in messages.items() for move in moves}
    last: dict[int, int] = {}
    for one, moves in messages.items():
        for edge in crossed(plan.moves[moves[0]].link):
            if edge in last:
                after["left"][last[edge]].add(one)
            last[edge] = one
        for own in (plan.moves[move] for move in moves):
            for before in own.needs:
                after["arrival"][of_move[before]].add(one)
            for before in (*own.reads_first, *own.follows):
                after["start"][of_move[before]] |= {one} - {of_move[before]}
    return after


def exclusive(schedule: Schedule, simgrid: ModuleType) -> float:
    """Return the picoseconds that SimGrid takes for a schedule under the rule ``delay``.

    Raises TacclError where a message leaves its edges one after the other.
    """
    topology, size = schedule.topology, float(schedule.chunk_size)
    betas = {e.id: float(e.beta) for e in topology.edges if e.beta}
    plan, messages = _messages(schedule)
    link = {one: plan.moves[moves[0]].link for one, moves in messages.items()}

    def crossed(number: int) -> tuple[int, ...]:
        return tuple(edge for edge in topology.links.edges_of(number) if edge in betas)

    after = _waits(plan, messages, crossed)
    wanted = Counter(other for kind in after.values() for some in kind.values() for other in some)
    engine = _engine(simgrid)
    places = Places(simgrid, {edge: 1000 / beta for edge, beta in betas.items()}, alone=True)
    for number in sorted(set(link.values())):
        if len({betas[edge] for edge in crossed(number)}) != 1:
            raise TacclError("a message leaves its edges one after the other")
        places.route(number, crossed(number))
    tokens = {one: simgrid.Semaphore(0) for one in messages}

    def release(kind: str, one: int) -> None:
        for other in after[kind][one]:
            tokens[other].release()

    def run(number: int) -> None:
        alpha = int(topology.links.alpha[number]) / 1000
        for one in (each for each in messages if link[each] == number):
            for _ in range(wanted[one]):
                tokens[one].acquire()
            release("start", one)
            simgrid.Comm.sendto(*places.hosts[number], round(size * len(messages[one])))
            release("left", one)
            places.later(alpha, partial(release, "arrival", one))

    for number in places.hosts:
        places.actor(run, number)
    engine.run()
    return float(engine.clock) * 1000


class Board:
    """What threadblocks see of each other: messages that have arrived, slots taken, flags."""

    def __init__(self, simgrid: ModuleType, blocks: int, connections: int) -> None:
        self.simgrid = simgrid
        self.available, self.taken = [0] * connections, [0] * connections
        self.flags = [-1] * (blocks + 1)
        self.asleep: list[Any] = []

    def until(self, ready: Callable[[], bool]) -> None:
        """Let an actor sleep until something is so."""
        while not ready():
            self.asleep.append(self.simgrid.Semaphore(0))
            self.asleep[-1].acquire()

    def change(self, column: list[int], place: int, more: int) -> None:
        """Change a number, and wake all who wait for something."""
        column[place] += more
        asleep, self.asleep = self.asleep, []
        for semaphore in asleep:
            semaphore.release()

    def post(self, block: int, flag: int) -> None:
        """Set the flag of a block."""
        self.change(self.flags, block, flag - self.flags[block])


def _slices(block: Block, action: Action, board: Board, places: Places, slots: int) -> None:
    """Receive, work on and send the slices of one message."""
    inbound, outbound = block.receives_on, block.sends_on
    for part in range(action.slices):
        if action.receives and inbound is not None:
            board.until(lambda: board.available[inbound] > 0)
            board.available[inbound] -= 1
        if action.local:
            places.simgrid.this_actor.sleep_for(action.local / 1000)
        if action.flight is not None and outbound is not None:
            if part == 0:
                board.until(lambda: board.taken[outbound] < slots)
                board.taken[outbound] += 1
            size = round(action.flight.work / WORK)
            places.simgrid.Comm.sendto(*places.hosts[outbound], size)
            arrives = partial(board.change, board.available, outbound, 1)
            places.later(action.flight.arrival / 1000, arrives)
    if action.receives and inbound is not None:
        board.change(board.taken, inbound, -1)


def shared(compiled: Compiled, sharing: Sharing, edges: int, simgrid: ModuleType) -> float:
    """Return the picoseconds that SimGrid takes for a program with measured costs.

    A topology has so many ``edges``.
    """
    engine = _engine(simgrid)
    used = {edge for wire in compiled.connections for edge, _ in wire.held}
    rates = {edge: float(sharing.capacity[edge]) / WORK * 1000 for edge in used}
    # What a threadblock moves at most is a link of its own in front of its connection.
    for number in range(len(compiled.connections)):
        rates[edges + number] = sharing.block_rate / WORK * 1000
    places = Places(simgrid, rates, alone=False)
    for number, wire in enumerate(compiled.connections):
        places.route(number, (edges + number, *(edge for edge, _ in wire.held)))
    board = Board(simgrid, len(compiled.blocks), len(compiled.connections))

    def run(number: int) -> None:
        block = compiled.blocks[number]
        slots = 0 if block.sends_on is None else compiled.slots[block.sends_on]
        for iteration in range(block.iterations):
            base = iteration * compiled.width
            for action in block.last if iteration == block.iterations - 1 else block.full:
                for other, position in action.needs:
                    board.until(lambda o=other, f=base + position: board.flags[o] >= f)  # type: ignore[misc]
                _slices(block, action, board, places, slots)
                if action.posts >= 0:
                    seen = partial(board.post, number, base + action.posts)
                    places.later(sharing.flag / 1000, seen)

    for number in range(len(compiled.blocks)):
        places.actor(run, number)
    engine.run()
    return float(engine.clock) * 1000


def times(case: Case, simgrid: ModuleType) -> tuple[Time, float]:
    """Return the picoseconds of a case, ours and SimGrid's.

    Raises TacclError when there is no such schedule or program.
    """
    machine, nodes, name, algorithm, size, protocol = case
    rule = None if protocol else "delay"
    network = load_network(
        machine, MachineOptions(nodes=nodes if nodes > 1 else None, alpha_rule=rule)
    )
    topology = charged_network(network.topology, protocol) if protocol else network.topology
    collective = build_collective(name, topology.num_ranks, 1)
    problem = Problem(
        whole(topology), collective, chunk_size_of(collective, size), make_group(topology, ())
    )
    schedule = textbook_schedule(problem, algorithm, batch=True)
    if schedule is None:
        raise TacclError(f"no {algorithm} there")
    if not protocol:
        return schedule.makespan, exclusive(schedule, simgrid)
    target = Target(protocol=protocol, measured=True)
    program, _ = lowering_of(schedule, target, size, algorithm).best
    launch = measured_costs(topology).protocols[protocol].launch
    ours = Timing(program, topology, target.model).at(size).time
    if ours is None:
        raise TacclError("the program does not run at this size")
    columns, cut = columns_of(program, topology), split(program, size, target.model)
    sharing = among_peers(sharing_of(topology, protocol), topology, columns.connections)
    compiled = compile_program(columns, cut, sharing.local, sharing=sharing)
    return ours - launch, shared(compiled, sharing, len(topology.edges), simgrid)


def _apart(case: Case) -> tuple[Time, float] | str:
    simgrid = module()
    try:
        return "SimGrid is not there" if simgrid is None else times(case, simgrid)
    except TacclError as error:
        return str(error)


def rows(cases: tuple[Case, ...]) -> Iterator[tuple[Case, tuple[Time, float] | str]]:
    """Yield every case with both times, or why there are none; a process has one engine."""
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            yield case, pool.apply(_apart, (case,))


def main() -> int:
    """Print both times of every case; return 1 where they differ by more than ``CLOSE``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases that contain this text")
    only = parser.parse_args().only
    if module() is None:
        print("SimGrid is not there: apt install python3-simgrid, for the system's Python")
        return 0
    close, judged = 0, 0
    for case, found in rows(tuple(case for case in CASES if only in " ".join(map(str, case)))):
        told = " ".join(map(str, case))
        if isinstance(found, str):
            print(f"{told:55s} {found}", flush=True)
            continue
        ours, theirs = found
        judged += 1
        close += abs(theirs / ours - 1) <= CLOSE
        rule = "shared" if case[-1] else "exclusive"
        line = f"{told:55s} {rule:9s} {ours / 1e6:12.4f} {theirs / 1e6:12.4f} us"
        print(f"{line} {theirs / ours - 1:+.4%}", flush=True)
    print(f"{close} of {judged} within {CLOSE:.1%}")
    return int(close < judged)


if __name__ == "__main__":
    sys.exit(main())
