"""What the three parsers refuse, take, and take although it breaks: small files and the probes."""

import csv

import pytest

from taccl.msccl.parser import parse, read_document
from taccl.msccl.program import Op, Severity, StepRef
from taccl.msccl.verdict import judge_text
from tests.msccl.texts import SHARED, algo, block, copies, exchange, gpu, local, step, with_head
from tests.sweep import for_each

RUNTIMES = ("msccl", "executor", "rccl")
PROBES = SHARED / "probes"


def words(text: str) -> str:
    """Return the worst severity on msccl, executor and rccl: ``ok`` where there is none."""
    found = [judge_text(text.encode(), name, structure_only=True).worst for name in RUNTIMES]
    return " ".join("ok" if worst is None else worst.value for worst in found)


OK = "ok ok ok"
REFUSED = "rejected rejected rejected"
BREAKS = "breaks breaks breaks"
ONLY_MSCCL = "ok rejected rejected"
NOT_MSCCL = "rejected ok ok"


def edited(old: str, new: str, count: int = 1) -> str:
    text = exchange()
    assert old in text
    return text.replace(old, new, count)


def reductions(count: int, *, posts_at: int = -1, offset: int = 0) -> str:
    """Return ranks that add so many scratch chunks to one chunk."""
    steps = [
        step(n, "re", srcbuf="s", srcoff=n, dstoff=offset, hasdep=int(n == posts_at))
        for n in range(count)
    ]
    return local(*steps, scratch=40)


def senders(count: int, *, steps: bool = True) -> str:
    """Return a rank that sends to so many others on one channel."""
    first = gpu(
        0,
        *(
            block(*([step()] if steps else []), number=rank - 1, send=rank)
            for rank in range(1, count + 1)
        ),
    )
    others = (
        gpu(rank, block(*([step(0, "r")] if steps else []), recv=0)) for rank in range(1, count + 1)
    )
    return algo(first, *others).replace('ngpus="2"', f'ngpus="{count + 1}"')


def chained(*tail: str) -> str:
    """Return ranks with a step that posts, a nop that waits for it, and more in a second block."""
    first = block(step(0, "cpy", dstoff=1, hasdep=1))
    nop = step(0, "nop", srcoff=-1, dstoff=-1, cnt=0, depid=0, deps=0)
    return algo(*(gpu(rank, first, block(nop, *tail, number=1)) for rank in range(2)))


HEADS: dict[str, tuple[str, str]] = {
    "the exchange": (exchange(), OK),
    **{
        f"no {name}": (with_head(**{name: None}), REFUSED)
        for name in ("proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace")
    },
    **{
        f"no {name}": (with_head(**{name: None}), ONLY_MSCCL)
        for name in ("outofplace", "minBytes", "maxBytes")
    },
    "no name": (with_head(name=None), NOT_MSCCL),
    "an empty name": (with_head(name=""), OK),
    "a name of 64 characters": (with_head(name="x" * 64), OK),
    **{f"proto {name}": (with_head(proto=name), OK) for name in ("Simple", "LL", "LL128")},
    **{
        f"proto {name!r}": (with_head(proto=name), REFUSED)
        for name in ("ll", "SIMPLE", "LL256", "", "Simple ")
    },
    **{
        f"coll {name}": (with_head(coll=name), OK)
        for name in ("allreduce", "reduce", "broadcast", "alltoall")
    },
    "coll custom": (with_head(coll="custom"), ONLY_MSCCL),
    "coll reduce_scatter": (
        with_head(coll="reduce_scatter").replace('o_chunks="2"', 'o_chunks="1"'), ONLY_MSCCL
    ),
    **{
        f"coll {name}": (with_head(coll=name), NOT_MSCCL)
        for name in ("reducescatter", "gather", "scatter", "send", "recv", "alltoallv")
    },
    **{
        f"coll {name!r}": (with_head(coll=name), REFUSED)
        for name in ("sendrecv", "AllReduce", "reduce-scatter", "")
    },
    "minBytes above maxBytes": (with_head(minBytes="8", maxBytes="4"), "rejected never never"),
    "minBytes at maxBytes": (with_head(minBytes="8", maxBytes="8"), "never ok ok"),
    "maxBytes 0": (with_head(maxBytes="0"), "never ok ok"),
    "maxBytes 0 and minBytes 1": (with_head(minBytes="1", maxBytes="0"), NOT_MSCCL),
    "minBytes below 0": (with_head(minBytes="-1"), NOT_MSCCL),
    "maxBytes below 0": (with_head(maxBytes="-1"), "rejected never never"),
    "maxBytes abc": (with_head(maxBytes="abc"), "never ok ok"),
    "maxBytes beyond 64 bits": (with_head(maxBytes="9" * 30), OK),
    "neither mode": (with_head(inplace="0", outofplace="0"), "ok never never"),
    "both modes": (with_head(inplace="1", outofplace="1"), OK),
    "inplace yes": (with_head(inplace="yes"), "ok never never"),
    "nthreads 96": (with_head(nthreads="96"), OK),
    "nthreads 100": (with_head(nthreads="100"), NOT_MSCCL),
    "32 channels": (with_head(nchannels="32"), OK),
    "33 channels": (with_head(nchannels="33"), "breaks breaks ok"),
    "129 channels": (with_head(nchannels="129"), BREAKS),
    "no channels": (with_head(nchannels="0"), BREAKS),
    "no chunks": (with_head(nchunksperloop="0"), "rejected breaks breaks"),
    "chunks that don't fit": (with_head(nchunksperloop="4"), NOT_MSCCL),
    "more ranks than gpus": (with_head(ngpus="3"), OK),
    "fewer ranks than gpus": (with_head(ngpus="1"), "rejected breaks breaks"),
    "no ranks": (with_head(ngpus="0"), REFUSED),
}  # fmt: skip

