"""The names that options take: each is written down once, in the table that it is a row of."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from taccl.apps.calibration import FITTED
from taccl.apps.inputs import IN_NETWORK_MODES
from taccl.apps.measured import KERNELS_KNOWN
from taccl.apps.outputs import CONVERSIONS
from taccl.cli import options as names
from taccl.collectives import COLLECTIVES
from taccl.imports import IMPORTS
from taccl.imports.hosts import GPUS
from taccl.msccl.runtimes import PROTOCOLS, RUNTIMES
from taccl.mscclpp.plan import VERSIONS
from taccl.replay.cost import PROFILES
from taccl.report.comparison import COMPARED
from taccl.report.export import EXPORTS
from taccl.report.tables import WRITERS
from taccl.run.job import DTYPES
from taccl.synth.search import engine_names
from taccl.topology.edit import RELAYS
from taccl.topology.graph import ALPHA_RULES, COST_MODES
from taccl.topology.servers import FABRICS
from taccl.topology.taccl_costs import BASES, TIME_UNITS
from taccl.tuning.exports import EXPORTS as TIMES_EXPORTS

TABLES: Mapping[str, Collection[str]] = {
    "COLLECTIVE_NAMES": COLLECTIVES, "ENGINE_NAMES": engine_names(), "RUNTIME_NAMES": RUNTIMES,
    "PROTOCOL_NAMES": ("auto", *PROTOCOLS), "IN_NETWORK_NAMES": IN_NETWORK_MODES,
    "ALPHA_RULE_NAMES": ALPHA_RULES, "FIT_NAMES": FITTED,
    "KERNEL_NAMES": KERNELS_KNOWN,
    "RESULT_FORMAT_NAMES": WRITERS, "COMPARISON_FORMAT_NAMES": COMPARED, "IMPORT_NAMES": IMPORTS,
    "GPU_NAMES": GPUS, "FABRIC_NAMES": FABRICS, "EXPORT_NAMES": EXPORTS, "BASE_NAMES": BASES,
    "TIME_UNIT_NAMES": TIME_UNITS, "COST_MODE_NAMES": COST_MODES, "PROFILE_NAMES": PROFILES,
    "RUN_DTYPE_NAMES": DTYPES, "PLAN_VERSION_NAMES": VERSIONS, "TIMES_EXPORT_NAMES": TIMES_EXPORTS,
    "RELAY_NAMES": RELAYS, "CONVERSION_NAMES": CONVERSIONS,
}  # fmt: skip


def test_what_an_option_takes_is_what_its_table_has() -> None:
    assert set(TABLES) == {name for name in vars(names) if name.endswith("_NAMES")}
    for name, table in TABLES.items():
        assert getattr(names, name).split(", ") == list(table)


def test_a_new_row_is_a_new_name() -> None:
    source = (names.ROOT / "synth" / "search.py").read_text()
    above, begin, below = source.partition("\nENGINES:")
    table, end, rest = below.partition("})")
    more = f'{above}{begin}{table}    "shortest": shortest,\n{end}{rest}'
    before, after = (names.keys_of(text, "ENGINES") for text in (source, more))
    assert after == (*before, "shortest")


def test_the_command_line_has_no_list_of_names_of_its_own() -> None:
    for path in Path(names.ROOT, "cli").glob("*.py"):
        words = re.findall(r"[\w-]+", path.read_text())
        text = " ".join(words)
        for name, table in TABLES.items():
            assert " ".join(table) not in text, f"{path.name} has {name}"


@pytest.mark.parametrize(
    ("source", "told"),
    [("OTHERS = {}\n", "no table ENGINES"), ("ENGINES = engines()\n", "ENGINES is neither")],
)
def test_a_table_that_can_not_be_read_is_named(source: str, told: str) -> None:
    with pytest.raises(LookupError, match=told):
        names.keys_of(source, "ENGINES")
