"""Workloads of other tools: texts of SimAI and ASTRA-sim 1, and tables of layers.

**SimAI's** have a line for each layer, as its AICB writes it. The first line names how a model is
made parallel, and says with how many ranks::

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 8 ga: 1
        all_gpus: 32 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0

(one line), the second how many layers there are. A layer has twelve words: a name, a dependency
(-1), then of each of three passes the time in nanoseconds, the collective and its bytes: forward,
gradients of the input, gradients of the weights; and the time of the update. The layers of all
micro-batches of a step are written one after the other.

Ranks of a tensor-parallel group (``model_parallel_NPU_group``) are consecutive, and of ranks with
equal positions in these the data-parallel groups consist. Those are cut into expert-parallel groups
(``ep``) of neighbours, between which the experts' gradients are summed (``_DP_EP``). Sizes are
those that nccl-tests counts: an allgather of SimAI gathers so many bytes, and each rank gives
its part of them.

A layer's backward pass computes both gradients. What the forward pass and the gradients of the
input send is waited for; sums of gradients of weights are not, until the next step comes to that
layer. The kind of sum that most layers have is made layer by layer while the backward pass goes
on; of any other kind one collective is made of all layers' bytes, when the backward pass is over:
AICB writes them in the first layers, which are the last ones there.

Left out are: the time of the update, which SimAI adds to every collective (AICB writes 100 ns),
dependencies, which SimAI does not use either, and ``vpp``, ``ga`` and ``pp_comm``. Pipelines
(``pp`` above 1), activations that are computed again (``checkpoints``), and parallelism other than
``HYBRID_TRANSFORMER``, ``HYBRID_TRANSFORMER_FWD_IN_BCKWD``, ``DATA`` and ``MODEL`` are refused.

**Tables of layers** are CSV with a line for each layer, in the order of the forward pass. The head
line names the columns ``layer``, ``forward_ns``, ``backward_ns`` and ``numel`` or ``bytes``, in any
order; others are passed over. ``numel`` counts gradients of 4 bytes each; where there are
``bytes``, these count. Times are nanoseconds, perhaps with decimals. Such a table is what a few
lines of hooks print that time the modules of a model.

References
----------
aliyun/SimAI, ``astra-sim-alibabacloud/astra-sim/workload/Workload.cc``: ``initialize_workload``,
``iterate_hybrid_parallel_Transformer_fwd_in_bckwd``; ``astra-sim/system/MockNcclGroup.cc``:
``MockNcclGroup``, ``genAlltoAllFlowModels``. aliyun/aicb,
``workload_generator/SimAI_training_workload_generator.py``: ``Work_Item``, ``dump_file``.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from taccl.errors import InputError, did_you_mean
from taccl.files import read_text, shown
from taccl.training.workload import ALL, MAX_LAYERS, Workload, workload_of

ELEMENT_BYTES = 4
"""Bytes of a gradient, where a table counts elements."""

_TIMES = ("forward_ns", "backward_ns")
_SIZES = ("bytes", "numel")
_COLUMNS = ("layer", *_TIMES, *_SIZES)
_HEAD = "begin with a line such as layer,numel,forward_ns,backward_ns"
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")


def read_layer_table(path: str, ranks: int) -> Workload:
    """Return the workload of a table of layers, whose gradients all ranks sum.

    `path`: the CSV file.
    `ranks`: how many compute the same, each on its own samples.

    Raises InputError when the file can't be read, or is no such table; names line and column.
    """
    rows = csv.reader(read_text(path).splitlines(), strict=True)
    layers: list[Mapping[str, object]] = []
    lines: list[int] = []
    names: list[str] | None = None
    try:
        for row in rows:
            if not any(cell.strip() for cell in row) or row[0].startswith("#"):
                continue
            if names is None:
                names = _columns(row, path, rows.line_num)
                continue
            if len(row) > len(names):
                raise InputError(
                    f"has {len(row)} cells, and there are {len(names)} columns", file=path,
                    line=rows.line_num, fix="put names with commas in quotation marks",
                )  # fmt: skip
            if len(layers) == MAX_LAYERS:
                raise InputError(
                    f"has more than {MAX_LAYERS} layers", file=path, line=rows.line_num,
                    fix="give fewer layers",
                )  # fmt: skip
            layers.append(_layer(dict(zip(names, row, strict=False)), path, rows.line_num))
            lines.append(rows.line_num)
    except csv.Error as error:
        raise InputError(
            f"is not CSV: {error}", file=path, line=rows.line_num, fix="correct the line"
        ) from None
    if not layers:
        raise InputError("has no layers", file=path, fix=f"{_HEAD}, and add one for each layer")
    document = {
        "taccl": "workload/1", "name": workload_name(path), "ranks": ranks, "layers": layers,
        "sync": [{"group": ALL}] if ranks > 1 else [],
    }  # fmt: skip
    size = "bytes" if "bytes" in (names or ()) else "numel"
    called = {"name": "layer", "forward": "forward_ns", "backward": "backward_ns", "bytes": size}
    return workload_of(document, path, lines, called)


def workload_name(path: str) -> str:
    """Return what a workload is called that is read from the file at `path`."""
    return re.sub(r"[^A-Za-z0-9._ -]+", "-", Path(path).stem)[:100].strip() or "workload"


def _columns(row: Sequence[str], path: str, line: int) -> list[str]:
    names = [cell.strip() for cell in row]
    for name in _COLUMNS:
        if names.count(name) > 1:
            raise InputError(
                f"has two columns {name}", file=path, line=line, fix="keep one of the two"
            )
    missing = [name for name in ("layer", *_TIMES) if name not in names]
    if not set(_SIZES) & set(names):
        missing.append("numel, or bytes")
    if missing:
        raise InputError(
            f"has no column {missing[0]}: the head line is {shown(','.join(row))}", file=path,
            line=line, fix=_HEAD,
        )  # fmt: skip
    return names


def _layer(cells: Mapping[str, str], path: str, line: int) -> Mapping[str, object]:
    """Return a layer as a workload file has it."""
    size = "bytes" if "bytes" in cells else "numel"
    found: dict[str, object] = {}
    for name in (*_TIMES, size):
        form, word = (_DECIMAL, "a number") if name in _TIMES else (_WHOLE, "a whole number")
        text = cells.get(name, "").strip()
        if not form.fullmatch(text):
            raise InputError(
                f"should be {word}, got {shown(text) if text else 'nothing'}", file=path, line=line,
                field=name, fix=f"write {word} of {'nanoseconds' if name in _TIMES else name}",
            )  # fmt: skip
        if name in _TIMES:
            found[name.removesuffix("_ns")] = f"{text}ns"
        else:
            found["bytes"] = int(text) * (ELEMENT_BYTES if name == "numel" else 1)
    if not (layer := cells.get("layer", "").strip()):
        raise InputError(
            "should be a name, got nothing", file=path, line=line, field="layer", fix="name it"
        )
    return {"name": layer, **found}


POLICIES: Mapping[str, str] = MappingProxyType({
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": "model_parallel_NPU_group",
    "HYBRID_TRANSFORMER": "model_parallel_NPU_group", "DATA": "one", "MODEL": "all",
})  # fmt: skip
"""By first word: ranks of a tensor-parallel group."""

COLLECTIVES: Mapping[str, str] = MappingProxyType({
    "ALLREDUCE": "allreduce", "ALLGATHER": "allgather", "REDUCESCATTER": "reducescatter",
    "ALLTOALL": "alltoall",
})  # fmt: skip
"""Ours by theirs."""

_SUFFIXES = MappingProxyType({"_DP_EP": "dp_ep", "_EP": "ep"})
_WORDS = 12
_PASSES = (("forward", 2, "tp"), ("input gradient", 5, "tp"), ("weight gradient", 8, "dp"))
_NUMBER = re.compile(r"[0-9]{1,18}")
_FIX = "give a workload as AICB writes it for SimAI"

Groups = Mapping[str, Sequence[Sequence[int]]]


def read_simai(path: str, ranks: int) -> Workload:
    """Return the workload of a text that SimAI or ASTRA-sim 1 reads.

    `path`: the text.
    `ranks`: how many run it; what the text says has to be the same.

    Raises InputError when the file can't be read, is no such text, or has what is not modelled;
    names line and field.
    """
    lines = read_text(path).splitlines()
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    if len(rows) < 2:
        raise InputError("has no layers", file=path, fix=_FIX)
    groups = _groups(rows[0][1], ranks, path)
    told = _number(rows[1][1][0], path, rows[1][0], "layers")
    if told != len(rows) - 2 or told > MAX_LAYERS:
        raise InputError(
            f"says that there are {told} layers, and has {len(rows) - 2}"
            if told != len(rows) - 2
            else f"has more than {MAX_LAYERS} layers",
            file=path, line=rows[1][0], fix=f"give the whole file, of at most {MAX_LAYERS} layers",
        )  # fmt: skip
    used: set[str] = set()
    layers: list[dict[str, object]] = []
    sums: dict[tuple[str, str], dict[int, int]] = {}
    for line, words in rows[2:]:
        if len(words) != _WORDS:
            raise InputError(
                f"a layer should have {_WORDS} words, got {len(words)}", file=path, line=line,
                fix=_FIX,
            )  # fmt: skip
        times = [_number(words[at], path, line, name) for name, at, _ in _PASSES]
        calls = [_call(words, part, groups, path, line) for part in _PASSES]
        used.update(call[1] for call in calls if call)
        if calls[2]:
            collective, group, size = calls[2]
            sums.setdefault((collective, group), {})[len(layers)] = size
        layers.append({
            "name": words[0], "forward": f"{times[0]}ns", "backward": f"{times[1] + times[2]}ns",
            "comm": [
                {"when": when, "collective": call[0], "group": call[1], "bytes": call[2]}
                for when, call in zip(("forward", "backward"), calls, strict=False)
                if call
            ],
        })  # fmt: skip
    sync: list[dict[str, object]] = []
    for kind in sorted(sums, key=lambda kind: -len(sums[kind])):
        sizes: object = "gradients"
        if sync:
            sizes = sum(sums[kind].values())
        else:
            for layer, size in sums[kind].items():
                layers[layer]["bytes"] = size
        sync.append({
            "collective": kind[0], "group": kind[1], "bytes": sizes, "bucket": 1, "first": 1,
            "wait": "layer",
        })  # fmt: skip
    document = {
        "taccl": "workload/1", "name": workload_name(path), "ranks": ranks,
        "groups": {
            name: {"each": [list(one) for one in each]}
            for name, each in groups.items() if name in used
        },
        "layers": layers, "sync": sync,
    }  # fmt: skip
    return workload_of(document, path, [line for line, _ in rows[2:]])


def _groups(words: Sequence[str], ranks: int, path: str) -> Groups:
    """Return the groups that the first line tells of."""
    policy = POLICIES.get(words[0])
    if policy is None:
        raise InputError(
            f"is of {shown(words[0])}", file=path, line=1, field="parallelism",
            fix=f"{did_you_mean(words[0], POLICIES)}use one of {', '.join(POLICIES)}",
        )  # fmt: skip
    told = {word[:-1]: value for word, value in pairwise(words[1:]) if word.endswith(":")}
    known = (policy, "ep", "pp", "all_gpus", "checkpoints", "checkpoint_initiates")
    values = {name: _number(told[name], path, 1, name) for name in known if name in told}
    for name in known[4:]:
        if values.get(name, 0):
            raise InputError(
                f"computes activations of {values[name]} layers again, which is not modelled",
                file=path, line=1, field=name, fix="write the workload without",
            )  # fmt: skip
    if values.get("pp", 1) != 1:
        raise InputError(
            f"is a stage of a pipeline of {values['pp']}, and the others are not in the file",
            file=path, line=1, field="pp", fix="write the workload with one stage",
        )  # fmt: skip
    if values.get("all_gpus", ranks) != ranks:
        raise InputError(
            f"is of {values['all_gpus']} ranks, and there are {ranks}", file=path, line=1,
            field="all_gpus", fix="give as many ranks, or write the workload for these",
        )  # fmt: skip
    width = {"one": 1, "all": ranks}.get(policy, values.get(policy))
    experts = values.get("ep", 1)
    if not width or ranks % width:
        raise InputError(
            "is missing" if width is None else f"is {width}, which does not divide {ranks} ranks",
            file=path, line=1, field=policy, fix="say how many ranks a layer is spread over",
        )  # fmt: skip
    rows = ranks // width
    if not experts or rows % experts:
        raise InputError(
            f"is {experts}, which does not divide the {rows} ranks of a data-parallel group",
            file=path, line=1, field="ep", fix="say over how many ranks experts are spread",
        )  # fmt: skip
    span = width * experts
    return {
        "tp": [range(start, start + width) for start in range(0, ranks, width)],
        "dp": [range(start, ranks, width) for start in range(width)],
        "ep": [
            range(block + start, block + span, width)
            for block in range(0, ranks, span) for start in range(width)
        ],
        "dp_ep": [range(start, ranks, span) for start in range(span)],
    }  # fmt: skip


def _number(text: str, path: str, line: int, field: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InputError(
            f"should be a whole number, got {shown(text)}", file=path, line=line, field=field,
            fix=_FIX,
        )  # fmt: skip
    return int(text)


def _call(
    words: Sequence[str], part: tuple[str, int, str], groups: Groups, path: str, line: int
) -> tuple[str, str, int] | None:
    """Return collective, group and bytes of a pass; None where nothing is sent."""
    name, at, group = part
    size = _number(words[at + 2], path, line, f"{name} bytes")
    kind = words[at + 1]
    for suffix, other in _SUFFIXES.items():
        if kind.endswith(suffix):
            kind, group = kind.removesuffix(suffix), other
            break
    if words[at + 1] != "NONE" and kind not in COLLECTIVES:
        known = [f"{one}{suffix}" for one in COLLECTIVES for suffix in ("", *_SUFFIXES)]
        raise InputError(
            f"there is no collective {shown(words[at + 1])}", file=path, line=line,
            field=f"{name} collective", fix=f"use one of {', '.join(['NONE', *known])}",
        )  # fmt: skip
    if kind == "NONE" or not size or len(groups[group][0]) == 1:
        return None
    return COLLECTIVES[kind], group, size
