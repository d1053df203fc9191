"""The files that commands take: programs as MSCCL XML, plans as MSCCL++ JSON."""

from collections.abc import Sequence
from pathlib import Path

from taccl.files import read_text
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml
from taccl.mscclpp.interpret import is_plan
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.structure import counted_chunks
from taccl.mscclpp.text import read_plan

ELEMENT_BYTES = 4
"""nccl-tests' default type, float: sizes are cut to whole elements."""


def read_input(path: str | Path) -> Program | Plan:
    """Return what is in the file at `path`: a program or a plan.

    Raises InputError when the file can't be read; ProgramError when it is neither.
    """
    text = read_text(path)
    if is_plan(text):
        return read_plan(text, file=str(path))
    return read_xml(text, file=str(path), runtime="portable")


def read_program(path: str | Path) -> Program:
    """Return the program of an XML file.

    Raises InputError when the file can't be read; ProgramError when it is no program.
    """
    return read_xml(read_text(path), file=str(path), runtime="portable")


def unit_of(what: Program | Plan) -> int:
    """Return the bytes of which every size that `what`, a program or plan, runs is a multiple."""
    if isinstance(what, Plan):
        return max(1, what.alignment) * counted_chunks(what, what.ranks[0])
    return what.chunks_per_loop * ELEMENT_BYTES


def whole_size(files: Sequence[str], size: int) -> int:
    """Return the most bytes up to `size` that cut into whole chunks in all of the `files`.

    Raises InputError when a file can't be read; ProgramError when it is no program or plan.
    """
    for file in files:
        unit = unit_of(read_input(file))
        size = size - size % unit or unit
    return size
