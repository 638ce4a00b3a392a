"""The ledger of a job: a calendar of its days, and what became of its occurrences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup

from timeball.api.auth import Role
from timeball.application.queries.ledger import DEFAULT_AHEAD, DEFAULT_BEHIND, LedgerQuery
from timeball.application.queries.ledger_days import DayVerdict, LedgerDay
from timeball.dashboard import charts
from timeball.dashboard.components import time_tag
from timeball.dashboard.context import PageContext, browser_zone, zone_label
from timeball.dashboard.formatting import STATES, format_number, iso, pluralize
from timeball.domain.execution import Origin
from timeball.domain.job import Job
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import format_instant, parse_instant
from timeball.domain.scheduling.verdicts import LedgerLine, describe_skips
from timeball.domain.values.ids import format_execution_id

_PAGE = 50
_WEEKS = 20
# On a phone there is room for so many.
_WEEKS_ON_PHONE = 9
_DAY_WORDS = {
    DayVerdict.RAN: "all ran",
    DayVerdict.LATE: "some began late",
    DayVerdict.SKIPPED: "some were skipped",
    DayVerdict.MISSED: "some were missed",
    DayVerdict.DEAD: "some died",
    DayVerdict.EMPTY: "nothing was due",
}


async def ledger_tab(context: PageContext, job: Job) -> dict[str, Any]:
    """The last twenty weeks day by day, and a page of the ledger, the latest first."""
    queries, zone = context.site.queries, browser_zone(context.request)
    now = queries.now()
    today = now.astimezone(zone).date()
    first = today - timedelta(days=today.weekday(), weeks=_WEEKS - 1)
    days = await queries.ledger_days.days(job, zone.key, first, today)
    verdict, reason = _word(context, "verdict", Verdict), _word(context, "reason", SkipReason)
    query = _query(context, zone, now, verdict, reason)
    ledger = await queries.ledger.page(job, query, context.page_request(_PAGE))
    return {
        "days": days,
        "calendar": _calendar(context, days, zone),
        "day_words": {word: text for word, text in _DAY_WORDS.items() if word is not DayVerdict.EMPTY},
        "day_text": day_text,
        "is_table": context.query("view") == "table",
        "zone": zone_label(zone),
        "verdicts": list(Verdict),
        "verdict": verdict,
        "reasons": list(SkipReason),
        "reason": reason,
        "since": query.since,
        "until": query.until,
        "is_day": bool(context.query("from")),
        "history_from": ledger.history_from,
        "may_backfill": job.rule.is_recurring and verdict != Verdict.EXPECTED and context.can(Role.EDITOR),
        "has_missing": job.rule.is_recurring and any(_is_missing(line) for line in ledger.page.items),
        "rows": [_row(context, line) for line in ledger.page.items],
        "page": ledger.page,
    }


def _word(context: PageContext, name: str, words: type[Verdict] | type[SkipReason]) -> str:
    return context.query(name) if context.query(name) in list(words) else ""


def _query(context: PageContext, zone: ZoneInfo, now: datetime, verdict: str, reason: str) -> LedgerQuery:
    """The span in the address; or else the last week or, for what is expected, the next day."""
    is_ahead = verdict == Verdict.EXPECTED
    since, until = (now, now + DEFAULT_AHEAD) if is_ahead else (now - DEFAULT_BEHIND, now)
    given = {name: context.query(name) for name in ("from", "until")}
    return LedgerQuery(
        since=parse_instant(given["from"], zone.key, "from") if given["from"] else since,
        until=parse_instant(given["until"], zone.key, "until") if given["until"] else until,
        verdicts=frozenset([Verdict(verdict)] if verdict else ()),
        reasons=frozenset([reason] if reason else ()),
        newest_first=not is_ahead,
    )


def _row(context: PageContext, line: LedgerLine) -> dict[str, Any]:
    """A line as the list shows it."""
    components, id_ = context.components, line.execution_id
    when = time_tag(line.first, "full")
    return {
        "when": when + " – " + time_tag(line.last, "clock") if line.is_range else when,
        "at": format_instant(line.first),
        "verdict": components.state(_look(line), line.verdict),
        "count": "–" if line.count is None else format_number(line.count),
        "words": _words(line),
        "execution": id_ and format_execution_id(id_),
        "state": line.state and line.verdict is not Verdict.SKIPPED and components.state(line.state),
        "version": line.version,
    }


def _is_missing(line: LedgerLine) -> bool:
    """Whether a backfill would fill something of a line in."""
    is_skipped = line.verdict is Verdict.SKIPPED and line.origin is Origin.SCHEDULE and not line.is_left_out
    return is_skipped and (line.count is None or line.filled < line.count)


def _look(line: LedgerLine) -> str:
    """The look of a verdict: what was missed is not like what was skipped on purpose."""
    is_missed = line.verdict is Verdict.SKIPPED and line.reason in {reason for reason in SkipReason if reason.is_missed}
    return "missed" if is_missed else line.verdict


def _words(line: LedgerLine) -> str:
    if line.origin is Origin.BACKFILL:
        return f"backfill; {line.reason}" if line.reason else "backfill"
    why = f": {line.freeze.reason}" if line.freeze and line.freeze.reason else ""
    if line.is_frozen:
        return f"held by a freeze{why}"
    if line.verdict is Verdict.EXPECTED and line.reason:
        return f"will be skipped, {line.reason.replace('_', ' ')}{why}"
    if line.verdict is Verdict.EXPECTED:
        return f"runs after a freeze{why}" if line.freeze else ""
    if line.reason is None:
        return "due, and not judged yet" if line.verdict is Verdict.WAITING and line.execution_id is None else ""
    filled = f"; {format_number(line.filled)} filled in" if line.filled else ""
    # A single one has its number and its verdict beside it.
    words = describe_skips({line.reason: line.count or 1}) if line.is_range else line.reason
    return words.replace("_", " ") + filled


def day_text(day: LedgerDay) -> str:
    """A day in words: `Tue 3 Nov 2026: 287 ran, 2 late, 1 dead; 5 missed, misfire`."""
    counts = [pluralize(day.ran, "ran", "ran")]
    counts += [f"{format_number(number)} {word}" for number, word in ((day.late, "late"), (day.dead, "dead")) if number]
    parts = [", ".join(counts) if day.ran or day.dead else "", describe_skips(day.skipped)]
    return f"{day.date:%a %-d %b %Y}: {'; '.join(part for part in parts if part) or _DAY_WORDS[DayVerdict.EMPTY]}"


def _calendar(context: PageContext, days: Sequence[LedgerDay], zone: ZoneInfo) -> Markup:
    caption = f"What became of each day since {days[0].date:%-d %B %Y}, {zone_label(zone)} time"
    return charts.calendar([_square(context, day) for day in days], caption, _WEEKS_ON_PHONE)


def _square(context: PageContext, day: LedgerDay) -> charts.DaySquare:
    title = day_text(day)
    if day.verdict is DayVerdict.EMPTY:
        return charts.DaySquare(day.date, title)
    look = STATES[day.verdict]
    href = context.here(**{"from": iso(day.start), "until": iso(day.end - timedelta(milliseconds=1)), "cursor": None})
    return charts.DaySquare(day.date, title, f"tone-{look.tone}", f"{href}#entries", context.components.icon(look.icon))
