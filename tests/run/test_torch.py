"""Programs in place of the collectives of torch.distributed, with gloo, where torch is there."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from taccl.msccl.xml import write_xml
from tests.msccl.builders import make, mesh, pairs_schedule, ring_schedule

RANKS = 4

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

CHECKED = """
import os, sys, torch, torch.distributed as dist
import taccl.torch
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]),
                        world_size=4)
rank = dist.get_rank()
own = taccl.torch.load(sys.argv[1])
for dtype, own.batched in ((torch.float64, False), (torch.int64, True)):
    values = (torch.arange(64) * (rank + 3) % 17).to(dtype)
    for part in (values, values[:7]):
        mine, theirs = part.clone(), part.clone()
        own.all_reduce(mine)
        dist.all_reduce(theirs)
        assert torch.equal(mine, theirs), (mine, theirs)
    mine, theirs = values.new_empty(256), values.new_empty(256)
    own.all_gather_into_tensor(mine, values)
    dist.all_gather_into_tensor(theirs, values)
    assert torch.equal(mine, theirs)
    mine = values.new_empty(16)
    whole = values.clone()
    own.reduce_scatter_tensor(mine, values)
    dist.all_reduce(whole)
    assert torch.equal(mine, whole[16 * rank : 16 * rank + 16])
    mine, theirs = values.new_empty(64), values.new_empty(64)
    own.all_to_all_single(mine, values)
    dist.all_to_all_single(theirs, values)
    assert torch.equal(mine, theirs)
    for call, root in ((own.broadcast, 1), (own.reduce, 2)):
        tensor = values.clone()
        call(tensor, root)
print(rank, sorted(own.used), sorted(own.used.values()))
dist.barrier()
dist.destroy_process_group()
"""

TRAINED = """
import sys, torch, torch.distributed as dist
import taccl.torch
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]),
                        world_size=4)
rank, own = dist.get_rank(), taccl.torch.load(sys.argv[1])
losses = {}
for ours in (False, True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 31), torch.nn.Tanh(), torch.nn.Linear(31, 1))
    model = DistributedDataParallel(model.double())
    if ours:
        model.register_comm_hook(None, own.ddp_hook)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    found = []
    for _ in range(20):
        data = torch.randn(16, 8, dtype=torch.float64)
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
        found.append(loss.item())
    losses[ours] = found
assert max(abs(a - b) for a, b in zip(losses[False], losses[True])) < 1e-9
assert losses[True][-1] < losses[True][0]
print(rank, sum(own.used.values()))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    for schedule in (
        ring_schedule("allreduce", RANKS, 2), ring_schedule("allgather", RANKS, 1),
        pairs_schedule("reducescatter", mesh(RANKS), 2), pairs_schedule("alltoall", mesh(RANKS), 1),
    ):  # fmt: skip
        program = replace(make(schedule), name=schedule.collective.name)
        (folder / f"{program.collective}.xml").write_text(write_xml(program, "executor"))
    return folder


def ranks(script: str, library: Path, tmp_path: Path) -> list[str]:
    """Run a script as four ranks and return what each prints."""
    path = tmp_path / "script.py"
    path.write_text(script)
    started = [
        subprocess.Popen(
            [sys.executable, path, library, tmp_path / "meet", str(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    found = []
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            found.append(out.strip())
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return found


def test_collectives_are_those_of_the_backend(library: Path, tmp_path: Path) -> None:
    for rank, line in enumerate(ranks(CHECKED, library, tmp_path)):
        # The small tensor cuts into no whole chunks, and went to the backend.
        assert line.startswith(f"{rank} ")
        assert line.endswith("[2, 2, 2, 2]")


def test_distributed_data_parallel_trains_alike(library: Path, tmp_path: Path) -> None:
    for rank, line in enumerate(ranks(TRAINED, library, tmp_path)):
        assert line == f"{rank} 20"


def test_ranks_with_different_libraries_are_told(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (library / "allreduce.xml").read_text()
    (other / "allreduce.xml").write_text(text.replace('name="', 'name="x', 1))
    script = """
import sys, torch.distributed as dist, taccl.torch
from taccl.errors import InputError
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]),
                        world_size=4)
try:
    taccl.torch.load(sys.argv[1] if dist.get_rank() else sys.argv[1].replace("library", "other"))
except InputError as error:
    print(error.problem)
dist.barrier()
dist.destroy_process_group()
"""
    assert ranks(script, library, tmp_path) == ["ranks have different programs"] * RANKS
