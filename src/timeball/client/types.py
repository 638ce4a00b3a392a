"""What methods take and return: typed dictionaries of fields and filters, and the models of the API under the names users see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypeAlias, TypedDict

from timeball.api.models.alerts import AlertOut as Alert
from timeball.api.models.channels import AlertDeliveryOut as AlertDelivery
from timeball.api.models.channels import AlertRouteOut as AlertRoute
from timeball.api.models.channels import ChannelOut as Channel
from timeball.api.models.executions import AnyAttemptOut as Try
from timeball.api.models.executions import AttemptOut as Attempt
from timeball.api.models.executions import BulkCreated, DeadGroupOut
from timeball.api.models.executions import BulkOut as BulkResult
from timeball.api.models.executions import ExecutionFull as ExecutionDetails
from timeball.api.models.executions import ExecutionOut as Execution
from timeball.api.models.executions import LogLineOut as LogLine
from timeball.api.models.executions import OperationItemOut as OperationItem
from timeball.api.models.executions import OperationOut as Operation
from timeball.api.models.groups import GroupCancelled as CancelledGroup
from timeball.api.models.groups import GroupCreated as CreatedGroup
from timeball.api.models.groups import GroupExplanationOut as GroupExplanation
from timeball.api.models.groups import GroupFull as GroupDetails
from timeball.api.models.groups import GroupOut as Group
from timeball.api.models.groups import GroupPartOut as GroupPart
from timeball.api.models.jobs import BackfillPreviewOut as BackfillPreview
from timeball.api.models.jobs import CalendarOut as Calendar
from timeball.api.models.jobs import CalendarWritten as WrittenCalendar
from timeball.api.models.jobs import JobChanged as ChangedJob
from timeball.api.models.jobs import JobCreated as CreatedJob
from timeball.api.models.jobs import JobOptionParams, JobParams, Moment, SyncStepOut
from timeball.api.models.jobs import JobOut as Job
from timeball.api.models.jobs import RevisionOut as Revision
from timeball.api.models.jobs import SyncOut as SyncResult
from timeball.api.models.jobs import TemplateOut as Template
from timeball.api.models.jobs import TemplateWritten as WrittenTemplate
from timeball.api.models.ledger import OccurrenceOut as OccurrenceEntry
from timeball.api.models.metrics import CollisionOut as Collision
from timeball.api.models.metrics import ForecastOut as Forecast
from timeball.api.models.metrics import HandlerStatsOut
from timeball.api.models.metrics import MetricsOut as Metrics
from timeball.api.models.metrics import SeriesOut as Series
from timeball.api.models.metrics import StatsOut as Stats
from timeball.api.models.metrics import SuggestionOut as Suggestion
from timeball.api.models.metrics import SuggestionsOut as Suggestions
from timeball.api.models.metrics import TimelineOut as Timeline
from timeball.api.models.system import AttentionItemOut as Concern
from timeball.api.models.system import AuditOut as AuditRecord
from timeball.api.models.system import CheckOut as Check
from timeball.api.models.system import DiagnosisOut as DiagnosisLine
from timeball.api.models.system import DoctorOut as Diagnosis
from timeball.api.models.system import ExplanationOut as Explanation
from timeball.api.models.system import FireTimeOut as FireTime
from timeball.api.models.system import FreezeOut as Freeze
from timeball.api.models.system import GateOut as Gate
from timeball.api.models.system import HandlerCheckOut as HandlerCheck
from timeball.api.models.system import HandlerOut as Handler
from timeball.api.models.system import HealthOut as Health
from timeball.api.models.system import NextOut as FireTimes
from timeball.api.models.system import NodeOut as Node
from timeball.api.models.system import PurgeOut as Purged
from timeball.api.models.system import QueueOut as Queue
from timeball.api.models.webhooks import DeliveryFull as DeliveryDetails
from timeball.api.models.webhooks import DeliveryOut as Delivery
from timeball.api.models.webhooks import WebhookOut as Webhook
from timeball.api.models.webhooks import WebhookWithSecret as CreatedWebhook

__all__ = [
    "Alert",
    "AlertDelivery",
    "AlertRoute",
    "Attempt",
    "AuditRecord",
    "BackfillPreview",
    "BulkCreated",
    "BulkResult",
    "Calendar",
    "CallParams",
    "CancelledGroup",
    "ChainParams",
    "ChangedJob",
    "Channel",
    "Check",
    "Collision",
    "Concern",
    "CreatedGroup",
    "CreatedJob",
    "CreatedWebhook",
    "DeadGroupOut",
    "Delivery",
    "DeliveryDetails",
    "Diagnosis",
    "DiagnosisLine",
    "Execution",
    "ExecutionDetails",
    "Explanation",
    "FireTime",
    "FireTimes",
    "Forecast",
    "Freeze",
    "Gate",
    "Group",
    "GroupDetails",
    "GroupExplanation",
    "GroupParams",
    "GroupPart",
    "Handler",
    "HandlerCheck",
    "HandlerStatsOut",
    "Health",
    "Job",
    "JobOptionParams",
    "JobParams",
    "LogLine",
    "Metrics",
    "Moment",
    "Node",
    "OccurrenceEntry",
    "Operation",
    "OperationItem",
    "Purged",
    "Queue",
    "Revision",
    "Series",
    "Stats",
    "Suggestion",
    "Suggestions",
    "SyncResult",
    "SyncStepOut",
    "Template",
    "Timeline",
    "Try",
    "Webhook",
    "WorkParams",
    "WrittenCalendar",
    "WrittenTemplate",
]


class JobFilterParams(TypedDict, total=False):
    """A filter of jobs."""

    status: str | Sequence[str]
    kind: str
    handler: str
    queue: str
    tag: str
    search: str
    q: str
    payload: str
    start_date: Moment
    end_date: Moment
    due_from: Moment
    due_until: Moment


class ExecutionFilterParams(TypedDict, total=False):
    """A filter of executions."""

    status: str | Sequence[str]
    handler: str
    queue: str
    origin: str
    q: str
    start_date: Moment
    end_date: Moment


class CallParams(TypedDict, total=False):
    """A call that is not made yet: a handler, its payload, and what a one-off may say beside them."""

    handler: Required[str]
    payload: Any
    description: str | None
    meta: Mapping[str, Any] | None
    tags: Sequence[str]
    queue: str
    priority: int
    max_retries: int
    max_lost: int
    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_ms: Sequence[int]
    timeout_ms: int | None
    delivery: str
    max_running: int | None
    start_within_seconds: int | None
    limit_key: str | None
    on_success: WorkParams | None
    on_failure: WorkParams | None


class ChainParams(TypedDict, total=False):
    """Calls, chains and groups that run one after the other, as long as each succeeds."""

    chain: Required[Sequence[WorkParams]]
    on_failure: WorkParams | None


class GroupParams(TypedDict, total=False):
    """Calls, chains and groups that run side by side, and what follows when all of them have ended."""

    group: Required[Sequence[WorkParams]]
    then: WorkParams | None
    on_failure: WorkParams | None


WorkParams: TypeAlias = "CallParams | ChainParams | GroupParams"
