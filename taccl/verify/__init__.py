"""The judge of schedules: rules that data, resources and the sketch impose, in exact integers."""

from taccl.verify.judge import RULES, Violation, require_valid, verify

__all__ = ["RULES", "Violation", "require_valid", "verify"]
