"""Whether every promise holds, proven from the data alone; `proof.py` tells how."""

from timeball.store.verify.proof import SECOND_LOOK, verify
from timeball.store.verify.report import LISTED, Check, Report, Violation
from timeball.store.verify.snapshot import PATIENCE, PLANS

__all__ = ["LISTED", "PATIENCE", "PLANS", "SECOND_LOOK", "Check", "Report", "Violation", "verify"]