BODIES: dict[str, tuple[str, str]] = {
    **{
        f"a gpu without {name}": (edited(f' {name}="2"', ""), REFUSED)
        for name in ("i_chunks", "o_chunks")
    },
    "a gpu without s_chunks": (edited(' s_chunks="0"', ""), REFUSED),
    "scratch below 0": (edited('s_chunks="0"', 's_chunks="-1"'), REFUSED),
    "an unused alias": (edited('o_chunks="2"', 'o_chunks="0"'), OK),
    "a gpu missing": (algo(gpu(0, block())), OK),
    "no gpu": (algo(), OK),
    "a gpu twice": (algo(gpu(0, block()), gpu(0, block()), gpu(1, block())), OK),
    "a gpu beyond ngpus": (algo(gpu(0), gpu(1), gpu(2)), OK),
    **{
        f"a threadblock without {name}": (edited(f' {name}="{value}"', ""), REFUSED)
        for name, value in (("send", 1), ("recv", 1), ("chan", 0))
    },
    "a threadblock without id": (edited('<tb id="0"', "<tb"), REFUSED),
    "a threadblock id below 0": (edited('<tb id="0"', '<tb id="-1"'), REFUSED),
    "threadblocks 1 only": (edited('<tb id="0"', '<tb id="1"'), REFUSED),
    "threadblocks twice": (local(step(0, "cpy"), blocks=(block(),)), REFUSED),
    "threadblocks backwards": (algo(*(gpu(r, *copies(3)[::-1]) for r in range(2))), OK),
    "no threadblocks": (algo(gpu(0), gpu(1)), OK),
    "64 threadblocks": (algo(gpu(0, *copies(64)), gpu(1)), OK),
    "65 threadblocks": (algo(gpu(0, *copies(65)), gpu(1)), "ok ok rejected"),
    "128 threadblocks": (algo(gpu(0, *copies(128)), gpu(1)), "ok ok rejected"),
    "129 threadblocks": (algo(gpu(0, *copies(129)), gpu(1)), "breaks breaks rejected"),
    "217 threadblocks": (algo(gpu(0, *copies(217)), gpu(1)), "rejected breaks rejected"),
    "1025 threadblocks": (algo(gpu(0, *copies(1025)), gpu(1)), "breaks breaks rejected"),
    "itself as peer": (edited('send="1"', 'send="0"'), REFUSED),
    "itself as source": (edited('recv="1"', 'recv="0"'), REFUSED),
    "peer -2": (edited('send="1"', 'send="-2"'), REFUSED),
    "a peer beyond ngpus": (edited('send="1"', 'send="2"'), "rejected breaks breaks"),
    "channel -1": (edited('chan="0"', 'chan="-1"'), REFUSED),
    "channel 32 of 33": (
        with_head(nchannels="33").replace('chan="0"', 'chan="32"'), "breaks breaks ok"
    ),
    "channel 33 of 34": (
        with_head(nchannels="34").replace('chan="0"', 'chan="33"'), "rejected rejected ok"
    ),
    "channel 128 of 129": (
        with_head(nchannels="129").replace('chan="0"', 'chan="128"'), "rejected rejected breaks"
    ),
    "a channel that is not opened": (exchange().replace('chan="0"', 'chan="1"'), BREAKS),
    "a lonely threadblock on a channel that is not opened": (
        algo(*(gpu(r, block(step(0, "cpy", dstoff=1), chan=5)) for r in range(2))), OK
    ),
    "two threadblocks on one end": (
        algo(*(gpu(r, *(block(step(), step(1, "r", dstoff=1), number=n, send=1 - r, recv=1 - r)
                        for n in range(2))) for r in range(2))), BREAKS
    ),
    "32 senders on a channel": (senders(32), OK),
    "33 senders on a channel": (senders(33), REFUSED),
    "33 silent senders on a channel": (senders(33, steps=False), BREAKS),
}  # fmt: skip

