"""What MSCCL++ makes of a plan: the reader, the limits, and what calls leave in memory."""

from taccl.errors import InputError, ProgramError
from taccl.msccl.program import Finding, Severity, errors_of
from taccl.mscclpp.interpret import run_findings
from taccl.mscclpp.plan import NEWEST, Plan
from taccl.mscclpp.reader import read_plan
from taccl.mscclpp.structure import structure_findings

FOLLOWED = frozenset({"chunks"})
"""Rules of the structure that a plan may break, and be followed all the same."""


def is_plan(text: str | bytes) -> bool:
    """Tell whether a `text` is that of a JSON object, as plans are, and not of XML."""
    return text.lstrip()[:1] in ("{", b"{")


def judge_plan(plan: Plan, version: str = NEWEST, *, structure_only: bool = False) -> list[Finding]:
    """Return all that is wrong with a `plan`, for a `version`, of VERSIONS, the worst first.

    With `structure_only` no data and no waits are followed; nor are they where the parts of the
    plan are wrong.
    """
    findings = structure_findings(plan, version)
    if not structure_only and {one.rule for one in errors_of(findings)} <= FOLLOWED:
        findings += run_findings(plan)
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def judge_text(
    text: str | bytes, version: str = NEWEST, *, file: str = "", structure_only: bool = False
) -> list[Finding]:
    """Return all that is wrong with the plan that a `text` says, as :func:`judge_plan` does.

    Errors are of a `file`; what can't be read is one finding, that it is rejected.
    """
    try:
        plan = read_plan(text if isinstance(text, str) else text.decode(), file=file)
    except UnicodeDecodeError as error:
        return [Finding(
            "refused", f"is not UTF-8: byte {error.start}", fix="save the file as UTF-8",
            severity=Severity.REJECTED,
        )]  # fmt: skip
    except (ProgramError, InputError) as error:
        named = f"{error.field}: {error.problem}" if error.field else error.problem
        return [Finding(
            "refused", named, fix=error.fix, severity=Severity.REJECTED, line=error.line
        )]  # fmt: skip
    return judge_plan(plan, version, structure_only=structure_only)
