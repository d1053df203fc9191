"""TACCL's topology files (microsoft/taccl, ``taccl/examples/topo``) in one of two cost modes.

``exact`` takes the numbers as they are and the NICs as resources that the GPUs share: a file in the
server form. ``original`` keeps them as they are written, to be expanded as TACCL computes with them
(:mod:`taccl.topology.taccl_costs`), for comparisons with the original.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, StrictInt

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import MAX_RANKS, Name
from taccl.files.read import warn_ignored
from taccl.topology.taccl_costs import (
    BASES,
    NDV2_TURNS,
    NDV2_WIRES,
    Amount,
    AmountList,
    OriginalRecord,
    check_record,
)
from taccl.units import beta_text, exact_size_text, parse_exact_size, parse_time


@dataclass(frozen=True, slots=True)
class TacclOptions:
    """What a TACCL file does not say.

    `base` is a name of BASES; None: guessed from the file's name. The numbers count `time_unit` and
    are for a chunk of `chunk_size` bytes: both must be given. `costs` is ``exact`` or ``original``.
    """

    base: str | None = None
    chunk_size: Fraction | None = None
    time_unit: str | None = None
    costs: str = "exact"


class TacclTopologyFile(FileModel):
    """A topology in TACCL's JSON form; numbers are times of one chunk."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    name: Annotated[Name, Field(examples=["NDv2_1KB"])]
    gpus_per_node: Annotated[StrictInt, Field(ge=1, le=MAX_RANKS, examples=[8])]
    nics_per_node: Annotated[StrictInt | None, Field(ge=1, le=MAX_RANKS, examples=[1])] = None
    alpha: Annotated[Amount, Field(examples=[30])]
    node_betas_list: Annotated[AmountList | None, Field(examples=["[2.24, 4.5]"])] = None
    node_invbws_list: Annotated[AmountList | None, Field(examples=["[32.25, 34.5]"])] = None
    links: Annotated[AmountList | None, Field(examples=["[[0, 1], [1, 0]]"])] = None
    betas: Annotated[AmountList | None, Field(examples=["[[0, 23], [23, 0]]"])] = None
    invbws: Annotated[AmountList | None, Field(examples=["[[0, 24], [24, 0]]"])] = None
    remote_alpha: Annotated[Amount | None, Field(examples=[260])] = None
    remote_beta: Annotated[Amount | None, Field(examples=[10.25])] = None
    remote_invbw: Annotated[Amount | None, Field(examples=[270.25])] = None


_NAMES = {
    "gpus": "gpus_per_node",
    "nics": "nics_per_node",
    "betas": "node_betas_list",
    "invbws": "node_invbws_list",
}
"""Our names of fields to TACCL's, of machines whose links it knows."""


def is_taccl_topology(value: object) -> bool:
    """Tell whether a document is a topology in TACCL's form."""
    return isinstance(value, dict) and "taccl" not in value and "gpus_per_node" in value


def read_taccl_topology(document: Document, options: TacclOptions) -> dict[str, object]:
    """Return the topology file that TACCL's `document` stands for; `options` say what it does not.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, TacclTopologyFile)
    warn_ignored(document.file, [shown(name) for name in record.model_extra or {}])
    numbers = _original(record, document, options)
    if options.costs == "original":
        return numbers
    entry = numbers["original"]
    original = fit_model(Document(entry, document.file), OriginalRecord)
    return _exact(original, numbers, document)


def _original(
    record: TacclTopologyFile, document: Document, options: TacclOptions
) -> dict[str, object]:
    """Return the file in the form that keeps TACCL's numbers, checked."""
    if options.chunk_size is None or options.time_unit is None:
        missing = "--chunk-size" if options.chunk_size is None else "--time-unit"
        raise InputError(
            f"{record.name}: its numbers are times of one chunk, and it does not say"
            f" {'of how many bytes' if options.chunk_size is None else 'in what unit'}",
            file=document.file,
            field=missing,
            fix="of TACCL's examples those for 1KB are --chunk-size 1KB --time-unit 10ns, those for"
            " 32KB --chunk-size 32KB --time-unit 100ns, those for 1MB --chunk-size 1MB --time-unit"
            " 1us",
        )
    base = options.base or next(
        (name for name in ("NDv2", "DGX2") if record.name.lower().startswith(name.lower())), None
    )
    if base is None:
        raise InputError(
            f"the name {shown(record.name)} does not tell which machine it is",
            file=document.file,
            field="--base",
            fix=f"give --base with one of {', '.join(BASES)}",
        )
    known = BASES[base]
    given = document.value if isinstance(document.value, dict) else {}
    nics = known.nics or record.nics_per_node
    if nics is None and base == "HubAndSpoke":
        raise document.error("is missing", ("nics_per_node",), "write nics_per_node: 8")
    names = _NAMES if known.classes else {"gpus": "gpus_per_node", "nics": "nics_per_node"}
    fields = ["alpha", "betas", "invbws"]
    fields += ["remote_alpha", "remote_beta"] if known.classes else ["links"]
    found: dict[str, object] = {
        "base": base, "gpus": record.gpus_per_node, "nics": nics or 1,
        "time_unit": options.time_unit,
    }  # fmt: skip
    for field in fields:
        name = names.get(field, field)
        if given.get(name) is not None:
            found[field] = given[name]
        elif not field.startswith("remote"):
            raise document.error(f"is missing for {base}", (name,), f"give {name}")
    if ("remote_alpha" in found) != ("remote_beta" in found):
        lost = "remote_beta" if "remote_alpha" in found else "remote_alpha"
        raise document.error("is missing", (lost,), f"write {lost}: 10.25")
    machine = Document(found, None)
    try:
        check_record(fit_model(machine, OriginalRecord), machine, ())
    except InputError as error:  # told of TACCL's fields
        name, bracket, rest = (error.field or "").partition("[")
        place = f"{names.get(name, name)}{bracket}{rest}"
        raise document.error(error.problem, (place,), error.fix or "correct it") from None
    return {
        "taccl": "topology/1",
        "name": record.name,
        "chunk_size": exact_size_text(options.chunk_size),
        "costs": "original",
        "original": found,
    }


