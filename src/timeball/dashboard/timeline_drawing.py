"""The time line as SVG: past solid, running striped, predicted outlined; places in percent, so that it fits every width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from timeball.dashboard.timeline_view import Tick, View
from timeball.dashboard.wording import counted, moment, span

Document = Mapping[str, Any]

ROW_HEIGHT = 28
BAND_HEIGHT = 52
_STRIPES = (
    '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe-ground" width="6" height="6"/><rect class="stripe" width="3" height="6"/></pattern></defs>'
)
# From here on a mark stands for so many runs that their number is worth a word.
_MANY = 12


def axis(view: View) -> Markup:
    """The hours above."""
    return _svg("axis", 22, f"Hours from {view.title}", [_label(view.place(tick.at), tick) for tick in view.ticks()])


def _label(x: float, tick: Tick) -> str:
    # Near the right edge a label would be cut.
    anchor = ' text-anchor="end"' if x > 95 else ""
    return f'<text class="tick{_day(tick)}" x="{x:.2f}%" y="15"{anchor}>{escape(tick.text)}</text>'


def rows(view: View, drawn: Sequence[Document]) -> Markup:
    """One line for each row."""
    height = ROW_HEIGHT * len(drawn)
    parts = [_STRIPES, *_grid(view, height)]
    for number in range(1, len(drawn) + 1):
        parts.append(f'<line class="rule" x1="0" x2="100%" y1="{ROW_HEIGHT * number}" y2="{ROW_HEIGHT * number}"/>')
    for number, row in enumerate(drawn):
        parts += [_mark(view, mark, ROW_HEIGHT * number) for mark in row["marks"]]
    return _svg("lines", height, summary(view, drawn), [*parts, *_now(view, height)])


def band(view: View, steps: Sequence[Document], slots: int) -> Markup:
    """How many slots are busy, and need to be, against those there are."""
    top = max([slots, *(step["peak"] for step in steps), *(step["busy"] for step in steps), 1])
    parts = _grid(view, BAND_HEIGHT)
    for step in steps:
        parts += _step(view, step, top, slots)
    if slots:
        y = BAND_HEIGHT - slots / top * (BAND_HEIGHT - 4)
        parts.append(f'<line class="limit" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _svg("band", BAND_HEIGHT, band_summary(steps, slots), [*parts, *_now(view, BAND_HEIGHT)])


def summary(view: View, drawn: Sequence[Document]) -> str:
    """The drawing in one sentence."""
    marks = [mark for row in drawn for mark in row["marks"]]
    numbers = {kind: sum(mark["count"] for mark in marks if mark["kind"] == kind) for kind in ("past", "predicted")}
    runs = sum(mark["count"] for mark in marks if mark["kind"] == "running")
    return (
        f"{view.title}: {counted(len(drawn), 'row')}, {counted(numbers['past'], 'run')} past, "
        f"{runs} running, {numbers['predicted']} predicted"
    )


def band_summary(steps: Sequence[Document], slots: int) -> str:
    """The slots in one sentence."""
    peak = max((step["peak"] for step in steps), default=0)
    over = [step for step in steps if step["note"]]
    short = f"; not enough at {counted(len(over), 'place')}, first: {over[0]['note']}" if over else ""
    return f"{counted(slots, 'slot')}, at most {peak} needed at once{short}"


def tone_of(mark: Document) -> str:
    """The colour of a mark: that of the worst that happened in it."""
    states = mark["states"]
    if states.get("dead"):
        return "tone-bad"
    if mark["kind"] == "past" and not states.get("succeeded"):
        return "tone-calm"
    return {"past": "tone-good", "running": "tone-live", "predicted": "tone-calm"}[mark["kind"]]


def title_of(mark: Document, view: View) -> str:
    """What a mark stands for, in words."""
    return _title(mark, *_ends(mark), view)


def _title(mark: Document, start: datetime, end: datetime, view: View) -> str:
    at = f"{start.astimezone(view.zone):%a %H:%M:%S}"
    if mark["count"] > 1:
        until = f"{end.astimezone(view.zone):%H:%M:%S}"
        how = ", ".join(f"{count} {state}" for state, count in mark["states"].items()) or mark["kind"]
        return f"{mark['count']} runs {at} – {until}: {how}"
    lasts = span((end - start).total_seconds() * 1_000)
    if mark["kind"] == "predicted":
        return f"{at} expected, " + ("no history yet" if mark["is_guess"] else f"usually takes {lasts}")
    if mark["kind"] == "running":
        return f"running since {at}, usually ends {end.astimezone(view.zone):%H:%M:%S}"
    return f"{at} {next(iter(mark['states']), 'ended')} after {lasts}"


def _mark(view: View, mark: Document, top: int) -> str:
    start, end = _ends(mark)
    x = view.place(start)
    width = max(view.place(end) - x, 0.0)
    # A place of its own for what was expected without any history: lower than what is known.
    lower = 6 if mark["is_guess"] else 0
    drawn = _rect(
        f"{mark['kind']} {tone_of(mark)}",
        (x, top + 6 + lower, width, ROW_HEIGHT - 12 - lower),
        _title(mark, start, end, view),
        mark["execution_id"],
    )
    if mark["count"] < _MANY or width < 3:
        return drawn
    y = top + ROW_HEIGHT / 2 + 4
    return f'{drawn}<text class="times" x="{x + width / 2:.2f}%" y="{y}">×{mark["count"]}</text>'


def _step(view: View, step: Document, top: float, slots: int) -> list[str]:
    start, end = _ends(step)
    need = max(step["busy"], step["peak"])
    if not need:
        return []
    kind = "predicted" if step["is_predicted"] else "past"
    title = (
        f"{start.astimezone(view.zone):%a %H:%M}: {step['busy']:g} busy on average, {step['peak']} at once, of {slots}"
    )
    tall = max(need / top * (BAND_HEIGHT - 4), 1.5)
    x = view.place(start)
    return [
        _rect(
            f"{kind} {'tone-bad' if step['note'] else 'tone-live'}",
            (x, round(BAND_HEIGHT - tall, 1), max(view.place(end) - x - 0.08, 0.05), round(tall, 1)),
            f"{title}; {step['note']}" if step["note"] else title,
        )
    ]


def _ends(drawn: Document) -> tuple[datetime, datetime]:
    start, end = moment(drawn["start"]), moment(drawn["end"])
    assert start is not None
    assert end is not None
    return start, end


def _grid(view: View, height: int) -> list[str]:
    places = [(view.place(tick.at), _day(tick)) for tick in view.ticks()]
    return [f'<line class="grid{day}" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>' for x, day in places]


def _now(view: View, height: int) -> list[str]:
    x = view.place(view.now)
    return [f'<line class="now" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>'] if view.has_now else []


def _day(tick: Tick) -> str:
    return " day" if tick.is_day else ""


# A drawing may have two thousand marks: what is ours is put together as it is, and only words are escaped.
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
