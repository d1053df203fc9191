"""Algorithms of switches that copy and add: their formulas, figures, and where they are found."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from taccl.bounds import ANY, any_bounds, best
from taccl.collectives.file import read_collective
from taccl.model.problem import Options, Problem
from taccl.synth.search import solve
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.topology.file import load_topology
from taccl.topology.graph import FanEngine, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.in_network import able, free, nvls, problem_of, us, ways
from tests.sweep import for_each

S = 64_000_000


def servers(count: int, *, sharp: bool = False) -> Topology:
    machine = nvls("dgx-h100", nodes=count)
    return able(machine, "rail*") if sharp else machine


def hub(ranks: int, *, through: bool) -> Topology:
    return nvls(f"hub:{ranks}@1GB/s,0us", through=through)


def test_figures_of_machines() -> None:
    local = nvls("dgx-h100", through=False)
    wide = able(load_topology("fat-tree:4"))
    edges = able(load_topology("fat-tree:4"), "*edge*")
    figures: list[tuple[Topology, str, int, int, str]] = [
        (nvls("dgx-h100"), "nvls", S, 1, "161.400"), (local, "nvls", S, 1, "143.622"),
        (nvls("dgx-h100"), "nvls", 10**9, 1, "2501.400"), (local, "nvls", 10**9, 1, "2223.622"),
        (servers(2), "nvls-rail", S, 8, "206.378"),
        (servers(2), "nvls-rail", 10**9, 32, "2679.644"),
        (wide, "sharp", S, 1, "1283.500"), (edges, "in-rack", S, 1, "1286.300"),
    ]  # fmt: skip
    for topology, name, size, chunks, wanted in figures:
        schedule = ways(topology, name, "allreduce", size, chunks)[0]
        assert f"{schedule.makespan / 10**6:.3f}" == wanted, (topology.name, name)
        assert verify(schedule) == [], (topology.name, name)
    assert ways(servers(4, sharp=True), "nvls-sharp", "allreduce", S, 4)[0].makespan / 10**6 < 206.4


def test_a_window_of_slots_is_the_bandwidth_of_switchml() -> None:
    # rtt 10 us: half in the hub's ports, half in the engine. 128 B a packet.
    for rate, slots, wanted in (("12.5GB/s", 128, "39072.5"), ("12.5GB/s", 512, "9775.625"),
                                ("1.25GB/s", 512, "51210")):  # fmt: skip
        plain = load_topology(f"hub:8@{rate},5us")
        topology = able(plain, engine=FanEngine(alpha=5_000_000, window=(slots, Fraction(128))))
        (schedule,) = ways(topology, "switchml", "allreduce", S)
        assert us(schedule) == Fraction(wanted)
        assert verify(schedule) == []


def test_every_algorithm_takes_its_formula_where_alpha_is_nothing() -> None:
    """Times in units of beta S of a port."""
    one = Fraction(1)
    cases: list[tuple[str, str, Topology, int, Fraction]] = []
    for n in (4, 5, 7):
        for through in (True, False):
            on, own = hub(n, through=through), Fraction(through)
            cases += [
                ("nvls", "allreduce", on, 1, 1 + own / n), ("nvls-one-shot", "allreduce", on, 1,
                                                            n - 1 + own),
                *(("nvls", each, on, 1, one if through else Fraction(n - 1, n))
                  for each in ("allgather", "reducescatter")),
                *(("nvls", each, on, 1, one) for each in ("broadcast", "reduce")),
            ]  # fmt: skip
        cases.append(("sharp", "allreduce", able(load_topology(f"hub:{n}@1GB/s,0us")), 1, one))
    # Leaves of 2 ranks with uplinks of 2 ports: twice the copies of the others' sums go up.
    for leaves, over in ((2, 1), (3, 1), (4, 4)):
        fabric = able(load_topology(f"leaf-spine:{leaves}x2x{over}@1GB/s,0us"), "leaf*")
        formula = max(one, 2 * Fraction(leaves - 1, leaves) * Fraction(over, 2))
        cases.append(("in-rack", "allreduce", fabric, leaves, formula))
    tree = able(load_topology("fat-tree:4@1GB/s,0us"))
    cases += [("sharp-trees", "allreduce", tree, 1, one)]
    cases += [("multicast-tree", each, tree, 1, one)
              for each in ("allgather", "broadcast", "reducescatter", "reduce")]  # fmt: skip
    for name, collective, topology, chunks, formula in cases:
        schedule = ways(topology, name, collective, 84_000_000, chunks)[0]
        assert us(schedule) <= formula * 84_000 * Fraction("1.001"), (
            name,
            collective,
            topology.name,
        )
        bound = best(any_bounds(whole(topology), collective, 84_000_000, world=ANY)).time
        assert schedule.makespan >= bound
        assert verify(schedule) == [], name


def test_what_a_file_asks_for_is_one_batch_on_one_switch(tmp_path: Path) -> None:
    """Of 4 ranks at 1 GB/s, 1 us a crossing, chunks of 1 KB."""
    chunks = (
        "  - {id: 0, input: {0: 0%s}, output: {1: 0, 2: 0, 3: 0}}\n"
        "  - {id: 1, input: {2: 0%s}, output: {1: 1, 3: 1}}\n"
    )
    for reduces, more, took in (("false", ("", ""), 3), ("true", (", 3: 0", ", 1: 0"), 5)):
        path = tmp_path / "c.yaml"
        path.write_text(f"taccl: collective/1\nname: some\nranks: 4\nreduces: {reduces}\nchunks:\n"
                        + chunks % more)  # fmt: skip
        collective, topology = read_collective(str(path)), nvls()
        problem = Problem(whole(topology), collective, Fraction(1000), make_group(topology, ()))
        (schedule,) = (problem.timed(decisions) for decisions in IN_NETWORK["nvls"](problem))
        assert us(schedule) == took, reduces
        assert verify(schedule) == []


def test_a_pipeline_over_servers_takes_its_busiest_port_but_for_the_fill() -> None:
    third, half = Fraction(4, 3), Fraction(3, 2)
    for count, sharp, per_nic, chunks in (
        (2, False, Fraction(1), 8), (3, False, third, 6), (4, False, half, 8),
        (4, True, Fraction(1), 4),
    ):  # fmt: skip
        topology = free(servers(count, sharp=sharp))
        name = "nvls-sharp" if sharp else "nvls-rail"
        schedule = ways(topology, name, "allreduce", S * 3, chunks)[0]
        inside, nic = Fraction(9, 8) * 3 * S / 450, per_nic * 3 * S / (8 * 50)
        rounds = 16 if count == 2 or sharp else chunks
        assert us(schedule) * 1000 <= max(inside, nic) * (1 + Fraction(4, rounds)), (count, name)
        assert us(schedule) * 1000 >= max(inside, nic)
        assert verify(schedule) == [], name


def test_rails_gather_and_spread_what_servers_copy() -> None:
    """The busiest port but for the fill, and backwards what it takes forwards."""
    for count in (2, 3):
        bare, machine = free(servers(count)), servers(count)
        for collective, backwards, chunks, rounds, per_nic in (
            ("allgather", "reducescatter", 4, 4, Fraction(count - 1, count)),
            ("broadcast", "reduce", 32, 4, Fraction(1)),
        ):  # fmt: skip
            schedule = ways(bare, "nvls-rail", collective, S * 3, chunks)[0]
            port = max(Fraction(3 * S, 450), per_nic * 3 * S / (8 * 50))
            steps = 1 + (1 if collective == "allgather" else count)
            assert port <= us(schedule) * 1000 <= port * (1 + Fraction(steps, rounds)), collective
            for size in (1024, S):
                there = ways(machine, "nvls-rail", collective, size, chunks)[0]
                back = ways(machine, "nvls-rail", backwards, size, chunks)[0]
                assert verify(there) == verify(back) == [], (collective, count, size)
                assert there.makespan == back.makespan, (collective, count, size)
                bound = best(any_bounds(whole(machine), collective, size, world=ANY)).time
                assert there.makespan >= bound, (collective, count, size)


def test_small_gathers_cross_each_network_once() -> None:
    """1.7 us from NIC to NIC and 0.7 us on NVLink, which is the bound; of 8 servers by bits."""
    for count, alphas in ((2, "2.4"), (8, "5.8")):
        for collective in ("allgather", "reducescatter"):
            schedule = ways(servers(count), "nvls-rail", collective, 1024)[0]
            assert us(schedule) - Fraction(alphas) < Fraction("0.02"), (count, collective)
    assert us(ways(servers(2), "nvls-rail", "broadcast", 1024)[0]) < Fraction("2.43")


def test_servers_exchange_whole_sums_where_latency_counts_and_parts_where_bytes_do() -> None:
    times = [ways(servers(4), "nvls-rail", "allreduce", size, 4)[0].makespan / 10**6
             for size in (10**6, S, 10**9)]  # fmt: skip
    assert [round(time, 1) for time in times] == [14.2, 339.7, 4889.7]


def test_an_algorithm_is_nowhere_that_switches_or_collectives_do_not_allow_it() -> None:
    hubs = {
        "plain": load_topology("hub:4"), "wires": load_topology("ring:4"),
        "copies": replace(nvls(), switches=tuple(replace(s, reduce=None) for s in nvls().switches)),
    }  # fmt: skip
    for what, topology in hubs.items():
        for name in IN_NETWORK:
            found = ways(topology, name, "allreduce", 4000)
            assert not found or (what, name) == ("copies", "nvls-one-shot"), (what, name)
    for name in IN_NETWORK:
        assert not ways(nvls(), name, "alltoall", 4000)


def test_an_algorithm_is_an_engine() -> None:
    found = solve(problem_of(nvls(), "allreduce", 4000), "nvls", Options())
    assert found.schedule is not None
    assert us(found.schedule) == 7


FLAGGED = (("dgx-h100", 1), ("adding-leaves", None), ("dgx-b200", 1), ("dgx-h100", 2),
           ("h100-sharp", 2), ("gb200-nvl72", 1))  # fmt: skip


@for_each("row", range(len(FLAGGED)), quick=2)
def test_auto_is_never_above_the_best_algorithm_of_a_flagged_machine(row: int) -> None:
    name, nodes = FLAGGED[row]
    topology = load_topology(name, nodes=nodes)
    assert topology.copies_or_adds
    for collective, size in (("allreduce", 10**6), ("allreduce", S), ("allgather", S)):
        made = [ways(topology, each, collective, size) for each in IN_NETWORK]
        least = min((found[0].makespan for found in made if found), default=None)
        schedule = solve(
            problem_of(topology, collective, size), "auto", Options(time_limit=0.3)
        ).schedule
        assert schedule is not None
        assert least is None or schedule.makespan <= least, (name, collective, size)
