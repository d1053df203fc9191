"""Small files as text, and ways to change one thing in them."""

from pathlib import Path

from hypothesis.strategies import SearchStrategy, builds, dictionaries, lists, recursive

SHARED = Path(__file__).parents[3] / "shared" / "data" / "msccl"

HEAD = (
    '<algo name="p" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce"'
    ' inplace="1" outofplace="0" minBytes="0" maxBytes="1048576">'
)


def step(number: int = 0, kind: str = "s", **values: object) -> str:
    """Return a step; everything but ``s`` and ``type`` has a harmless default."""
    record: dict[str, object] = {
        "s": number, "type": kind, "srcbuf": "i", "srcoff": 0, "dstbuf": "i", "dstoff": 0,
        "cnt": 1, "depid": -1, "deps": -1, "hasdep": 0, **values,
    }  # fmt: skip
    inside = " ".join(f'{name}="{value}"' for name, value in record.items())
    return f"      <step {inside}/>"


def block(*steps: str, number: int = 0, send: int = -1, recv: int = -1, chan: int = 0) -> str:
    inside = "".join(f"{one}\n" for one in steps)
    return f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">\n{inside}    </tb>'


def gpu(rank: int, *blocks: str, chunks: int = 2, scratch: int = 0) -> str:
    inside = "".join(f"{one}\n" for one in blocks)
    return (
        f'  <gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">\n'
        f"{inside}  </gpu>"
    )


def algo(*gpus: str, head: str = HEAD) -> str:
    return "\n".join([head, *gpus, "</algo>", ""])


def exchange() -> str:
    """Two ranks send each other a chunk and receive one: parses everywhere."""
    return algo(*(
        gpu(rank, block(step(0, "s"), step(1, "r", dstoff=1), send=1 - rank, recv=1 - rank))
        for rank in range(2)
    ))  # fmt: skip


def with_head(**values: str | None) -> str:
    """Return the exchange with attributes of ``algo`` changed (None: left out)."""
    text = exchange()
    for name, value in values.items():
        start = text.find(f' {name}="')
        end = text.find('"', text.find('"', start) + 1) + 1 if start >= 0 else text.find(">")
        start = text.find(">") if start < 0 else start
        text = text[:start] + (f' {name}="{value}"' if value is not None else "") + text[end:]
    return text


def local(*steps: str, scratch: int = 0, blocks: tuple[str, ...] = ()) -> str:
    """Return a file whose two ranks run these steps in a threadblock without peers."""
    gpus = (gpu(rank, block(*steps), *blocks, scratch=scratch) for rank in range(2))
    return algo(*gpus)


def copies(count: int) -> list[str]:
    """Return so many threadblocks of one copy."""
    return [block(step(0, "cpy", dstoff=1), number=number) for number in range(count)]


def swap(chunks: int, proto: str, low: int = 0, high: int = 0) -> str:
    """Return an allgather of two ranks that send all their chunks before they receive any."""
    head = (
        f'<algo name="swap" proto="{proto}" nchannels="1" nchunksperloop="{2 * chunks}" ngpus="2"'
        f' coll="allgather" inplace="1" outofplace="0" minBytes="{low}" maxBytes="{high}">'
    )
    gpus = []
    for rank, peer in ((0, 1), (1, 0)):
        sends = step(0, "s", cnt=chunks)
        receives = step(1, "r", dstbuf="o", dstoff=peer * chunks, cnt=chunks)
        gpus.append(
            f'  <gpu id="{rank}" i_chunks="{chunks}" o_chunks="{2 * chunks}" s_chunks="0">\n'
            f"{block(sends, receives, send=peer, recv=peer)}\n  </gpu>"
        )
    return algo(*gpus, head=head)


def element(tag: str, attributes: dict[str, str], children: list[str]) -> str:
    """Return an element, whatever its names and values are."""
    inside = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<{tag}{inside}>{''.join(children)}</{tag}>"


def trees(
    tags: SearchStrategy[str], names: SearchStrategy[str], values: SearchStrategy[str]
) -> SearchStrategy[str]:
    """Return elements in elements, with any attributes."""
    attributes = dictionaries(names, values, max_size=6)
    return recursive(
        tags.map(lambda tag: f"<{tag}/>"),
        lambda inner: builds(element, tags, attributes, lists(inner, max_size=4)),
        max_leaves=12,
    )
