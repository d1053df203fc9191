"""``--in-network``: where switches may copy and add, and that XML never depends on it."""

import json
from pathlib import Path
from typing import Any

from taccl.topology.file import document_text, load_topology, topology_document
from taccl.topology.graph import Topology
from tests.cli.conftest import Run
from tests.in_network import nvls


def written(topology: Topology, path: Path) -> str:
    path.write_text(document_text(topology_document(topology)))
    return str(path)


def test_commands_let_switches_add_only_where_the_runtime_can(run: Run, tmp_path: Path) -> None:
    file = written(nvls(), tmp_path / "nvls.yaml")
    plain = written(load_topology("hub:4@1GB/s,1us"), tmp_path / "plain.yaml")
    common = ["--size", "4KB", "--chunks", "1", "--time-limit", "60", "--quiet", "--json"]

    def asked(*words: str) -> dict[str, Any]:
        done = run(*words)
        assert done.status == 0, done.err
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    auto = asked("synthesize", file, "allreduce", *common, "--runtime", "none", "--engine", "nvls")
    assert (auto["engine"], auto["makespan_us"]) == ("nvls", 7)
    off = ["synthesize", file, "allreduce", *common, "--runtime", "none", "--in-network", "off"]
    assert asked(*off, "--engine", "ring")["makespan_us"] == 2 * 3 * 2
    # XML is the same, byte for byte, whatever the switches can do.
    texts = []
    for each in (file, plain):
        xml = tmp_path / "made.xml"
        asked("synthesize", each, "allreduce", *common, "--engine", "ring", "-o", str(xml))
        texts.append(xml.read_text().replace("nvls", "plain"))
    assert texts[0] == texts[1]
    bounds = [asked("bound", file, "allreduce", "--size", "64KB", "--json", "--in-network", mode)
              for mode in ("off", "on")]  # fmt: skip
    assert bounds[0]["bound_us"] == asked("bound", plain, "allreduce", "--size", "64KB", "--json")[
        "bound_us"]  # fmt: skip
    assert bounds[1]["bound_us"] <= 82 < bounds[0]["bound_us"]
    done = run("synthesize", file, "allreduce", "--in-network", "maybe")
    assert (done.status, "--in-network" in done.err) == (2, True)
