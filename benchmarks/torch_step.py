"""A training step on an emulated cluster: gloo's own allreduce against programs of ``taccl``.

``python -m benchmarks.torch_step`` (Linux, root, torch) emulates ``slow-uplink``, makes an
allreduce for it, and trains a small model with DistributedDataParallel on its eight ranks: first
with gloo's allreduce, then with ``taccl.torch``, both over gloo's connections on the same links. It
prints losses and seconds of a step, and ends with status 1 where losses differ or a step is slower.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from taccl.apps.inputs import MachineOptions, load_machine
from taccl.run.emulate import emulated, fabric_address, own_scale, scaled

CLOSE = 1e-6
STEPS = 8


def train(library: str, rank: int, ranks: int, width: int) -> None:
    """Be one rank: train twice, and print losses and seconds as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import taccl.torch

    torch.set_num_threads(1)
    address = f"tcp://{fabric_address(0)}:29500"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    own = taccl.torch.load(library)
    found: dict[str, object] = {}
    for name in ("gloo", "taccl"):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers).double())
        if name == "taccl":
            model.register_comm_hook(None, own.ddp_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.manual_seed(rank)
        losses, seconds = [], []
        for _ in range(STEPS):
            data = torch.randn(32, 64, dtype=torch.float64)
            dist.barrier()
            began = time.perf_counter()
            loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - began)
            losses.append(loss.item())
        found[name] = {"losses": losses, "seconds": median(seconds[1:])}
    print(json.dumps({**found, "used": own.used}))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=480, help="of the hidden layer")
    parser.add_argument("--rank", type=int, help="be this rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--library", default="")
    given = parser.parse_args()
    if given.rank is not None:
        train(given.library, given.rank, given.ranks, given.width)
        return
    machine = load_machine("slow-uplink", MachineOptions(alpha_rule="delay"))
    size = 8 * (64 * given.width + given.width + given.width + 1)
    with emulated(scaled(machine, own_scale(machine))) as live, tempfile.TemporaryDirectory() as f:
        library = Path(f) / "library"
        library.mkdir()
        subprocess.run(
            [sys.executable, "-m", "taccl", "synthesize", "slow-uplink", "allreduce",
             "--alpha-rule", "delay", "--size", str(size), "--min-bytes", "1", "--max-bytes", "1G",
             "--time-limit", "20", "--dtype", "double", "--quiet",
             "-o", str(library / "allreduce.xml")],
            check=True, capture_output=True,
        )  # fmt: skip
        started = [
            subprocess.Popen(
                ["nsenter", "--net", "--target", str(live.holders[rank].pid), sys.executable, "-m",
                 "benchmarks.torch_step", "--rank", str(rank), "--library", str(library),
                 "--width", str(given.width)],
                stdout=subprocess.PIPE, text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "fabric", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(given.ranks)
        ]  # fmt: skip
        told = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    worst = max(
        abs(one - other)
        for each in told
        for one, other in zip(each["gloo"]["losses"], each["taccl"]["losses"], strict=True)
    )
    gloo, ours = (max(each[name]["seconds"] for each in told) for name in ("gloo", "taccl"))
    print(
        f"{size} bytes of gradients on slow-uplink: a step takes {gloo:.3f} s with gloo's"
        f" allreduce, {ours:.3f} s with {told[0]['used']}: {gloo / ours:.2f} times as fast;"
        f" losses differ by at most {worst:.1e}"
    )
    sys.exit(worst > CLOSE or ours >= gloo)


if __name__ == "__main__":
    main()
