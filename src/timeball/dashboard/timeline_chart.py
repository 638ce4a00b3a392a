"""The timeline as SVG: the time window with its axis, and the rows and the slot band drawn on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from timeball.application.queries.timeline import BandStep
from timeball.dashboard.formatting import format_milliseconds, iso, pluralize
from timeball.domain.forecast.timeline import MarkRow, TimelineMark
from timeball.domain.policies import SkipReason
from timeball.domain.scheduling.verdicts import describe_skips

SPANS = {
    "1h": timedelta(hours=1),
    "4h": timedelta(hours=4),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
DEFAULT_SPAN = "4h"


# The share of the view that lies before now, unless the address says where it starts.
_PAST_SHARE = 0.45
_STEPS = tuple(
    timedelta(minutes=minutes) for minutes in (5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1_440, 2_880, 10_080)
)
_MAX_TICKS = 10


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A mark on the axis; the first of a day has its date."""

    at: datetime
    text: str
    is_day: bool


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The period that is shown; *follows* says that it moves with the present."""

    now: datetime
    start: datetime
    word: str
    follows: bool
    zone: ZoneInfo

    @property
    def span(self) -> timedelta:
        return SPANS[self.word]

    @property
    def end(self) -> datetime:
        return self.start + self.span

    @property
    def has_now(self) -> bool:
        return self.start <= self.now <= self.end

    def percent_of(self, at: datetime) -> float:
        """The position of an instant, in percent of the width."""
        return min(max((at - self.start) / self.span, 0.0), 1.0) * 100

    def shifted(self, share: float) -> str:
        """The start of the view after a step to the side, for an address."""
        return _format_start(self.start + self.span * share)

    def zoomed(self, word: str) -> str | None:
        """The start of a view of another length with the same middle; None if it follows the present."""
        middle = self.start + self.span / 2
        return None if self.follows else _format_start(middle - SPANS[word] / 2)

    @property
    def closer(self) -> str | None:
        """The next smaller span."""
        return _neighbour(self.word, -1)

    @property
    def wider(self) -> str | None:
        """The next larger span."""
        return _neighbour(self.word, 1)

    @property
    def title(self) -> str:
        """`Tue 10:00 – 14:00`, in the zone of the browser."""
        start, end = self.start.astimezone(self.zone), self.end.astimezone(self.zone)
        last = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%a %-d %b %H:%M}"
        return f"{start:%a %-d %b %H:%M} – {last}"

    def ticks(self) -> list[AxisTick]:
        """About ten even steps in the zone of the browser."""
        step = next((step for step in _STEPS if self.span / step <= _MAX_TICKS), _STEPS[-1])
        ticks: list[AxisTick] = []
        at = _floor(self.start, step, self.zone)
        while at < self.end:
            if at >= self.start:
                ticks.append(_tick(at.astimezone(self.zone), step))
            at += step
        return ticks


def parse_time_window(now: datetime, start: str, word: str, zone: ZoneInfo) -> TimeWindow:
    """The period that an address asks for; values that cannot be read are replaced by the usual ones."""
    word = word if word in SPANS else DEFAULT_SPAN
    usual = now - SPANS[word] * _PAST_SHARE
    chosen = _parse_start(start)
    return TimeWindow(now, chosen or usual, word, chosen is None, zone)


def _parse_start(text: str) -> datetime | None:
    try:
        start = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    start = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
    # A step of a week must not leave the range of dates.
    return start.astimezone(UTC) if 1_971 <= start.year <= 9_000 else None


def _format_start(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _neighbour(word: str, step: int) -> str | None:
    words = list(SPANS)
    place = words.index(word) + step
    return words[place] if 0 <= place < len(words) else None


def _floor(at: datetime, step: timedelta, zone: ZoneInfo) -> datetime:
    """The last even step at or before an instant, counted from midnight in the zone."""
    local = at.astimezone(zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = local.replace(tzinfo=None) - midnight.replace(tzinfo=None)
    even = midnight.replace(tzinfo=None) + passed // step * step
    return even.replace(tzinfo=zone, fold=local.fold).astimezone(UTC)


def _tick(local: datetime, step: timedelta) -> AxisTick:
    is_day = local.hour == 0 and local.minute == 0
    return AxisTick(local, f"{local:%a %-d %b}" if is_day or step >= timedelta(days=1) else f"{local:%H:%M}", is_day)


# The drawing: past marks are solid, running ones striped, predicted ones outlined, skipped ones hatched.
# Positions are percents, so that it fits every width.

ROW_HEIGHT = 28
BAND_HEIGHT = 52
_STRIPES = (
    '<defs><pattern id="stripes" class="tone-live" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect fill="var(--wash)" width="6" height="6"/><rect fill="var(--tone)" width="3" height="6"/></pattern>'
    '<pattern id="hatch" class="tone-warn" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<rect fill="var(--wash)" width="5" height="5"/><rect fill="var(--tone)" width="2" height="5"/></pattern></defs>'
)


# In percent: a browser draws nothing for a mark without a width, such as a single skipped occurrence.
_LEAST_WIDTH = 0.12
# A mark for so many runs or more shows their number.
_MANY = 12


def axis(view: TimeWindow) -> Markup:
    """The hours above the rows."""
    return _svg(
        "axis", 22, f"Hours from {view.title}", [_label(view.percent_of(tick.at), tick) for tick in view.ticks()]
    )


def _label(x: float, tick: AxisTick) -> str:
    # Near the right edge a label would be cut.
    anchor = ' text-anchor="end"' if x > (88 if tick.is_day else 95) else ""
    return f'<text class="tick{_day(tick)}" x="{x:.2f}%" y="15"{anchor}>{escape(tick.text)}</text>'


def rows(view: TimeWindow, drawn: Sequence[MarkRow], freezes: Sequence[Mapping[str, Any]] = ()) -> Markup:
    """One line for each row, and behind its marks a band for each freeze that holds it."""
    height = ROW_HEIGHT * len(drawn)
    parts = [_STRIPES, *_grid(view, height)]
    for number, row in enumerate(drawn):
        parts += [_frozen(view, freeze, ROW_HEIGHT * number) for freeze in freezes if freeze["id"] in row.freezes]
    for number in range(1, len(drawn) + 1):
        parts.append(f'<line class="rule" x1="0" x2="100%" y1="{ROW_HEIGHT * number}" y2="{ROW_HEIGHT * number}"/>')
    for number, row in enumerate(drawn):
        parts += [_mark(view, mark, ROW_HEIGHT * number, row) for mark in row.marks]
    return _svg("lines", height, summary(view, drawn), [*parts, *_now(view, height)])


def band(view: TimeWindow, steps: Sequence[BandStep], slots: int) -> Markup:
    """Busy and needed slots over time, against those there are."""
    top = max([slots, *(step.peak for step in steps), *(step.busy for step in steps), 1])
    parts = _grid(view, BAND_HEIGHT)
    for step in steps:
        parts += _step(view, step, top, slots)
    if slots:
        y = BAND_HEIGHT - slots / top * (BAND_HEIGHT - 4)
        parts.append(f'<line class="limit" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _svg("band", BAND_HEIGHT, band_summary(steps, slots), [*parts, *_now(view, BAND_HEIGHT)])


def summary(view: TimeWindow, drawn: Sequence[MarkRow]) -> str:
    """The drawing in one sentence."""
    marks = [mark for row in drawn for mark in row.marks]
    numbers = {kind: sum(mark.count for mark in marks if mark.kind == kind) for kind in ("past", "predicted")}
    runs = sum(mark.count for mark in marks if mark.kind == "running")
    reasons = Counter[str]()
    for mark in marks:
        if mark.kind == "skipped":
            reasons.update(mark.states)
    skips = f"; {describe_skips(reasons)}" if reasons else ""
    return (
        f"{view.title}: {pluralize(len(drawn), 'row')}, {pluralize(numbers['past'], 'run')} past, "
        f"{runs} running, {numbers['predicted']} predicted{skips}"
    )


def band_summary(steps: Sequence[BandStep], slots: int) -> str:
    """The slots in one sentence."""
    peak = max((step.peak for step in steps), default=0)
    over = [step for step in steps if step.note]
    short = f"; not enough at {pluralize(len(over), 'place')}, first: {over[0].note}" if over else ""
    return f"{pluralize(slots, 'slot')}, at most {peak} needed at once{short}"


def mark_tone(mark: TimelineMark) -> str:
    """The colour of a mark: that of its worst outcome."""
    states = mark.states
    if mark.kind == "skipped":
        return "tone-warn" if any(reason.is_missed for reason in SkipReason if reason in states) else "tone-calm"
    if states.get("dead"):
        return "tone-bad"
    if mark.kind == "past" and not states.get("succeeded"):
        return "tone-calm"
    return {"past": "tone-good", "running": "tone-live", "predicted": "tone-calm"}[mark.kind]


def mark_title(mark: TimelineMark, view: TimeWindow) -> str:
    """A mark in words."""
    start, end = mark.start, mark.end
    at = f"{start.astimezone(view.zone):%a %H:%M:%S}"
    if mark.kind == "skipped":
        last = "" if end == start else f" – {end.astimezone(view.zone):%H:%M:%S}"
        return f"{describe_skips(mark.states)}: {at}{last}"
    if mark.count > 1:
        until = f"{end.astimezone(view.zone):%H:%M:%S}"
        how = ", ".join(f"{count} {state}" for state, count in mark.states.items()) or mark.kind
        return f"{mark.count} runs {at} – {until}: {how}"
    lasts = format_milliseconds((end - start).total_seconds() * 1_000)
    if mark.kind == "predicted":
        return f"{at} expected, " + ("no history yet" if mark.is_guess else f"usually takes {lasts}")
    if mark.kind == "running":
        return f"running since {at}, usually ends {end.astimezone(view.zone):%H:%M:%S}"
    return f"{at} {next(iter(mark.states), 'ended')} after {lasts}"


def mark_target(mark: TimelineMark, row: MarkRow) -> str | None:
    """The path of the page of a mark: its execution, or the ledger of a job that skipped several occurrences."""
    if mark.execution_id is not None:
        return f"/executions/{mark.execution_id}"
    if mark.kind != "skipped" or not row.key.startswith("job_"):
        return None
    span = urlencode({"tab": "ledger", "verdict": "skipped", "from": iso(mark.start), "until": iso(mark.end)})
    return f"/jobs/{row.key}?{span}"


def _mark(view: TimeWindow, mark: TimelineMark, top: int, row: MarkRow) -> str:
    x = view.percent_of(mark.start)
    width = max(view.percent_of(mark.end) - x, _LEAST_WIDTH)
    # A run of a job without history is drawn lower than the others.
    lower = 6 if mark.is_guess else 0
    drawn = _rect(
        f"{mark.kind} {mark_tone(mark)}",
        (x, top + 6 + lower, width, ROW_HEIGHT - 12 - lower),
        mark_title(mark, view),
        mark_target(mark, row),
    )
    if mark.count < _MANY or width < 3:
        return drawn
    y = top + ROW_HEIGHT / 2 + 4
    return f'{drawn}<text class="times" x="{x + width / 2:.2f}%" y="{y}">×{mark.count}</text>'


def _frozen(view: TimeWindow, freeze: Mapping[str, Any], top: int) -> str:
    x = view.percent_of(freeze["from"])
    width = max(view.percent_of(freeze["until"]) - x, 0.2)
    return (
        f'<rect class="frozen" x="{x:.2f}%" y="{top}" width="{width:.2f}%" height="{ROW_HEIGHT}">'
        f"<title>{escape(freeze['words'])}</title></rect>"
    )


def _step(view: TimeWindow, step: BandStep, top: float, slots: int) -> list[str]:
    need = max(step.busy, step.peak)
    if not need:
        return []
    kind = "predicted" if step.is_predicted else "past"
    title = (
        f"{step.start.astimezone(view.zone):%a %H:%M}: {step.busy:g} busy on average, {step.peak} at once, of {slots}"
    )
    tall = max(need / top * (BAND_HEIGHT - 4), 1.5)
    x = view.percent_of(step.start)
    return [
        _rect(
            f"{kind} {'tone-bad' if step.note else 'tone-live'}",
            (x, round(BAND_HEIGHT - tall, 1), max(view.percent_of(step.end) - x - 0.08, 0.05), round(tall, 1)),
            f"{title}; {step.note}" if step.note else title,
        )
    ]


def _grid(view: TimeWindow, height: int) -> list[str]:
    places = [(view.percent_of(tick.at), _day(tick)) for tick in view.ticks()]
    return [f'<line class="grid{day}" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>' for x, day in places]


def _now(view: TimeWindow, height: int) -> list[str]:
    x = view.percent_of(view.now)
    return [f'<line class="now" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>'] if view.has_now else []


def _day(tick: AxisTick) -> str:
    return " day" if tick.is_day else ""


# A drawing may have two thousand marks: numbers and classes are written as they are, and only texts are escaped.
def _rect(kind: str, box: tuple[float, float, float, float], title: str, go: str | None = None) -> str:
    x, y, width, height = box
    lead = f' data-go="{escape(go)}"' if go else ""
    return (
        f'<rect class="mark {kind}" x="{x:.2f}%" y="{y}" width="{width:.2f}%" height="{height}" rx="2"{lead}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(kind: str, height: int, label: str, parts: Iterable[str]) -> Markup:
    return Markup(
        f'<svg class="{kind}" width="100%" height="{height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
