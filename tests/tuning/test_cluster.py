"""The same search on a Dask cluster, and what is said when there is none."""

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from taccl.errors import InputError
from taccl.tuning.executors import dask_workshop, mpi_workshop
from taccl.tuning.search import Budget
from tests.tuning import crashing
from tests.tuning.runs import search


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Start a scheduler and two workers, each a process with one thread."""
    distributed = pytest.importorskip(
        "distributed", reason="the extra taccl-synth[dask] is not there"
    )
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs=50,
    ) as found:  # fmt: skip
        yield found.scheduler_address


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_cluster_that_loses_a_worker_finds_the_same(cluster: str, tmp_path: Path) -> None:
    budget = Budget(candidates=6)
    mark = str(tmp_path / "mark")
    workshop = dask_workshop(cluster)
    assert workshop.slots == 2
    found = search(workshop, partial(crashing.dies_once, mark), budget=budget)
    assert Path(mark).exists()
    assert [one.text() for one in found] == [one.text() for one in search(budget=budget)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_scheduler_that_does_not_answer_is_named() -> None:
    pytest.importorskip("distributed", reason="the extra taccl-synth[dask] is not there")
    with pytest.raises(InputError, match="--scheduler: no Dask scheduler at nonsense"):
        dask_workshop("nonsense://nowhere")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: dask_workshop("tcp://x:1"), r"pip install 'taccl-synth\[dask\]'"),
        (mpi_workshop, r"pip install 'taccl-synth\[mpi\]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, make: object, told: str
) -> None:
    def absent(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    assert callable(make)
    with pytest.raises(InputError, match=told):
        make()


def test_the_ranks_of_an_mpi_job_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ranks(ThreadPoolExecutor):
        """What mpi4py.futures offers, made of threads."""

        num_workers = 2

        def bootup(self) -> None:
            """Be there."""

    module = SimpleNamespace(MPIPoolExecutor=lambda: Ranks(2))
    monkeypatch.setattr(importlib, "import_module", lambda _name: module)
    budget = Budget(candidates=4)
    found = search(mpi_workshop(), budget=budget)
    assert [one.text() for one in found] == [one.text() for one in search(budget=budget)]