STEPS: dict[str, tuple[str, str]] = {
    **{
        f"a step without {name}": (
            local(step(0, "cpy", dstoff=1).replace(f' {name}="', f' x{name}="')), REFUSED
        )
        for name in (
            "s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep",
        )
    },
    "s below 0": (local(step(-1, "cpy", dstoff=1)), REFUSED),
    "s 63": (local(step(63, "cpy", dstoff=1)), OK),
    "s 64": (local(step(64, "cpy", dstoff=1)), ONLY_MSCCL),
    "s 255": (local(step(255, "cpy", dstoff=1)), ONLY_MSCCL),
    "s 256": (local(step(256, "cpy", dstoff=1)), REFUSED),
    "the same s": (local(*[step(0, "cpy", dstoff=1)] * 3), OK),
    "65 steps of one number": (local(*[step(0, "cpy", dstoff=1)] * 65), "ok breaks breaks"),
    "257 steps of one number": (local(*[step(0, "cpy", dstoff=1)] * 257), BREAKS),
    **{f"type {kind}": (local(step(0, kind, dstoff=1)), OK) for kind in ("cpy", "re")},
    **{
        f"type {kind!r}": (local(step(0, kind, dstoff=1)), REFUSED)
        for kind in ("S", "send", "copy", "rc", "")
    },
    "type ra": (local(step(0, "ra", dstoff=1)), "breaks rejected rejected"),
    **{
        f"type {kind}": (exchange().replace('type="r"', f'type="{kind}"'), "ok ok breaks")
        for kind in ("rcs", "rrs", "rrc", "rrcs")
    },
    "a send without peer": (local(step(0, "s")), REFUSED),
    "a receive without peer": (local(step(0, "r")), REFUSED),
    "rcs without send": (edited('send="1"', 'send="-1"').replace('"s"', '"rcs"', 1), REFUSED),
    **{
        f"buffer {name!r}": (local(step(0, "cpy", dstoff=1, dstbuf=name)), REFUSED)
        for name in ("x", "I", "", "input")
    },
    "an unused buffer that is none": (edited('dstbuf="i"', 'dstbuf="q"'), REFUSED),
    "a source at the end": (local(step(0, "cpy", srcoff=2, dstoff=1)), REFUSED),
    "a target at the end": (local(step(0, "cpy", dstoff=2)), REFUSED),
    "scratch that is not there": (local(step(0, "cpy", dstbuf="s")), REFUSED),
    "a source at -1": (local(step(0, "cpy", srcoff=-1, dstoff=1)), OK),
    "a source at -2": (local(step(0, "cpy", srcoff=-2, dstoff=1)), REFUSED),
    "an unused operand far out": (edited('dstoff="0"', 'dstoff="999"'), OK),
    "a range past the end": (local(step(0, "cpy", srcoff=1, dstoff=0, cnt=2)), OK),
    "rrc far out": (
        exchange().replace('type="r" srcbuf="i" srcoff="0"', 'type="rrc" srcbuf="i" srcoff="9"'),
        "ok ok breaks",
    ),
    "71 chunks": (local(step(0, "cpy", dstoff=1, cnt=71)), OK),
    "72 chunks": (local(step(0, "cpy", dstoff=1, cnt=72)), REFUSED),
    "-1 chunks": (local(step(0, "cpy", dstoff=1, cnt=-1)), REFUSED),
    "0 chunks": (local(step(0, "cpy", dstoff=1, cnt=0)), OK),
    "0 chunks sent": (edited('cnt="1"', 'cnt="0"', 4), OK),
    "hasdep 2": (local(step(0, "cpy", dstoff=1, hasdep=2)), REFUSED),
    "hasdep -1": (local(step(0, "cpy", dstoff=1, hasdep=-1)), REFUSED),
    "hasdep 2 on a nop": (
        chained(step(1, "cpy", depid=0, deps=0)).replace('cnt="0" depid="0" deps="0" hasdep="0"',
                                                        'cnt="99" depid="0" deps="0" hasdep="2"'),
        OK,
    ),
    "a chain of dependences": (chained(step(1, "cpy", depid=0, deps=0)), OK),
    "a chain that ends without one": (chained(step(1, "cpy")), REFUSED),
    "a nop at the end": (chained(), OK),
    "a nop without dependence": (local(step(0, "nop", cnt=0), step(1, "cpy", dstoff=1)), OK),
    "a nop in another buffer": (local(step(0, "nop", cnt=0, srcbuf="q")), REFUSED),
    "a wait for its own later step": (
        local(step(0, "cpy", depid=0, deps=1), step(1, "cpy", dstoff=1, hasdep=1)), OK
    ),
    "a wait for a threadblock that is not there": (
        local(step(0, "cpy", depid=3, deps=0, dstoff=1)), BREAKS
    ),
    "a wait that no step posts for": (
        local(step(0, "cpy", dstoff=1), step(1, "cpy", depid=0, deps=0)), BREAKS
    ),
    "15 reductions": (reductions(15), OK),
    "16 reductions": (reductions(16), "breaks breaks ok"),
    "30 reductions in two runs": (reductions(30, posts_at=14), OK),
    "17 reductions, cut by the cap": (reductions(17, posts_at=3), OK),
    "20 reductions after the cap": (reductions(33, posts_at=15), "breaks breaks ok"),
    "a reduction run after a nop chain": (
        chained(
            step(1, "re", srcbuf="s", dstoff=1, depid=0, deps=0),
            step(2, "nop", cnt=0, depid=0, deps=0),
            step(3, "re", srcbuf="s", srcoff=0, dstoff=1),
        ).replace('s_chunks="0"', 's_chunks="2"'), OK,
    ),
}  # fmt: skip

