"""Every read that API, command line and dashboard need; nothing here writes or counts a whole table."""

from timeball.application.queries.lookup import Queries
from timeball.application.queries.views import (
    AttentionItem,
    Calendar,
    ExecutionView,
    FieldChange,
    FireTime,
    Forecast,
    ForecastRequest,
    HealthCheck,
    InstantLoad,
    InstantLoadRequest,
    JobView,
    Revision,
    RowsBy,
    SpreadAdvice,
    SpreadRequest,
    Timeline,
    TimelineRequest,
)
from timeball.domain.search import EXACT_UP_TO as MOST_COUNTED
from timeball.store.search.listing import RecentRuns

__all__ = [
    "MOST_COUNTED",
    "AttentionItem",
    "Calendar",
    "ExecutionView",
    "FieldChange",
    "FireTime",
    "Forecast",
    "ForecastRequest",
    "HealthCheck",
    "InstantLoad",
    "InstantLoadRequest",
    "JobView",
    "Queries",
    "RecentRuns",
    "Revision",
    "RowsBy",
    "SpreadAdvice",
    "SpreadRequest",
    "Timeline",
    "TimelineRequest",
]
