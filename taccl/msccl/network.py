"""Where protocol Simple hangs on a network: a broadcast or reduce between servers.

A message between servers goes through a proxy of the host. For these two collectives the host has
the proxy move one step a message (``HOST_STEPS``), and the kernel posts four (``KERNEL_STEPS``),
two at a time: the proxy waits for a step that is never posted, at every size, on all three
runtimes. LL and LL128 post one step a message, and within a server there is no proxy.
"""

from collections.abc import Iterator, Sequence

from taccl.msccl.findings import Finding, Severity
from taccl.msccl.program import Program
from taccl.msccl.runtimes import HOST_STEPS

WHY = "the host has the network move one step a message and the kernel posts four"


def hangs_between_servers(collective: str, protocol: str) -> bool:
    """Tell whether a collective's messages in a protocol never arrive at another server."""
    return protocol == "Simple" and collective in HOST_STEPS


def network_findings(program: Program, server_of: Sequence[int] | None) -> Iterator[Finding]:
    """Yield the connections between servers on which a program hangs.

    Parameters
    ----------
    server_of
        The server of every rank; None: unknown, which makes a warning of it.
    """
    if not hangs_between_servers(program.collective, program.protocol):
        return
    fix = "use LL or LL128"
    sending = [
        (rank, block)
        for rank, block in program.blocks()
        if block.send_to is not None and any(step.sends for step in block.steps)
    ]
    if server_of is None and sending:
        yield Finding(
            "network", f"a {program.collective} of protocol Simple hangs wherever it crosses"
            f" servers: {WHY}", severity=Severity.WARNING,
            fix=f"{fix}, or say with --topology or --ranks-per-node that it does not",
        )  # fmt: skip
    for rank, block in sending:
        peer = block.send_to
        if server_of is None or peer is None or not 0 <= peer < len(server_of):
            continue
        if server_of[rank] != server_of[peer]:
            yield Finding(
                "network", f"sends to gpu {peer} on another server, and a {program.collective} of"
                f" protocol Simple hangs there: {WHY}", rank, block.id, fix=fix,
            )  # fmt: skip