CASES = {**HEADS, **BODIES, **STEPS}


@for_each("kind", CASES)
def test_each_runtime_makes_of_it(kind: str) -> None:
    text, expected = CASES[kind]
    assert words(text) == expected


def probes() -> list[dict[str, str]]:
    if not PROBES.exists():
        return []
    with (PROBES / "verdicts.tsv").open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def verdict(name: str, told: str) -> str:
    """Return a severity for a verdict of the real parser.

    What it says of fused reductions is of the kernels of msccl and executor: that of rccl adds
    them one by one (``mscclReduce``).
    """
    if name == "rccl" and "fused reductions" in told:
        return "ok"
    return "rejected" if told.startswith("REJECT") else "breaks" if "{" in told else "ok"


@pytest.mark.skipif(not PROBES.exists(), reason="the probes are not on this machine")
def test_every_probe_fares_as_with_the_real_parsers() -> None:
    found = {
        (row["file"], row["probe"]): words((PROBES / row["file"]).read_text()) for row in probes()
    }
    expected = {
        (row["file"], row["probe"]): " ".join(verdict(name, row[name]) for name in RUNTIMES)
        for row in probes()
    }
    assert len(found) == 65
    assert found == expected


def test_every_finding_of_a_parser_has_a_line_a_column_and_a_fix() -> None:
    for text, _ in CASES.values():
        for name in RUNTIMES:
            for finding in parse(read_document(text), name).findings:
                assert finding.line
                assert finding.column
                assert finding.fix


