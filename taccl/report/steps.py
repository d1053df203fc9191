"""Training steps as text, JSON and a Chrome trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from taccl.report.text import aligned, one_line
from taccl.training.operations import Work
from taccl.training.steps import Step
from taccl.units import Time, format_size, format_time, microseconds


@dataclass(frozen=True, slots=True)
class What:
    """A step under another condition, and what that is."""

    name: str
    step: Step


@dataclass(frozen=True, slots=True)
class Policy:
    """How gradients are summed, and what a step takes so.

    `bucket`, `order`, `partition`, `wait` and `overlap` are those of a workload file, in bytes.
    """

    bucket: int | None
    order: str
    partition: int | None
    wait: str
    overlap: str
    step: Step

    @property
    def told(self) -> str:
        """The policy as a workload file has it."""
        bucket = "all" if self.bucket is None else format_size(self.bucket)
        piece = "none" if self.partition is None else format_size(self.partition)
        return (
            f"bucket: {bucket}, order: {self.order}, partition: {piece}, wait: {self.wait},"
            f" overlap: {self.overlap}"
        )


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a training step takes, and what it would take.

    `work`: what ranks do.
    `topology`: its name.
    `profile`: what messages are charged.
    `via`: by which algorithm collectives run.
    `step`: what a step takes.
    `what_ifs`: the same under other conditions.
    `against`: by another algorithm; None: not asked.
    `policies`: of a sweep, the quickest first.
    """

    work: Work
    topology: str
    profile: str
    via: str
    step: Step
    what_ifs: tuple[What, ...]
    against: What | None = None
    policies: tuple[Policy, ...] = ()

    @property
    def gap(self) -> float:
        """Time over bound, less one."""
        return self.step.time / self.step.bound - 1 if self.step.bound else 0.0

    @property
    def saved(self) -> float | None:
        """The part of the other algorithm's step that is saved; None: none was asked for."""
        if self.against is None:
            return None
        other = self.against.step.time
        return 1 - self.step.time / other if other else 0.0


def _us(times: Mapping[str, Time]) -> dict[str, float]:
    return {name: microseconds(time) for name, time in sorted(times.items())}


def as_object(found: Stepped) -> dict[str, object]:
    """Return a result as JSON has it."""
    own = found.step
    return {
        "workload": found.work.name,
        "topology": found.topology,
        "ranks": found.work.ranks,
        "profile": found.profile,
        "via": found.via,
        "step_us": microseconds(own.time),
        "compute_us": microseconds(own.compute),
        "exposed_us": _us(own.exposed),
        "bound_us": microseconds(own.bound),
        "gap": found.gap,
        "steady": own.steady,
        "bytes": dict(sorted(own.sent.items())),
        "if": {one.name: microseconds(one.step.time) for one in found.what_ifs},
        "against": None if found.against is None else {
            "via": found.against.name, "step_us": microseconds(found.against.step.time),
            "exposed_us": _us(found.against.step.exposed), "saved": found.saved,
        },
        "policies": [
            {"policy": one.told, "step_us": microseconds(one.step.time)} for one in found.policies
        ],
    }  # fmt: skip


def as_text(found: Stepped) -> str:
    """Return a result for people."""
    own, work = found.step, found.work
    lines = [
        f"{one_line(work.name)} on {one_line(found.topology)}, {work.ranks} ranks, collectives by"
        f" {found.via} ({found.profile})",
        f"  step      {format_time(own.time)}",
        f"  compute   {format_time(own.compute)}",
    ]
    exposed = sorted(own.exposed.items(), key=lambda row: -row[1])
    told = ", ".join(f"{format_time(time)} {one_line(group)}" for group, time in exposed if time)
    lines.append(f"  exposed   {told or 'nothing'}")
    lines.append(f"  bound     {format_time(own.bound)}, gap {found.gap:.1%}")
    if not own.steady:
        lines.append(
            f"  note      a mean: steps differ after {work.steps} of them; play more (--steps)"
        )
    sent = ", ".join(f"{format_size(size)} {one_line(name)}" for name, size in own.sent.items())
    lines.append(f"  bytes     {sent or 'none'} a step, as nccl-tests counts them")
    lines += [
        f"  if {one.name}: {format_time(one.step.time)} ({1 - one.step.time / own.time:.1%} less)"
        if own.time
        else f"  if {one.name}: the same"
        for one in found.what_ifs
    ]
    if found.against is not None:
        other = found.against.step.time
        lines.append(f"  by {found.against.name}: {format_time(other)}")
        verb = "save" if other >= own.time else "cost"
        lines.append(f"  {found.via} algorithms {verb} {abs(found.saved or 0):.1%} of the step")
    if found.policies:
        rows = [["step", "policy"]]
        rows += [[format_time(one.step.time), one.told] for one in found.policies]
        lines += ["", *aligned(rows, str.ljust)]
    return "\n".join(lines)


def step_trace(found: Stepped) -> str:
    """Return the steps as Chrome trace JSON: a process a class of ranks, a thread a stream."""
    from taccl.report.trace import trace_text

    head = {
        "workload": found.work.name, "topology": found.topology,
        "step_us": microseconds(found.step.time),
    }  # fmt: skip
    return trace_text(head, _events(found.work, found.step))


def _events(work: Work, step: Step) -> Iterator[dict[str, object]]:
    """Yield the names of processes and threads, and the spans of all operations."""
    for number, own in enumerate(work.operations):
        ranks = [str(rank) for rank, one in enumerate(work.class_of) if one == number]
        name = f"ranks {', '.join(ranks[:8])}{' ...' if len(ranks) > 8 else ''}"
        yield {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}}
        streams = {stream: tid for tid, stream in enumerate(dict.fromkeys(o.stream for o in own))}
        for stream, tid in streams.items():
            yield {
                "name": "thread_name", "ph": "M", "pid": number, "tid": tid,
                "args": {"name": stream},
            }  # fmt: skip
        for one, begin, end in zip(
            own, step.timeline.start[number], step.timeline.end[number], strict=True
        ):
            size = {} if one.call is None else {"size_bytes": one.call.size}
            yield {
                "name": one.name, "cat": one.stream, "ph": "X", "ts": microseconds(begin),
                "dur": microseconds(end - begin), "pid": number, "tid": streams[one.stream],
                "args": {"step": one.step, **size},
            }  # fmt: skip
