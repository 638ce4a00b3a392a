"""What the API answers, under the names that Python programs use. The same models make the answers and read them."""

from __future__ import annotations

from timeball.api.schemas.bulk import BulkCreated, ExecutionIds
from timeball.api.schemas.bulk import BulkOut as BulkResult
from timeball.api.schemas.executions import AttemptOut as Attempt
from timeball.api.schemas.executions import DeadGroup
from timeball.api.schemas.executions import ExecutionFull as ExecutionDetails
from timeball.api.schemas.executions import ExecutionOut as Execution
from timeball.api.schemas.executions import LogLineOut as LogLine
from timeball.api.schemas.jobs import JobCreated as CreatedJob
from timeball.api.schemas.jobs import JobOut as Job
from timeball.api.schemas.machinery import NodeOut as Node
from timeball.api.schemas.machinery import PurgeOut as Purged
from timeball.api.schemas.machinery import QueueOut as Queue
from timeball.api.schemas.meters import StatsOut as Stats
from timeball.api.schemas.meters import StatsRow
from timeball.api.schemas.sync import SyncOut as SyncResult
from timeball.api.schemas.sync import SyncStep
from timeball.api.schemas.system import AuditOut as AuditRecord
from timeball.api.schemas.system import CheckOut as Check
from timeball.api.schemas.system import FireTimeOut as FireTime
from timeball.api.schemas.system import HealthOut as Health
from timeball.api.schemas.system import NextOut as FireTimes
from timeball.api.schemas.templates import TemplateOut as Template

__all__ = [
    "Attempt",
    "AuditRecord",
    "BulkCreated",
    "BulkResult",
    "Check",
    "CreatedJob",
    "DeadGroup",
    "Execution",
    "ExecutionDetails",
    "ExecutionIds",
    "FireTime",
    "FireTimes",
    "Health",
    "Job",
    "LogLine",
    "Node",
    "Purged",
    "Queue",
    "Stats",
    "StatsRow",
    "SyncResult",
    "SyncStep",
    "Template",
]
