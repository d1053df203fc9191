"""Machines made of network namespaces: links are as slow as stated, and nothing is left behind."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.running import (
    Asked,
    job_of,
    measure_links,
    measured_network,
    over,
    probe_program,
    probed_links,
    run_jobs,
)
from taccl.errors import InputError
from taccl.run import emulate
from taccl.run.emulate import Emulated, check_emulation, emulated, own_scale, scaled
from taccl.run.messages import Way
from taccl.topology.graph import Topology
from taccl.units import ceil_time
from tests.msccl.builders import make, pairs_schedule, ring_schedule


def why_not() -> str:
    """Return why no machine can be emulated here; empty when one can."""
    try:
        check_emulation(machine("ring:3"))
    except InputError as error:
        return str(error)
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no network namespace can be made"


def machine(name: str) -> Topology:
    return load_machine(name, MachineOptions(alpha_rule="delay"))


# One after the other: what is left behind is counted.
pytestmark = pytest.mark.xdist_group("emulation")

needs_root = pytest.mark.skipif(bool(why_not()), reason=f"emulation: {why_not()}")


def namespaces() -> int:
    """Return how many network namespaces processes are in."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(entry.readlink())
        except OSError:
            continue
    return len(found)


@needs_root
def test_programs_run_on_an_emulated_machine_and_nothing_is_left() -> None:
    before = namespaces()
    topology = machine("ring:3@4MB/s,2ms")
    with emulated(topology) as live:
        assert namespaces() == before + 4
        network = measured_network(topology, measure_links(live, 2))
        program = make(ring_schedule("allgather", 3, 1))
        rows, _ = run_jobs(
            [job_of("ring", program)], Asked([96_000], calls=1, repeats=2), over(live), network
        )
    assert namespaces() == before
    for row in rows:
        assert row.wrong == 0
        # At least the bytes of two steps, however busy this machine is.
        assert row.nanoseconds > 2 * 1000 * 32_000 / 4
        assert row.predicted is not None


@needs_root
def test_links_that_share_an_uplink_share_its_bandwidth() -> None:
    topology = scaled(machine("slow-uplink"), Fraction(1000))
    with emulated(topology) as live:
        (row, *_), _ = run_jobs(
            [job_of("pairs", make(pairs_schedule("alltoall", topology, 1)))],
            Asked([64_000], calls=1, repeats=1), over(live), topology,
        )  # fmt: skip
    assert row.wrong == 0
    # 4 ranks send 4 blocks of 8000 bytes each over one uplink of 2 MB/s.
    assert row.nanoseconds > 4 * 4 * 8000 / 2 * 1000


def test_a_probe_sends_over_its_link_and_gets_an_answer() -> None:
    program = probe_program(4, 1, 2)
    assert [len(gpu.threadblocks) for gpu in program.gpus] == [0, 2, 2, 0]


def test_links_of_each_kind_are_probed() -> None:
    topology = machine("slow-uplink")
    servers = topology.server_of
    ends = [topology.link(number) for number in probed_links(topology)]
    across = [servers[link.src] != servers[link.dst] for link in ends]
    assert (across.count(True), across.count(False)) == (3, 3)


def test_a_machine_is_scaled_until_processors_can_carry_it() -> None:
    topology = machine("dgx2")
    scale = own_scale(topology)
    slower = scaled(topology, scale)
    rates = sum(
        10**12 / edge.beta for edge in slower.edges if edge.beta and edge.tail < 16
    )  # fmt: skip
    assert rates <= emulate.FASTEST
    for edge, other in zip(topology.edges, slower.edges, strict=True):
        assert other.alpha == int(edge.alpha * scale)
        if edge.beta and other.beta:
            assert ceil_time(other.beta, 1000) == ceil_time(edge.beta * scale, 1000)
    assert own_scale(machine("slow-uplink")) == 1000


def test_why_a_machine_cannot_be_emulated_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, topology: Topology) -> None:
        with pytest.raises(InputError, match=message):
            check_emulation(topology)

    refused("at most 256 and 4096 can be emulated", machine("hub:300"))
    monkeypatch.setattr(shutil, "which", {"ip": "ip", "nsenter": "nsenter"}.get)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    refused("needs tc, which is not there", machine("ring:3"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused("needs root: it makes network namespaces", machine("ring:3"))


@needs_root
def test_what_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(topology: Topology, holders: Sequence[object]) -> None:
        del topology
        emulate._batch(holders[0], "ip", ["link add x type nonsense"])  # type: ignore[arg-type]

    monkeypatch.setattr(emulate, "_wire_up", nothing)
    with (
        pytest.raises(InputError, match="ip can't make the network: "),
        emulated(machine("ring:3")),
    ):
        pass


def test_ranks_take_the_links_of_the_places_that_they_are_moved_to() -> None:
    topology = machine("slow-uplink")
    links = len(topology.links)
    shown = {number: Way(f"s{number}", f"t{number}", number) for number in range(links)}
    order = [4, 1, 2, 3, 0, 5, 6, 7]
    moved = Emulated(topology, (), shown, tuple(range(8))).seated(order)
    assert moved.seats == tuple(order)
    for number in range(links):
        link = moved.topology.link(number)
        (old,) = topology.links_between(order[link.src], order[link.dst])
        assert moved.shown[number] == shown[old]
    # Ranks 0 and 4 have changed servers: what was inside one is between two now.
    assert moved.topology.links.alpha[moved.topology.links_between(0, 1)[0]] == 1_000_000
