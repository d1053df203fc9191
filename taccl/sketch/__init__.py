"""Communication sketches: what a user knows about a good algorithm, applied to a topology."""

from taccl.files import read_document, shown
from taccl.sketch.apply import apply_sketch
from taccl.sketch.native import Pattern, Sketch, SketchFile, read_native
from taccl.sketch.taccl_json import TacclSketchFile, is_taccl_json, read_taccl_json
from taccl.topology.file import check_kind, shipped_file, shipped_names

__all__ = [
    "Pattern", "Sketch", "SketchFile", "TacclSketchFile", "apply_sketch", "load_sketch",
    "shipped_sketches",
]  # fmt: skip


def load_sketch(spec: str) -> Sketch:
    """Return the sketch of a path or shipped name, native or in TACCL's JSON by content.

    Raises
    ------
    InputError
        With file, line, field, what was found, and the fix.
    """
    document = read_document(shipped_file(spec, "sketches", "sketch"))
    value = document.value
    if is_taccl_json(value):
        return read_taccl_json(document)
    if isinstance(value, dict) and "taccl" not in value and "nnodes" in value:
        raise document.error(
            "is missing", ("intranode_sketch",), 'add "intranode_sketch": {"strategy": "none"}'
        )
    if not isinstance(value, dict):
        raise document.error(
            f"should be a mapping of fields, got {shown(value)}", (), "start with taccl: sketch/1"
        )
    check_kind(document, "sketch")
    return read_native(document)


def shipped_sketches() -> tuple[str, ...]:
    """Return the names of the shipped sketches."""
    return shipped_names("sketches")
