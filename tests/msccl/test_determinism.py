"""Whether all ranks add up in one order: rings do, one-shot exchanges of three ranks don't."""

import pytest

from taccl.msccl.interpret import order_findings
from taccl.msccl.program import Severity
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import write_xml
from tests.msccl.builders import make, mesh, pairs_schedule, ring_schedule
from tests.msccl.texts import HEAD, SHARED, algo, block, gpu, step


def one_shot(ranks: int) -> str:
    """Return an all-reduce in which every rank adds the others' chunks to its own, by number."""
    gpus = []
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        exchange = [
            block(
                step(0, "s"), step(1, "r", dstbuf="s", dstoff=n, hasdep=1),
                number=n, send=peer, recv=peer,
            )
            for n, peer in enumerate(peers)
        ]  # fmt: skip
        last = len(peers) - 1
        waits = [step(n, "nop", cnt=0, depid=n, deps=1) for n in range(last)]
        adds = [
            step(
                last + n, "re", srcbuf="s", srcoff=n, depid=-1 if n else last, deps=1 - 2 * (n > 0)
            )
            for n in range(len(peers))
        ]
        gpus.append(
            gpu(rank, *exchange, block(*waits, *adds, number=len(peers)), chunks=1, scratch=9)
        )
    head = HEAD.replace('ngpus="2"', f'ngpus="{ranks}"').replace('loop="2"', 'loop="1"')
    return algo(*gpus, head=head)


@pytest.mark.parametrize(("ranks", "consistent"), [(2, True), (3, False), (4, False)])
def test_a_one_shot_allreduce_is_consistent_for_two_ranks_only(
    ranks: int, consistent: bool
) -> None:
    # Two ranks: a + b and b + a. Three: (a + b) + c, (b + a) + c, but (c + a) + b.
    text = one_shot(ranks).encode()
    assert judge_text(text, "executor").worst is None
    found = judge_text(text, "executor", bitwise=True)
    assert (found.worst is None) is consistent
    assert {f.rule for f in found.findings} == (set() if consistent else {"order"})


def test_the_finding_names_two_ranks_that_differ() -> None:
    found = judge_text(one_shot(3).encode(), "executor", bitwise=True).findings
    assert [f.explanation for f in found] == [
        "output 0 is added up in another order on gpu 2 than on gpu 0"
    ]
    assert found[0].severity is Severity.BREAKS


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_adds_up_in_one_place_is_consistent(ranks: int) -> None:
    for schedule in (
        ring_schedule("allreduce", ranks, 2), pairs_schedule("allreduce", mesh(ranks)),
    ):  # fmt: skip
        text = write_xml(make(schedule)).encode()
        assert judge_text(text, "portable", bitwise=True).findings == ()


def test_only_an_allreduce_leaves_a_sum_on_several_ranks() -> None:
    assert list(order_findings(make(ring_schedule("reducescatter", 3)))) == []


@pytest.mark.skipif(not SHARED.exists(), reason="the corpus is not on this machine")
def test_shipped_one_pass_files_are_not_consistent_and_two_pass_files_are() -> None:
    found = {
        name: judge_text(
            (SHARED / "corpus" / f"{name}.xml").read_bytes(), "executor", bitwise=True
        ).worst
        for name in ("azure-ndv4-ap-1pass", "azure-ndv4-ap2ll", "azure-ndv4-r48ll")
    }
    assert found == {
        "azure-ndv4-ap-1pass": Severity.BREAKS,
        "azure-ndv4-ap2ll": None,
        "azure-ndv4-r48ll": None,
    }
