"""Where candidates run: processes of this machine, a Dask cluster, MPI ranks, or right here.

All are ``concurrent.futures`` executors underneath. What they have in common is a
:class:`Workshop`: it says how many tasks it can run at once, takes one, and can be made anew
after a worker was lost. A solver gets one thread: the workers are the parallelism.
"""

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from taccl.errors import InputError

ONE_THREAD = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)  # fmt: skip
"""Variables by which libraries are told to use one thread."""

Work = Callable[[str], str]
"""From the text of a task to that of its result."""


class Workshop(Protocol):
    """Runs tasks."""

    @property
    def slots(self) -> int:
        """How many at once."""

    @property
    def shares_fate(self) -> bool:
        """Whether all tasks that run are lost with one worker."""

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Start a task, or queue it."""

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error of a future says that its worker is gone."""

    def renew(self) -> None:
        """Make up for lost workers.

        Raises InputError when there will be no others.
        """

    def close(self, *, kill: bool) -> None:
        """End; with ``kill``, at once, whatever is still running."""


class Processes:
    """A pool of processes on this machine.

    They are spawned, as a fork of a process with threads may hang, and end when this process
    does, even if it is killed.

    Parameters
    ----------
    workers
        How many.
    """

    shares_fate = True

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._pool: ProcessPoolExecutor | None = None
        self._before: set[int] = set()

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Start a task in a process that is free, or queue it."""
        if self._pool is None:
            self._before = {child.pid or 0 for child in multiprocessing.active_children()}
            self._pool = ProcessPoolExecutor(
                self.slots, multiprocessing.get_context("spawn"), initializer=_begin
            )
        added = [name for name in ONE_THREAD if name not in os.environ]
        os.environ.update(dict.fromkeys(added, "1"))  # for the processes that this may start
        try:
            return self._pool.submit(work, task)
        finally:
            for name in added:
                os.environ.pop(name, None)

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error says that a process ended before its task did."""
        return isinstance(error, BrokenProcessPool)

    def renew(self) -> None:
        """Drop a broken pool; the next task makes a new one."""
        self.close(kill=True)

    def close(self, *, kill: bool) -> None:
        """End all processes."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        pool.shutdown(wait=False, cancel_futures=True)
        mine = [c for c in multiprocessing.active_children() if (c.pid or 0) not in self._before]
        for child in mine if kill else ():
            child.kill()
        for child in mine:
            child.join()


def _begin() -> None:
    """Let this process end when its parent does, and leave Ctrl-C to the parent.

    A worker holds both ends of the pipe that it waits at, so it would never see the other go.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Borrowed:
    """Any other executor: Dask's or MPI's.

    Parameters
    ----------
    executor
        What runs the tasks.
    slots
        How many at once.
    losses
        Names of the errors that say that a worker is gone.
    end
        Called when all is over, after the executor.
    gone
        Tells, given an error or None, whether who gives the workers out is gone.
    """

    shares_fate = False

    def __init__(
        self,
        executor: Executor,
        slots: int,
        losses: frozenset[str] = frozenset(),
        end: Callable[[], object] = lambda: None,
        gone: Callable[[BaseException | None], bool] = lambda _error: False,
    ) -> None:
        self.slots, self._executor, self._losses, self._end = slots, executor, losses, end
        self._gone = gone

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Start a task, or queue it.

        Raises InputError when there is nobody to run it any more.
        """
        try:
            return self._executor.submit(work, task)
        except Exception as error:
            if self._gone(error):
                raise _scheduler_gone() from None
            raise

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error says that the worker is gone."""
        return type(error).__name__ in self._losses

    def renew(self) -> None:
        """Look whether the cluster is there: it looks after its workers."""
        if self._gone(None):
            raise _scheduler_gone()

    def close(self, *, kill: bool) -> None:
        """End the executor, without waiting for what runs if ``kill``."""
        # Dask's executor takes no cancel_futures; whoever submitted them has cancelled them.
        try:
            self._executor.shutdown(wait=not kill)
        except Exception as error:
            if not self._gone(error):
                raise
        finally:
            self._end()


def here() -> Workshop:
    """Return one thread of this process, in which a search that hangs can't be ended."""
    return Borrowed(ThreadPoolExecutor(1), 1)


DASK_LOSSES = frozenset({"KilledWorker", "WorkerLost", "CancelledError", "FutureCancelledError"})

DASK_CLOSED = "ClosedClientError"
"""What a Dask client says that has given its scheduler up."""


def _scheduler_gone() -> InputError:
    return InputError(
        "the Dask scheduler is gone", field="--scheduler",
        fix="start it and give the same command again: what is finished is kept",
    )  # fmt: skip


def dask_workshop(address: str) -> Workshop:
    """Return the workers of a Dask scheduler, such as ``tcp://head:8786``.

    Raises InputError when the package is missing, or nobody answers.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise InputError(
            "the package distributed is not installed", field="--scheduler",
            fix="pip install 'taccl-synth[dask]'",
        ) from None  # fmt: skip
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler at {address[:100]}: {str(error).splitlines()[0][:100]}",
            field="--scheduler", fix="start one with: dask scheduler",
        ) from None  # fmt: skip
    threads = sum(client.ncores().values())
    if not threads:
        client.close()
        raise InputError(
            f"the Dask scheduler at {address[:100]} has no workers", field="--scheduler",
            fix=f"start some with: dask worker {address[:100]} --nthreads 1",
        )  # fmt: skip

    def gone(error: BaseException | None) -> bool:
        return type(error).__name__ == DASK_CLOSED or client.status != "running"

    return Borrowed(client.get_executor(pure=False), threads, DASK_LOSSES, client.close, gone)


def mpi_workshop() -> Workshop:
    """Return the other ranks of an MPI job, under ``mpiexec ... python -m mpi4py.futures``.

    Raises InputError when the package or the MPI library is missing.
    """
    try:
        futures: Any = importlib.import_module("mpi4py.futures")
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"MPI can't be used: {str(error).splitlines()[0][:100]}", field="--mpi",
            fix="pip install 'taccl-synth[mpi]', with an MPI library",
        ) from None  # fmt: skip
    executor = futures.MPIPoolExecutor()
    executor.bootup()
    return Borrowed(executor, max(1, executor.num_workers))
