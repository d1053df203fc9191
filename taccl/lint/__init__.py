"""What is likely to be wrong in a topology that can be read: one function a rule.

A rule yields findings; :data:`RULES` says how bad they are. Errors make a topology unusable,
warnings make it unlikely to be the machine that was meant, notes are worth a look. Findings of one
kind are one finding that names the first of them. The work is linear in edges and links.
"""

from taccl.lint.check import Checked, check_topology
from taccl.lint.facts import Finding
from taccl.lint.rules import RULES, lint

__all__ = ["RULES", "Checked", "Finding", "check_topology", "lint"]
