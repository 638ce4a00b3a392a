"""Whether every promise holds, proven from the data alone; `proof.py` tells how."""

from timeball.store.verify.checks import LISTED, PLANNER_SETTINGS, STUCK_AFTER, PromiseCheck, VerifyReport, Violation
from timeball.store.verify.proof import RECHECK_AFTER, verify

__all__ = [
    "LISTED",
    "PLANNER_SETTINGS",
    "RECHECK_AFTER",
    "STUCK_AFTER",
    "PromiseCheck",
    "VerifyReport",
    "Violation",
    "verify",
]
