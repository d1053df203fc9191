"""Ranks that an MPI launcher has started: messages over MPI, the channel as the tag."""

import os
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError, RunError
from taccl.run.hosts import Launched, listening, run_as
from taccl.run.job import Call, Job, Ran
from taccl.run.messages import End, ToldByHubError
from taccl.run.processes import compiled
from taccl.timing.deadline import Deadline

if TYPE_CHECKING:
    from mpi4py import MPI


class Requests:
    """Messages over MPI: at most one a slot is on its way.

    `ends` are the rank's; `comm` are all ranks.
    """

    def __init__(self, ends: Sequence[End], comm: "MPI.Intracomm") -> None:
        self.out, self.into = ([e for e in ends if e.out is out] for out in (True, False))
        self.comm = comm
        self.sending: list[tuple[End, list[Any]]] = [(end, []) for end in self.out]
        self.awaited: list[tuple[End, list[Any]]] = [(end, []) for end in self.into]

    def push(self) -> bool:
        """Start to send what was put in; tell whether slots of what has been sent are free."""
        freed = False
        for end, requests in self.sending:
            while end.moved < end.counters[0]:
                slot = end.moved % len(end.slots)
                data = end.slots[slot][: int(end.lengths[slot])]
                requests.append(self.comm.Isend(data, end.wire.dst, end.wire.channel))
                end.moved += 1
            while requests and requests[0].Test():
                requests.pop(0)
                end.counters[1] += 1
                freed = True
        return freed

    def pull(self, timeout: float) -> bool:
        """Look for messages until one has come, for so many seconds at most."""
        from mpi4py import MPI

        deadline = Deadline.after(timeout)
        while True:
            shown = False
            for end, requests in self.awaited:
                while end.counters[0] + len(requests) - end.counters[1] < len(end.slots):
                    slot = (int(end.counters[0]) + len(requests)) % len(end.slots)
                    requests.append(
                        self.comm.Irecv(end.slots[slot], end.wire.src, end.wire.channel)
                    )
                status = MPI.Status()
                while requests and requests[0].Test(status):
                    slot = int(end.counters[0]) % len(end.slots)
                    end.lengths[slot] = status.Get_count(MPI.BYTE)
                    requests.pop(0)
                    end.counters[0] += 1
                    shown = True
            if self.push() or shown:
                return True
            if deadline.over:
                return False
            # MPI itself never lets another rank have the processor.
            os.sched_yield()

    def idle(self) -> bool:
        """Tell whether everything that was put in has been sent."""
        return all(end.counters[1] == end.counters[0] for end in self.out)

    def close(self) -> None:
        """Take back what was prepared for messages that never come."""
        for _, requests in self.awaited:
            for request in requests:
                request.Cancel()
                request.Wait()


def run_under_mpi(job: Job, calls: Sequence[Call]) -> list[Ran]:
    """Run a program as one of the ranks that MPI has started; only rank 0 says what becomes.

    `job`, `calls`: what is run. Messages go over MPI; what else ranks tell one another goes through
    a hub in rank 0, so that who waits for whom can be told. On an error MPI ends all ranks.

    Raises InputError when mpi4py is missing, or another number of ranks was started; RunError when
    a rank is gone, or all wait for one another.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise InputError(
            f"needs mpi4py, which can't be imported: {error}", field="--mpi",
            fix="pip install 'taccl-synth[mpi]', and an MPI such as mpich",
        ) from None  # fmt: skip
    comm, ranks = MPI.COMM_WORLD, job.program.num_ranks
    if comm.size != ranks:
        raise InputError(
            f"the program is for {ranks} ranks, and MPI has started {comm.size}",
            field="--mpi", fix=f"mpirun -n {ranks} taccl run ... --mpi",
        )  # fmt: skip
    compiled()
    hosts = comm.allgather(socket.gethostname())
    address = "127.0.0.1" if len(set(hosts)) == 1 else socket.gethostbyname(hosts[0])
    listener = listening("", 0, "--mpi") if comm.rank == 0 else None
    port = comm.bcast(listener.getsockname()[1] if listener else 0)
    key = comm.bcast(secrets.token_bytes(16))
    me = Launched(comm.rank, ranks, address, port, comm.rank == 0, key)
    try:
        return run_as(me, job, calls, listener, lambda ends: Requests(ends, comm))
    except RunError as error:
        if comm.rank:
            # The first rank has time to end all.
            threading.Event().wait(GRACE)
        if comm.rank == 0 or not isinstance(error, ToldByHubError):
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            # A launcher that is told to end all may drop what it has not passed on yet.
            threading.Event().wait(PASSED_ON)
        comm.Abort(1)
        # Under load mpich's returns, and the caller would tell the error once more.
        os._exit(1)


GRACE = 5.0
"""Seconds from when a rank knows of an error until it ends all by itself."""

PASSED_ON = 0.3
"""Seconds that a launcher has to pass on what a rank wrote, before it is told to end all."""
