"""SimAI's workloads become layers that wait for what they send, and sums of gradients."""

from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.imports.workloads import read_simai
from taccl.training.operations import expanded
from taccl.training.workload import Workload
from tests.sweep import for_each

HEAD = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: {ep} pp: 1 vpp: 8 ga: 1"
    " all_gpus: {ranks} checkpoints: 0 checkpoint_initiates: 0"
)
# As AICB writes a model with experts and sequence parallelism.
LAYERS = """\
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t6291456\t100
grad_param_comm\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER\t12582912\t100
embedding_grads\t-1\t1\tNONE\t0\t1\tALLREDUCE\t4096\t1\tNONE\t0\t100
moe_grad_norm2\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER_DP_EP\t9437184\t100
attention_column\t-1\t1750840\tALLGATHER\t12582912\t875420\tREDUCESCATTER\t0\t875420\tNONE\t0\t100
mlp_moelayer\t-1\t1\tALLTOALL_EP\t25165824\t2\tALLTOALL_EP\t25165824\t3\tNONE\t0\t100
"""
TEXT = f"{HEAD}\n6\n{LAYERS}"


def read(folder: Path, text: str, ranks: int = 16, tp: int = 2, ep: int = 4) -> Workload:
    path = folder / "workload.txt"
    path.write_text(text.replace("{tp}", f"{tp}").replace("{ep}", f"{ep}")
                    .replace("{ranks}", f"{ranks}"))  # fmt: skip
    return read_simai(str(path), ranks)


def test_times_are_nanoseconds_and_both_gradients_are_the_backward_pass(tmp_path: Path) -> None:
    layers = read(tmp_path, TEXT).layers
    assert [(one.name, one.forward, one.backward) for one in layers[4:]] == [
        ("attention_column", 1_750_840_000, 1_750_840_000), ("mlp_moelayer", 1000, 5000),
    ]  # fmt: skip


def test_what_is_sent_forward_and_for_the_input_is_waited_for(tmp_path: Path) -> None:
    layers = read(tmp_path, TEXT).layers
    calls = [[(one.when, one.collective, one.group, one.bytes) for one in layer.comm]
             for layer in layers]  # fmt: skip
    assert calls[:2] == [[], []]
    assert calls[2] == [("backward", "allreduce", "tp", 4096)]
    assert calls[4] == [("forward", "allgather", "tp", 12582912)]
    assert calls[5] == [("forward", "alltoall", "ep", 25165824),
                        ("backward", "alltoall", "ep", 25165824)]  # fmt: skip


def test_groups_are_those_that_simai_makes(tmp_path: Path) -> None:
    groups = read(tmp_path, TEXT).groups
    assert groups["tp"][:2] == ((0, 1), (2, 3))
    assert groups["dp"] == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert groups["ep"] == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15))
    assert groups["dp_ep"] == tuple((start, start + 8) for start in range(8))


def test_sums_of_weights_are_not_waited_for_before_the_next_step(tmp_path: Path) -> None:
    workload = read(tmp_path, TEXT)
    first, *others = workload.record.sync
    assert (first.collective, first.group, first.bytes) == ("allgather", "dp", None)
    assert workload.layers[0].bytes == 6291456
    assert [(one.collective, one.group, one.bytes) for one in others] == [
        ("reducescatter", "dp", 12582912), ("reducescatter", "dp_ep", 9437184),
    ]  # fmt: skip
    assert {one.wait for one in workload.record.sync} == {"layer"}


def test_the_commonest_sum_is_made_layer_by_layer(tmp_path: Path) -> None:
    lines = [f"layer{n} -1 10 NONE 0 20 NONE 0 30 ALLREDUCE {n + 1} 100" for n in range(3)]
    workload = read(tmp_path, "\n".join(["DATA", "3", *lines]), 4)
    assert [one.bytes for one in workload.layers] == [1, 2, 3]
    (operations,) = expanded(workload, 1).operations
    assert [one.call.size for one in operations if one.call] == [3, 2, 1]
    assert workload.groups["dp"] == ((0, 1, 2, 3),)


