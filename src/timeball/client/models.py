"""What the API answers, under the names that Python programs use. The same models make the answers and read them."""

from __future__ import annotations

from timeball.api.schemas.bulk import BulkCreated, ExecutionIds
from timeball.api.schemas.bulk import BulkOut as BulkResult
from timeball.api.schemas.doctor import ConcernOut as Concern
from timeball.api.schemas.doctor import DiagnosisOut as DiagnosisLine
from timeball.api.schemas.doctor import DoctorOut as Diagnosis
from timeball.api.schemas.executions import AttemptOut as Attempt
from timeball.api.schemas.executions import DeadGroup
from timeball.api.schemas.executions import ExecutionFull as ExecutionDetails
from timeball.api.schemas.executions import ExecutionOut as Execution
from timeball.api.schemas.executions import LogLineOut as LogLine
from timeball.api.schemas.executions import TryOut as Try
from timeball.api.schemas.explain import ExplanationOut as Explanation
from timeball.api.schemas.explain import GateOut as Gate
from timeball.api.schemas.jobs import JobChanged as ChangedJob
from timeball.api.schemas.jobs import JobCreated as CreatedJob
from timeball.api.schemas.jobs import JobOut as Job
from timeball.api.schemas.jobs import RevisionOut as Revision
from timeball.api.schemas.machinery import HandlerCheckOut as HandlerCheck
from timeball.api.schemas.machinery import HandlerOut as Handler
from timeball.api.schemas.machinery import NodeOut as Node
from timeball.api.schemas.machinery import PurgeOut as Purged
from timeball.api.schemas.machinery import QueueOut as Queue
from timeball.api.schemas.meters import MetricsOut as Metrics
from timeball.api.schemas.meters import SeriesOut as Series
from timeball.api.schemas.meters import StatsOut as Stats
from timeball.api.schemas.meters import StatsRow
from timeball.api.schemas.operations import OperationItemOut as OperationItem
from timeball.api.schemas.operations import OperationOut as Operation
from timeball.api.schemas.sync import SyncOut as SyncResult
from timeball.api.schemas.sync import SyncStep
from timeball.api.schemas.system import AuditOut as AuditRecord
from timeball.api.schemas.system import CheckOut as Check
from timeball.api.schemas.system import FireTimeOut as FireTime
from timeball.api.schemas.system import HealthOut as Health
from timeball.api.schemas.system import NextOut as FireTimes
from timeball.api.schemas.templates import TemplateOut as Template
from timeball.api.schemas.templates import TemplateWritten as WrittenTemplate
from timeball.api.schemas.time import CollisionOut as Collision
from timeball.api.schemas.time import ForecastOut as Forecast
from timeball.api.schemas.time import SuggestionOut as Suggestion
from timeball.api.schemas.time import SuggestionsOut as Suggestions
from timeball.api.schemas.time import TimelineOut as Timeline

__all__ = [
    "Attempt",
    "AuditRecord",
    "BulkCreated",
    "BulkResult",
    "ChangedJob",
    "Check",
    "Collision",
    "Concern",
    "CreatedJob",
    "DeadGroup",
    "Diagnosis",
    "DiagnosisLine",
    "Execution",
    "ExecutionDetails",
    "ExecutionIds",
    "Explanation",
    "FireTime",
    "FireTimes",
    "Forecast",
    "Gate",
    "Handler",
    "HandlerCheck",
    "Health",
    "Job",
    "LogLine",
    "Metrics",
    "Node",
    "Operation",
    "OperationItem",
    "Purged",
    "Queue",
    "Revision",
    "Series",
    "Stats",
    "StatsRow",
    "Suggestion",
    "Suggestions",
    "SyncResult",
    "SyncStep",
    "Template",
    "Timeline",
    "Try",
    "WrittenTemplate",
]
