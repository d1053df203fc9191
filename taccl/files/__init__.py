"""Read YAML and JSON files into models, and write files whole or not at all."""

from taccl.files.model import FileModel, fit_model, load_model
from taccl.files.read import (
    MAX_BYTES,
    MAX_NODES,
    Document,
    field_name,
    parse_document,
    plain_text_is_safe,
    read_bytes,
    read_document,
    read_text,
    shown,
)
from taccl.files.write import (
    check_apart,
    check_output,
    check_outputs,
    write_all_atomic,
    write_atomic,
)

__all__ = [
    "MAX_BYTES", "MAX_NODES", "Document", "FileModel", "check_apart", "check_output",
    "check_outputs", "field_name", "fit_model", "load_model", "parse_document",
    "plain_text_is_safe", "read_bytes", "read_document", "read_text", "shown", "write_all_atomic",
    "write_atomic",
]  # fmt: skip
