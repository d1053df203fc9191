"""Training steps as text, JSON, a Chrome trace, and a page that runs no script."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from taccl.report.text import aligned, escaped, one_line, page_head
from taccl.training.operations import COMPUTE, Work
from taccl.training.simulation import Step
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
    from taccl.report.played import trace_text

    head = {
        "workload": found.work.name, "topology": found.topology,
        "step_us": microseconds(found.step.time),
    }  # fmt: skip
    return trace_text(head, _events(found.work, found.step))


def _events(work: Work, step: Step) -> Iterator[dict[str, object]]:
    """Yield the names of processes and threads, and the spans of all operations."""
    from taccl.report.played import metadata

    for number, own in enumerate(work.operations):
        ranks = [str(rank) for rank, one in enumerate(work.class_of) if one == number]
        name = f"ranks {', '.join(ranks[:8])}{' ...' if len(ranks) > 8 else ''}"
        yield metadata("process_name", number, 0, {"name": name})
        streams = {stream: tid for tid, stream in enumerate(dict.fromkeys(o.stream for o in own))}
        for stream, tid in streams.items():
            yield metadata("thread_name", number, tid, {"name": stream})
        for one, begin, end in zip(
            own, step.timeline.start[number], step.timeline.end[number], strict=True
        ):
            size = {} if one.call is None else {"size_bytes": one.call.size}
            yield {
                "name": one.name, "cat": one.stream, "ph": "X", "ts": microseconds(begin),
                "dur": microseconds(end - begin), "pid": number, "tid": streams[one.stream],
                "args": {"step": one.step, **size},
            }  # fmt: skip


WIDTH, ROW, LEFT = 1000, 28, 160
"""Of the picture, of a stream, and of the names of streams, in pixels."""

MOST_SPANS = 20_000
"""Operations that are drawn: the last."""

COLOURS = ("#4878a8", "#c0792a", "#4f8f5b", "#8a5a9e", "#a84848", "#6b7a2f")


def step_page(found: Stepped) -> str:
    """Return the HTML of a page about a training step."""
    own = found.step
    title = f"{found.work.name} on {found.topology}"
    rows = [
        ("this step", own.time), ("its passes alone", own.compute),
        ("bound of these operations", own.bound),
        *((f"exposed: {group}", time) for group, time in own.exposed.items()),
        *((f"if {one.name}", one.step.time) for one in found.what_ifs),
    ]  # fmt: skip
    if found.against is not None:
        rows.append((f"by {found.against.name}", found.against.step.time))
    parts = [
        *page_head(title),
        f'<p class="verdict">A step takes {escaped(format_time(own.time))}, {found.gap:.1%} above'
        f" its bound; collectives by {escaped(found.via)} ({escaped(found.profile)}).</p>",
        "<h2>Times</h2>",
        _table("what", "time", [(name, format_time(time)) for name, time in rows]),
        "<h2>Bytes of a step, as nccl-tests counts them</h2>",
        _table("group", "bytes", [(name, format_size(size)) for name, size in own.sent.items()]),
        "<h2>Steps</h2>",
        '<p class="hint">Each stream of the ranks that take longest; point at a bar for its'
        " name.</p>",
        *_picture(found),
    ]
    if found.policies:
        parts += [
            "<h2>Policies</h2>",
            _table("policy", "step", [
                (one.told, format_time(one.step.time)) for one in found.policies
            ]),
        ]  # fmt: skip
    return "\n".join([*parts, "</body></html>\n"])


def _table(one: str, other: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(
        f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in rows
    )
    head = f"<tr><th>{one}</th><th>{other}</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _picture(found: Stepped) -> Iterator[str]:
    """Yield the streams of the ranks that compute longest, from the middle step on."""
    work, timeline = found.work, found.step.timeline
    number = max(
        range(len(work.operations)),
        key=lambda n: sum(one.time for one in work.operations[n] if one.stream == COMPUTE),
    )
    own = work.operations[number]
    rows = [
        (one, timeline.start[number][n], timeline.end[number][n])
        for n, one in enumerate(own) if one.step >= work.steps // 2
    ][-MOST_SPANS:]  # fmt: skip
    first = min((begin for _, begin, _ in rows), default=0)
    last = max((end for _, _, end in rows), default=0)
    streams = list(dict.fromkeys(one.stream for one, _, _ in rows))

    def x(time: Time) -> float:
        return LEFT + (WIDTH - LEFT) * (time - first) / max(1, last - first)

    height = ROW * len(streams)
    yield f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
    for place, stream in enumerate(streams):
        y = ROW * place
        yield f'<text x="0" y="{y + 18}">{escaped(stream)}</text>'
        for one, begin, end in rows:
            if one.stream == stream and end > begin:
                yield (
                    f'<rect x="{x(begin):.2f}" y="{y + 3}" width="{x(end) - x(begin):.2f}"'
                    f' height="{ROW - 6}" fill="{COLOURS[place % len(COLOURS)]}"'
                    f' opacity="{0.95 if one.step % 2 else 0.65}"><title>{escaped(one.name)}, step'
                    f" {one.step}: {escaped(format_time(end - begin))}</title></rect>"
                )
    yield "</svg></div>"