def test_a_finding_names_gpu_threadblock_step_and_line() -> None:
    text = exchange().replace('type="r" srcbuf="i" srcoff="0"', 'type="q" srcbuf="i" srcoff="0"')
    first, second = judge_text(text.encode(), "rccl", structure_only=True).findings
    assert (first.gpu, first.threadblock, first.step, first.line, first.column) == (0, 0, 1, 5, 7)
    assert (second.gpu, second.line) == (1, 11)


def test_limits_are_found_with_their_lines() -> None:
    found = judge_text(exchange().replace('"1" chan="0"', '"1" chan="1"').encode(), "executor")
    by_rule = {finding.rule: finding for finding in found.findings}
    assert (by_rule["channels"].line, by_rule["channels"].column) == (3, 5)


def steps_of(text: str, runtime: str = "executor") -> list[tuple[Op, StepRef | None]]:
    """Return what the kernel runs in the last threadblock of gpu 0."""
    program = parse(read_document(text), runtime).program
    assert program is not None
    return [(one.op, one.depends) for one in program.gpus[0].threadblocks[-1].steps]


def test_nops_hand_their_dependences_on() -> None:
    found = steps_of(chained(step(1, "cpy", depid=0, deps=0)))
    assert found == [(Op.NOP, StepRef(0, 0)), (Op.COPY, StepRef(0, 0))]


def test_nops_that_wait_for_nothing_are_not_counted() -> None:
    bare = step(0, "nop", cnt=0)
    text = local(bare, step(1, "cpy", dstoff=1), bare.replace('depid="-1"', 'depid="0"'))
    assert steps_of(text) == [(Op.COPY, None)]


def test_a_dependence_before_a_fused_reduction_goes_to_the_next_step() -> None:
    text, _ = STEPS["a reduction run after a nop chain"]
    waits = text.replace(
        "    </tb>\n  </gpu>", step(4, "cpy", depid=0, deps=0) + "\n    </tb>\n  </gpu>"
    )
    assert steps_of(waits) == [
        (Op.NOP, StepRef(0, 0)), (Op.REDUCE, StepRef(0, 0)), (Op.REDUCE, None),
        (Op.NOP, StepRef(0, 0)), (Op.COPY, StepRef(0, 0)),
    ]  # fmt: skip


def test_msccl_does_not_look_at_outofplace() -> None:
    text = with_head(inplace="0", outofplace="0")
    programs = [parse(read_document(text), name).program for name in RUNTIMES]
    modes = [(one.in_place, one.out_of_place) for one in programs if one is not None]
    assert modes == [(False, True), (False, False), (False, False)]


@pytest.mark.parametrize(
    ("runtime", "largest"), [("msccl", 1048575), ("executor", 1048576), ("rccl", 1048576)]
)
def test_the_largest_size_counts_itself_but_for_msccl(runtime: str, largest: int) -> None:
    program = parse(read_document(exchange()), runtime).program
    assert program is not None
    assert program.max_bytes == largest


def test_the_parser_goes_on_after_a_refusal() -> None:
    text = exchange().replace('cnt="1"', 'cnt="72"').replace("allreduce", "sendrecv")
    found = parse(read_document(text), "msccl").findings
    refused = [finding.rule for finding in found if finding.severity is Severity.REJECTED]
    assert refused == ["collective", *["counts"] * 4]


def test_more_nodes_than_the_reader_holds_are_refused() -> None:
    # 1 algo, 2 gpus, 16 threadblocks and 4077 steps are 4096 elements; one less are taken.
    full = [
        block(*[step(n % 64, "cpy", dstoff=1) for n in range(256)], number=b) for b in range(15)
    ]
    rest = [step(n % 64, "cpy", dstoff=1) for n in range(4077 - 15 * 256)]
    for steps, expected in ((rest, "rejected"), (rest[1:], None)):
        text = algo(gpu(0, *full, block(*steps, number=15)), gpu(1))
        worst = judge_text(text.encode(), "msccl", structure_only=True).worst
        assert (worst and worst.value) == expected
