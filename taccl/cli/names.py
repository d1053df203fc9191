"""The names that options take, each read from the source of the table that is their one place.

Help texts and completion show them, and importing the tables would bring numpy and solvers with
them. So the rows are parsed, not run: a row that is added to a table is a name here.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def keys_of(source: str, table: str) -> tuple[str, ...]:
    """Return the keys of the mapping, or the items of the tuple, that `source` calls `table`.

    The source is the text of a module; the table is assigned at its top level, with keys or items
    that are plain strings.

    Raises LookupError when there is no such table.
    """
    # Only the assignment is parsed, up to the next line that begins at the margin: it is quick.
    found = re.search(rf"^{table}\b.*?(?=^[^\s)\]}}]|\Z)", source, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"no table {table}")
    for node in ast.walk(ast.parse(found[0])):
        if isinstance(node, ast.Dict):
            return tuple(ast.literal_eval(key) for key in node.keys if key is not None)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"{table} is neither a mapping nor a tuple")


def _listed(*tables: str) -> str:
    """Return the names of tables, each ``path in taccl:NAME``, as help texts show them."""
    names: list[str] = []
    for path, _, table in (each.partition(":") for each in tables):
        names += keys_of((ROOT / path).read_text("utf-8"), table)
    return ", ".join(names)


COLLECTIVE_NAMES = _listed("collectives/__init__.py:COLLECTIVES")
ENGINE_NAMES = _listed(
    "synth/search.py:ENGINES", "synth/templates/classical.py:CLASSICAL",
    "synth/templates/in_network.py:IN_NETWORK",
)  # fmt: skip
RUNTIME_NAMES = _listed("msccl/runtimes.py:RUNTIMES")
PLAN_VERSION_NAMES = _listed("mscclpp/plan.py:VERSIONS")
PROTOCOL_NAMES = f"auto, {_listed('msccl/runtimes.py:PROTOCOLS')}"
RELAY_NAMES = _listed("topology/edit.py:RELAYS")
IN_NETWORK_NAMES = _listed("apps/inputs.py:IN_NETWORK_MODES")
ALPHA_RULE_NAMES = _listed("topology/graph.py:ALPHA_RULES")
PROFILE_NAMES = _listed("replay/cost.py:PROFILES")
RUN_DTYPE_NAMES = _listed("run/job.py:DTYPES")
KERNEL_NAMES = _listed("apps/profile_calibration.py:KERNELS_KNOWN")
FIT_NAMES = _listed("apps/calibration.py:FITTED")
RESULT_FORMAT_NAMES = _listed("report/tables.py:WRITERS")
COMPARISON_FORMAT_NAMES = _listed("report/comparison.py:COMPARED")
IMPORT_NAMES = _listed("imports/__init__.py:IMPORTS")
GPU_NAMES = _listed("imports/hosts.py:GPUS")
FABRIC_NAMES = _listed("topology/servers.py:FABRICS")
EXPORT_NAMES = _listed("report/export.py:EXPORTS")
CONVERSION_NAMES = _listed("apps/outputs.py:CONVERSIONS")
TIMES_EXPORT_NAMES = _listed("tuning/exports.py:EXPORTS")
BASE_NAMES = _listed("topology/taccl_costs.py:BASES")
TIME_UNIT_NAMES = _listed("topology/taccl_costs.py:TIME_UNITS")
COST_MODE_NAMES = _listed("topology/graph.py:COST_MODES")
