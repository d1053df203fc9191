"""Tables of layers are workloads of data-parallel training, and nothing else is read as one."""

from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.imports.workloads import read_layer_table
from taccl.training.workload import MAX_LAYERS, Workload
from tests.sweep import for_each

TABLE = """\
layer,numel,forward_ns,backward_ns
conv0,1728,800000,1600000
relu0,0,1000,2000
fc0,102760448,700000.5,1400000
"""


def read(folder: Path, text: str, ranks: int = 4) -> Workload:
    path = folder / "vgg16 (P100).csv"
    path.write_text(text)
    return read_layer_table(str(path), ranks)


def test_layers_are_read_in_order_with_bytes_and_times(tmp_path: Path) -> None:
    found = read(tmp_path, TABLE)
    record = found.record
    assert (record.name, record.ranks) == ("vgg16 -P100-", 4)
    assert [(one.name, one.bytes, one.forward, one.backward) for one in found.layers] == [
        ("conv0", 6912, 800_000_000, 1_600_000_000),
        ("relu0", 0, 1_000_000, 2_000_000),
        ("fc0", 411_041_792, 700_000_500, 1_400_000_000),
    ]
    (sync,) = record.sync
    assert (sync.group, sync.collective, sync.bucket) == ("all", "allreduce", 25 << 20)


def test_columns_may_be_in_any_order_with_others_between_them(tmp_path: Path) -> None:
    lines = [line.split(",") for line in TABLE.splitlines()]
    turned = "\n".join(
        ", ".join([row[3], "kind" if not at else '"a, b"', *row[:3]])
        for at, row in enumerate(lines)
    ).replace(' "a, b"', '"a, b"')
    assert read(tmp_path, turned).record == read(tmp_path, TABLE).record


def test_bytes_count_where_a_table_has_them(tmp_path: Path) -> None:
    only = "bytes,layer,forward_ns,backward_ns\n10,a,1,2\n"
    both = "layer,numel,bytes,forward_ns,backward_ns\na,7,10,1,2\n\n"
    for text in (only, both):
        assert [one.bytes for one in read(tmp_path, text).layers] == [10]


def test_one_rank_has_nothing_to_sum(tmp_path: Path) -> None:
    assert not read(tmp_path, TABLE, 1).record.sync


HEAD = TABLE.splitlines()[0]
BAD = {
    "empty": ("", r"has no layers"),
    "no rows": (HEAD, r"has no layers"),
    "no head": ("conv0,1,2,3\n", r":1: has no column layer: the head line is 'conv0,1,2,3'"),
    "no size": ("layer,forward_ns,backward_ns\n", r":1: has no column numel, or bytes"),
    "no time": ("layer,numel,forward_ns\n", r":1: has no column backward_ns"),
    "twice": (HEAD + ",numel\n", r":1: has two columns numel"),
    "a word": (TABLE.replace("1728", "many"), r":2: numel: should be a whole number, got 'many'"),
    "half": (TABLE.replace("1728", "1.5"), r":2: numel: should be a whole number, got '1.5'"),
    "negative": (TABLE.replace(",1000,", ",-1,"), r":3: forward_ns: should be a number, got '-1'"),
    "not finite": (TABLE.replace(",1000,", ",nan,"), r":3: forward_ns: should be a number"),
    "other digits": (TABLE.replace(",1000,", ",\uff11,"), r":3: forward_ns: should be a number"),
    "short": (HEAD + "\nconv0,1,2\n", r":2: backward_ns: should be a number, got nothing"),
    "a comma": (HEAD + "\nconv,0,1728,9,18\n", r":2: has 5 cells, and there are 4 columns"),
    "no name": (HEAD + "\n,1,2,3\n", r":2: layer: should be a name, got nothing"),
    "a bad name": (HEAD + "\na<b,1,2,3\n", r":2: layer: should be a name of letters"),
    "long": (HEAD + "\na,1,9999999999999,3\n", r":2: forward_ns: should be a time between"),
    "huge": (HEAD + "\na,1125899906842624,1,3\n", r":2: numel: should be a whole number"),
    "quotes": (HEAD + '\n"a,1,2,3\n', r":2: is not CSV"),
    "a wide cell": (HEAD + "\n" + "a" * 200_000, r":2: is not CSV"),
    "many": (HEAD + "\na,1,2,3" * (MAX_LAYERS + 1), rf":{MAX_LAYERS + 2}: has more than"),
}  # fmt: skip


@for_each("text, match", BAD.values(), ids=BAD)
def test_a_bad_table_is_one_error_with_a_fix(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=match) as error:
        read(tmp_path, text)
    assert error.value.fix
    assert (error.value.file or "").endswith(".csv")