def test_a_group_of_one_rank_sends_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT, 8, 1, 1)
    assert {one.group for layer in found.layers for one in layer.comm} == set()
    record = read(tmp_path, TEXT, 8, 8, 1).record
    assert not record.sync
    text = "MODEL\n1\na -1 1 ALLREDUCE 8 1 NONE 0 1 ALLREDUCE 8 1\n"
    workload = read(tmp_path, text, 4)
    assert workload.groups["tp"] == ((0, 1, 2, 3),)
    assert not workload.record.sync


FIRST, SECOND = "grad_gather\t-1\t1\t", "6291456\t100"
BAD = {
    "empty": ("", r"has no layers"),
    "only a head": (HEAD, r"has no layers"),
    "another parallelism": (TEXT.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_DLRM"),
                            r":1: parallelism: is of 'HYBRID_DLRM'"),
    "no number of layers": (TEXT.replace("\n6\n", "\nsix\n"), r":2: layers: .*, got 'six'"),
    "cut off": (TEXT.replace("\n6\n", "\n839\n"), r":2: says that there are 839 layers, and has 6"),
    "too many": (TEXT.replace("\n6\n", "\n5\n"), r":2: says that there are 5 layers, and has 6"),
    "a short line": (TEXT.replace("\t100\n", "\n", 1), r":3: a layer should have 12 words, got 11"),
    "a time": (TEXT.replace(FIRST, "grad_gather\t-1\t-5\t"), r":3: forward: .* got '-5'"),
    "a size": (TEXT.replace(SECOND, "1.5\t100"), r":3: weight gradient bytes: .* got '1.5'"),
    "a collective": (TEXT.replace("ALLGATHER\t6", "BROADCAST\t6"),
                     r":3: weight gradient collective: there is no collective 'BROADCAST'"),
    "a group": (TEXT.replace("ALLGATHER\t6", "ALLGATHER_XP\t6"), r":3: .* 'ALLGATHER_XP'"),
    "two at once": (TEXT.replace("ALLGATHER\t6", "ALLREDUCEALLTOALL\t6"), r":3: .*ALLTOALL'"),
    "a pipeline": (TEXT.replace("pp: 1", "pp: 4"), r":1: pp: is a stage of a pipeline of 4"),
    "other ranks": (TEXT.replace("{ranks}", "32"), r":1: all_gpus: is of 32 ranks, .* are 16"),
    "activations": (TEXT.replace("checkpoints: 0", "checkpoints: 2"),
                    r":1: checkpoints: computes activations of 2 layers again"),
    "no group": (TEXT.replace("model_parallel_NPU_group: {tp}", ""),
                 r":1: model_parallel_NPU_group: is missing"),
    "no ranks": (TEXT.replace("{tp}", "0"), r"NPU_group: is 0, which does not divide 16 ranks"),
    "an odd group": (TEXT.replace("{tp}", "3"), r"NPU_group: is 3, which does not divide 16"),
    "odd experts": (TEXT.replace("{ep}", "3"), r":1: ep: is 3, which does not divide the 8 ranks"),
    "huge": (TEXT.replace("6291456", "9" * 17), r"bytes: should be a whole number of bytes"),
    "long": (TEXT.replace("1750840", "9" * 17), r":7: forward: should be a time"),
    "a name": (TEXT.replace("grad_gather", "<b>"), r":3: name: should be a name of"),
    "digits": (TEXT.replace("6291456", "9" * 5000), r":3: weight gradient bytes: should be a"),
}  # fmt: skip


@for_each("text, match", BAD.values(), ids=BAD)
def test_a_bad_workload_is_one_error_with_a_fix(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match) as error:
        read(tmp_path, text)
    assert error.value.fix
    assert (error.value.file or "").endswith("workload.txt")
