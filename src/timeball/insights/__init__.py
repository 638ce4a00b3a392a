"""Every read a front needs, a file for each question.

API, command line and dashboard all come through here. Nothing here writes, and nothing here counts a whole table.
"""

from timeball.domain.search import EXACT_UP_TO as MOST_COUNTED
from timeball.insights.calendar import Calendar
from timeball.insights.doctor import Concern
from timeball.insights.forecast import Forecast, ForecastWish
from timeball.insights.landing import Landing, LandingWish
from timeball.insights.lookup import Insights
from timeball.insights.revisions import Change, Revision
from timeball.insights.spread import Advice, SpreadWish
from timeball.insights.timeline import RowsBy, Timeline, TimelineWish
from timeball.insights.views import Check, ExecutionView, FireTime, JobView
from timeball.store.listing import RecentRuns

__all__ = [
    "MOST_COUNTED",
    "Advice",
    "Calendar",
    "Change",
    "Check",
    "Concern",
    "ExecutionView",
    "FireTime",
    "Forecast",
    "ForecastWish",
    "Insights",
    "JobView",
    "Landing",
    "LandingWish",
    "RecentRuns",
    "Revision",
    "RowsBy",
    "SpreadWish",
    "Timeline",
    "TimelineWish",
]
