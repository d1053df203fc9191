"""What nccl-tests measured: its text, and the JSON that ``-J`` writes.

A line of the text has the size in bytes, the count, type, redop and root, and for each of the
two groups, out of place and in place, time (us), algbw, busbw and ``#wrong``; with per-iteration
timing four more columns each, and perhaps the time of day at the end. Where the first group is left
blank, the second is the only one. The name of the test and the ranks are in comments, where the
version prints them. Launchers may begin each line with the rank that printed it.

References
----------
NVIDIA/nccl-tests, ``src/util.cu``: ``writeBenchmarkLinePreamble``, ``writeBenchmarkLineBody``,
``getFloatStr``, ``writeDeviceReport``, ``jsonDouble``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from taccl.collectives import busbw_factor, collective_name
from taccl.errors import InputError
from taccl.files import parse_document, read_text, shown
from taccl.units import MAX_SIZE, PS_PER_US, Time

ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({
    "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
})  # fmt: skip
"""nccl-tests' data types and their bytes."""

MAX_POINTS = 100_000

# Large times, and many wrong elements, are printed with an exponent.
_NUMBER = re.compile(r"(\d{1,15}(?:\.(\d{1,9}))?)(?:e([+-]?\d\d?))?")
_TEST = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
_RANK = re.compile(r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\b")
# What mpirun --tag-output and srun --label put before a line.
_LABEL = re.compile(r"(?:\[\d+,\d+\]<std(?:out|err)>:|\d+: )")
_TIME_OF_DAY = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_ONLY_IN_PLACE = re.compile(r"\s*(?:\S+\s+){4}\S+\s{32}")
_TABLE = "#wrong"
_PER_ITERATION = "i_min"
_DEVICES = "Using devices"
MAX_NUMBER = 10**15
MAX_LINE = 2000
"""Characters; what is longer is no line of nccl-tests."""
_REDUCING = ("allreduce", "reducescatter", "reduce")
_FIX = "give the output of a program of nccl-tests, such as all_reduce_perf -b 1K -e 1G -f 2"


@dataclass(frozen=True, slots=True)
class Group:
    """One of the two groups of a line.

    `time` is picoseconds, `algbw` and `busbw` are as they are printed, `wrong` counts wrong
    elements; None: not checked.
    """

    time: Time
    algbw: str
    busbw: str
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Point:
    """One line: a size.

    `line` is where it is (None: unknown), `size` bytes and `count` elements; `dtype` and `redop`
    are as they are printed; `out_of_place` and `in_place` are what was measured, None: nothing.
    """

    line: int | None
    size: int
    count: int
    dtype: str
    redop: str
    out_of_place: Group | None
    in_place: Group | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a program of nccl-tests.

    `file` is where it is from, `test` the collective as the program is called, or None, `ranks` how
    many there were (None: not printed), and `points` has one for each size.
    """

    file: str
    test: str | None
    ranks: int | None
    points: tuple[Point, ...]

    @property
    def collective(self) -> str | None:
        """The collective by our name, else the test's own; None when it is not printed."""
        try:
            return self.test and collective_name(self.test)
        except InputError:
            return self.test

    @property
    def dtype(self) -> str:
        """The data type of all points."""
        return self.points[0].dtype

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    def check(self, collective: str, ranks: int) -> None:
        """Refuse a run of something else.

        Raises InputError with the line that tells another collective, other ranks or another type.
        """
        if self.collective not in (None, collective):
            raise self._error(
                f"is a run of {self.test}_perf, not of {collective}", None,
                "give a run of the same collective, or another --collective",
            )  # fmt: skip
        if self.ranks not in (None, ranks):
            raise self._error(
                f"is a run of {self.ranks} ranks, the topology has {ranks}", None,
                "give the topology it was measured on (--nodes)",
            )  # fmt: skip
        for point in self.points:
            self._check_point(point, collective, ranks)

    def _check_point(self, point: Point, collective: str, ranks: int) -> None:
        if (collective in _REDUCING) == (point.redop == "none"):
            raise self._error(
                f"redop is {point.redop}, so it is no run of {collective}", point.line,
                "give a run of the same collective, or another --collective",
            )  # fmt: skip
        held = point.count * self.element_bytes
        if point.size not in (held, held * ranks):
            raise self._error(
                f"{point.count} elements of {point.dtype} are not {point.size} bytes on {ranks}"
                " ranks", point.line, "give the topology it was measured on (--nodes)",
            )  # fmt: skip
        factor = busbw_factor(collective, ranks)
        for group in (point.out_of_place, point.in_place):
            if group is None:
                continue
            low, high = _rounded(group.algbw)
            least, most = _rounded(group.busbw)
            if low * factor > most or least > high * factor:
                raise self._error(
                    f"busbw {group.busbw} is not {float(factor):.4g} x algbw {group.algbw}, as it"
                    f" is of {collective} on {ranks} ranks", point.line,
                    "give the collective and the topology that were measured",
                )  # fmt: skip

    def _error(self, problem: str, line: int | None, fix: str) -> InputError:
        return InputError(problem, file=self.file, line=line, fix=fix)


def _rounded(text: str) -> tuple[Fraction, Fraction]:
    """Return the least and the greatest number that is printed so."""
    number = _NUMBER.fullmatch(text)
    decimals, power = (len(number[2] or ""), int(number[3] or 0)) if number else (0, 0)
    half = Fraction(10) ** (power - decimals) / 2
    return Fraction(text) - half, Fraction(text) + half


def read_measured(path: str) -> Measured:
    """Read what nccl-tests printed.

    Raises InputError when it is nothing of the kind, or of several data types.
    """
    text = read_text(path)
    found = _from_json(text, path) if text.lstrip()[:1] == "{" else _from_text(text, path)
    if not found.points:
        raise InputError("has no results of nccl-tests", file=path, fix=_FIX)
    for point in found.points:
        if point.dtype not in ELEMENT_BYTES or point.dtype != found.dtype:
            raise InputError(
                f"type should be {found.dtype} throughout, got {shown(point.dtype)}"
                if found.dtype in ELEMENT_BYTES
                else f"unknown type {shown(point.dtype)}",
                file=path, line=point.line, fix=f"measure one of {', '.join(ELEMENT_BYTES)}",
            )  # fmt: skip
    return found


def read_runs(
    files: Sequence[str], collective: str | None, ranks: int
) -> dict[str, tuple[Measured, ...]]:
    """Return the runs in `files`, outputs of nccl-tests, by the collective that was measured.

    They are checked against the number of `ranks`; without a `collective` it is what the files say.

    Raises InputError when a file is no output of nccl-tests, or they do not fit together or the
    ranks.
    """
    runs = tuple(read_measured(file) for file in files)
    told = list(dict.fromkeys(run.collective for run in runs if run.collective))
    found: dict[str, list[Measured]] = {}
    for run in runs:
        named = collective or run.collective or (told[0] if len(told) == 1 else None)
        if named is None:
            raise InputError(
                "does not say which collective it is of", file=run.file, field="--collective",
                fix="give --collective, such as --collective allreduce",
            )  # fmt: skip
        run.check(named, ranks)
        if run.dtype != runs[0].dtype:
            raise InputError(
                f"is a run of {run.dtype}, {files[0]} of {runs[0].dtype}", file=run.file,
                fix="calibrate from runs of one data type",
            )  # fmt: skip
        found.setdefault(named, []).append(run)
    return {name: tuple(of_name) for name, of_name in found.items()}


def _from_text(text: str, path: str) -> Measured:
    groups: list[str | None] = []
    test: str | None = None
    ranks: int | None = None
    points: list[Point] = []
    columns = 4
    for number, labelled in enumerate(text.splitlines(), 1):
        if len(labelled) > MAX_LINE:
            continue
        line = _LABEL.sub("", labelled, count=1) if _LABEL.match(labelled) else labelled
        comment = line.lstrip()
        if comment.startswith("#"):
            if _DEVICES in comment:
                groups = []
            if _TABLE in comment:
                columns = 8 if _PER_ITERATION in comment else 4
            device, named = _RANK.match(comment), _TEST.search(comment)
            if device:
                groups.append(device[1])
            if named and test not in (None, named[1]):
                raise _several(f"{test}_perf", f"{named[1]}_perf", path, number)
            test = named[1] if named else test
            continue
        point = _point(_TIME_OF_DAY.sub("", line), number, columns)
        if point is None:
            continue
        # Of communicators that are split off, each is of one group, and all are alike.
        told = groups.count(groups[0]) if groups else None
        if points and told != ranks:
            raise _several(f"{ranks or '?'} ranks", f"{told or '?'} ranks", path, number)
        ranks = told
        points.append(point)
        if len(points) > MAX_POINTS:
            raise InputError(f"has more than {MAX_POINTS} results", file=path, fix=_FIX)
    return Measured(path, test, ranks, tuple(points))


def _several(first: str, second: str, path: str, number: int) -> InputError:
    return InputError(
        f"has results of {first} and of {second}", file=path, line=number,
        fix="write each run to a file of its own, and give all of them",
    )  # fmt: skip


def _point(line: str, number: int, columns: int) -> Point | None:
    """Return what a line says; None for a line of something else."""
    words = line.split()
    if len(words) - 5 not in (columns, 2 * columns):
        return None
    if not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    if max(len(words[0]), len(words[1])) > 18 or not 0 < int(words[0]) <= MAX_SIZE:
        return None
    groups = [_group(words[start : start + 4]) for start in range(5, len(words), columns)]
    if len(groups) == 1:
        groups = [None, *groups] if _ONLY_IN_PLACE.match(line) else [*groups, None]
    return Point(number, int(words[0]), int(words[1]), words[2][:40], words[3][:40], *groups)


def _group(words: Sequence[str]) -> Group | None:
    """Return a measurement; None where there is none, such as N/A, or nan in place of a time."""
    numbers = [Fraction(word) if _NUMBER.fullmatch(word) else None for word in words]
    small = (None if number is None or number >= MAX_NUMBER else number for number in numbers)
    time, algbw, busbw, wrong = small
    if not time or algbw is None or busbw is None:
        return None
    return Group(
        round(time * PS_PER_US), words[1], words[2], None if wrong is None else -(-wrong // 1)
    )


def _from_json(text: str, path: str) -> Measured:
    value = parse_document(text, path).value
    fields = value if isinstance(value, dict) else {}
    results = fields.get("results")
    if not isinstance(results, list) or len(results) > MAX_POINTS:
        raise InputError("has no list of results", file=path, field="results", fix=_FIX)
    config = fields.get("config")
    told = config if isinstance(config, dict) else {}
    devices, threads, gpus = (told.get(name) for name in ("devices", "nthreads", "ngpus"))
    ranks = None  # one device of each process is listed
    if isinstance(devices, list) and isinstance(threads, int) and isinstance(gpus, int):
        groups = [device.get("group") for device in devices if isinstance(device, dict)]
        ranks = groups.count(groups[0]) * threads * gpus if groups else None
    points = []
    for number, result in enumerate(results):
        entry = result if isinstance(result, dict) else {}
        size, count = entry.get("size"), entry.get("count")
        if not isinstance(size, int) or not isinstance(count, int) or not 0 < size <= MAX_SIZE:
            raise InputError(
                "should have a size and a count", file=path, field=f"results[{number}]", fix=_FIX
            )
        measured: list[Group | None] = []
        for name in ("out_of_place", "in_place"):
            one = entry.get(name)
            one = one if isinstance(one, dict) else {}
            values = (one.get("time", one.get("cpu_time")), *map(one.get, _COLUMNS))
            measured.append(_group([_as_text(value) for value in values]))
        kind, operation = (str(entry.get(name))[:40] for name in ("type", "redop"))
        points.append(Point(None, size, count, kind, operation, *measured))
    named = _TEST.search(str(fields.get("args", ""))[:10_000])
    return Measured(path, named[1] if named else None, ranks, tuple(points))


_COLUMNS = ("alg_bw", "bus_bw", "nwrong")


def _as_text(value: object) -> str:
    """Return a number with the decimals that it is given with, at most six."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return "N/A"
    text = repr(value)
    decimals = 6 if "e" in text else len(text.partition(".")[2])
    return f"{value:.{min(decimals, 6)}f}"
