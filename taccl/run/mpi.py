"""Ranks that an MPI launcher has started: messages over MPI, the channel as the tag."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError, RunError
from taccl.run.messages import End, Mesh
from taccl.timing.deadline import Deadline

if TYPE_CHECKING:
    from mpi4py import MPI


class OverMpi:
    """What ranks tell one another, by collectives of MPI; a launcher ends all when one ends.

    `comm` are the ranks.
    """

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self.comm = comm

    def exchange(self, value: object) -> list[Any]:
        """Give a value and return those of all ranks, by rank."""
        return list(self.comm.allgather(value))

    def watched(self) -> Sequence[int]:
        """Return nothing: MPI has no descriptors."""
        return ()

    def look(self, state: Callable[[], object]) -> None:
        """Do nothing: nobody asks for the `state` of this rank."""

    def give_up(self, state: Callable[[], object]) -> None:
        """End this rank, whose `state` shows that it waits.

        Raises RunError: always.
        """
        del state
        raise RunError(
            f"rank {self.comm.rank} waits, and nothing comes", fix="run it without --mpi to see"
            " who waits for whom",
        )  # fmt: skip


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


@contextmanager
def mpi_ranks(num_ranks: int) -> Iterator[Mesh]:
    """Give what this process needs as one of the ranks of MPI; on an error all of them end.

    `num_ranks` are needed.

    Raises InputError when mpi4py is missing, or another number of ranks was started.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise InputError(
            f"needs mpi4py, which can't be imported: {error}", field="--mpi",
            fix="pip install 'taccl-synth[mpi]', and an MPI such as mpich",
        ) from None  # fmt: skip
    comm = MPI.COMM_WORLD
    if comm.size != num_ranks:
        raise InputError(
            f"the program is for {num_ranks} ranks, and MPI has started {comm.size}",
            field="--mpi", fix=f"mpirun -n {num_ranks} taccl run ... --mpi",
        )  # fmt: skip
    try:
        yield Mesh(comm.rank, OverMpi(comm), lambda ends: Requests(ends, comm))
    except RunError as error:
        import sys

        sys.stderr.write(f"error: rank {comm.rank}: {error}\n")
        sys.stderr.flush()
        comm.Abort(1)
        raise