def _exact(
    record: OriginalRecord, numbers: dict[str, object], document: Document
) -> dict[str, object]:
    """Return the file in the server form with the numbers as they are."""
    node: dict[str, object] = {"gpus": record.gpus}
    if record.links is not None:
        node["wires"] = list(_custom_wires(record, numbers))
    elif record.base == "NDv2":
        node["wires"] = [
            {"from": a, "to": b, **_cost(record, record.betas[0][kind], numbers)}
            for (a, b), kind in sorted(NDV2_WIRES.items(), key=lambda item: item[::-1])
        ]
    else:
        name = "nvswitch" if record.base == "DGX2" else "hub"
        cost = _cost(record, record.betas[0][0], numbers)
        node["switches"] = [{"name": name, "members": "all", **cost}]
    found = {key: numbers[key] for key in ("taccl", "name", "chunk_size")}
    found |= {"costs": "exact", "node": node, "count": 1}
    if record.remote_beta is not None:
        node["nics"] = list(_nics(record, record.remote_beta, numbers, document))
        found["fabric"] = {"kind": "switch", "alpha": _time(record, record.remote_alpha)}
    if record.base == "NDv2":
        node["rotations"] = [list(turn) for turn in NDV2_TURNS]
    return found


def _custom_wires(
    record: OriginalRecord, numbers: dict[str, object]
) -> Iterator[dict[str, object]]:
    """Yield a one-way wire for each link of the matrices, which are [to][from]."""
    for dst, row in enumerate(record.links or ()):
        for src, links in enumerate(row):
            count = int(links)
            for copy in range(count):
                wire = {"from": src, "to": dst, **_cost(record, record.betas[dst][src], numbers)}
                if count > 1:
                    wire["name"] = f"{src}->{dst}.{copy}"
                yield {**wire, "both": False}


def _nics(
    record: OriginalRecord, beta: Fraction, numbers: dict[str, object], document: Document
) -> Iterator[dict[str, object]]:
    """Yield the NICs, each of as many GPUs, in order."""
    share, rest = divmod(record.gpus, record.nics)
    if rest:
        raise document.error(
            f"{record.nics} NICs can't be shared evenly by {record.gpus} GPUs", ("nics_per_node",),
            "use a number that divides that of the GPUs, or --costs original",
        )  # fmt: skip
    for nic in range(record.nics):
        gpus = "all" if record.nics == 1 else list(range(nic * share, (nic + 1) * share))
        yield {"name": f"ib{nic}", "gpus": gpus, "bandwidth": _beta(record, beta, numbers)}


def _cost(record: OriginalRecord, beta: Fraction, numbers: dict[str, object]) -> dict[str, object]:
    return {"bandwidth": _beta(record, beta, numbers), "alpha": _time(record, record.alpha)}


def _beta(record: OriginalRecord, amount: Fraction, numbers: dict[str, object]) -> str:
    """Return a beta whose chunk takes an amount of units, exactly."""
    size = parse_exact_size(str(numbers["chunk_size"]))
    return beta_text(amount * parse_time(record.time_unit) / size)


def _time(record: OriginalRecord, amount: Fraction | None) -> str:
    """Return an amount of units as a time, rounded to picoseconds."""
    time = round((amount or Fraction(0)) * parse_time(record.time_unit))
    return f"{Decimal(time).scaleb(-6).normalize():f}us"
