"""The page of a training step: what it takes, what would help, and its last steps drawn.

It needs nothing but itself, and runs no script.
"""

from collections.abc import Iterator
from importlib.resources import files

from taccl.report.steps import Stepped
from taccl.report.text import escaped
from taccl.training.operations import COMPUTE
from taccl.units import Time, format_size, format_time

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

WIDTH, ROW, LEFT = 1000, 28, 160
"""Of the picture, of a stream, and of the names of streams, in pixels."""

MOST_SPANS = 20_000
"""Operations that are drawn: the last."""

COLOURS = ("#4878a8", "#c0792a", "#4f8f5b", "#8a5a9e", "#a84848", "#6b7a2f")


def step_page(found: Stepped) -> str:
    """Return the HTML of a page about a training step."""
    own = found.step
    title = f"{found.work.name} on {found.topology}"
    style = files("taccl.report").joinpath("page.css").read_text(encoding="utf-8")
    rows = [
        ("this step", own.time), ("its passes alone", own.compute),
        ("bound of these operations", own.bound),
        *((f"exposed: {group}", time) for group, time in own.exposed.items()),
        *((f"if {one.name}", one.step.time) for one in found.what_ifs),
    ]  # fmt: skip
    if found.against is not None:
        rows.append((f"by {found.against.name}", found.against.step.time))
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>",
        f"<h1>{escaped(title)}</h1>",
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
