"""The time line as SVG: past solid, running striped, predicted outlined; places in percent, so that it fits every width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from timeball.dashboard.timeline_view import View
from timeball.dashboard.wording import counted, moment, span

Document = Mapping[str, Any]

ROW_HEIGHT = 28
BAND_HEIGHT = 52
_MARK = Markup(
    '<rect class="mark {kind} {tone}" x="{x:.2f}%" y="{y}" width="{width:.2f}%" height="{height}" rx="2"{go}>'
    "<title>{title}</title></rect>"
)
_GO = Markup(' data-go="{}"')
_STRIPES = Markup(
    '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe-ground" width="6" height="6"/><rect class="stripe" width="3" height="6"/></pattern></defs>'
)
_SVG = Markup('<svg class="{kind}" width="100%" height="{height}" role="img" aria-label="{label}">{body}</svg>')
_GRID = Markup('<line class="grid{day}" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>')
_TICK = Markup('<text class="tick{day}" x="{x:.2f}%" y="15"{anchor}>{text}</text>')
_NOW = Markup('<line class="now" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{height}"/>')
_RULE = Markup('<line class="rule" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
_COUNT = Markup('<text class="times" x="{x:.2f}%" y="{y}">×{count}</text>')
# From here on a mark stands for so many runs that their number is worth a word.
_MANY = 12


def axis(view: View) -> Markup:
    """The hours above."""
    body = _join(
        _TICK.format(
            x=view.place(tick.at),
            text=tick.text,
            day=" day" if tick.is_day else "",
            # Near the right edge a label would be cut.
            anchor=Markup(' text-anchor="end"') if view.place(tick.at) > 95 else "",
        )
        for tick in view.ticks()
    )
    return _SVG.format(kind="axis", height=22, label=f"Hours from {view.title}", body=body)


def rows(view: View, drawn: Sequence[Document]) -> Markup:
    """One line for each row."""
    height = ROW_HEIGHT * len(drawn)
    parts = [_STRIPES, *_grid(view, height)]
    parts += [_RULE.format(y=ROW_HEIGHT * (number + 1)) for number in range(len(drawn))]
    for number, row in enumerate(drawn):
        parts += [_mark(view, mark, ROW_HEIGHT * number) for mark in row["marks"]]
    if view.has_now:
        parts.append(_NOW.format(x=view.place(view.now), height=height))
    return _SVG.format(kind="lines", height=height, label=summary(view, drawn), body=_join(parts))


def band(view: View, steps: Sequence[Document], slots: int) -> Markup:
    """How many slots are busy, and need to be, against those there are."""
    top = max([slots, *(step["peak"] for step in steps), *(step["busy"] for step in steps), 1])
    parts = _grid(view, BAND_HEIGHT)
    for step in steps:
        parts += _step(view, step, top, slots)
    if slots:
        y = BAND_HEIGHT - slots / top * (BAND_HEIGHT - 4)
        parts.append(Markup('<line class="limit" x1="0" x2="100%" y1="{0:.1f}" y2="{0:.1f}"/>').format(y))
    if view.has_now:
        parts.append(_NOW.format(x=view.place(view.now), height=BAND_HEIGHT))
    return _SVG.format(kind="band", height=BAND_HEIGHT, label=band_summary(steps, slots), body=_join(parts))


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
    start, end = moment(mark["start"]), moment(mark["end"])
    assert start is not None
    assert end is not None
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


def _mark(view: View, mark: Document, top: int) -> Markup:
    start, end = moment(mark["start"]), moment(mark["end"])
    assert start is not None
    assert end is not None
    x = view.place(start)
    width = max(view.place(end) - x, 0.0)
    drawn = _MARK.format(
        kind=mark["kind"],
        tone=tone_of(mark),
        x=x,
        # A place of its own for what was expected without any history: lower than what is known.
        y=top + (12 if mark["is_guess"] else 6),
        width=width,
        height=ROW_HEIGHT - (18 if mark["is_guess"] else 12),
        go=_GO.format(mark["execution_id"]) if mark["execution_id"] else "",
        title=title_of(mark, view),
    )
    if mark["count"] < _MANY or width < 3:
        return drawn
    return drawn + _COUNT.format(x=x + width / 2, y=top + ROW_HEIGHT / 2 + 4, count=mark["count"])


def _step(view: View, step: Document, top: float, slots: int) -> list[Markup]:
    start, end = moment(step["start"]), moment(step["end"])
    assert start is not None
    assert end is not None
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
        _MARK.format(
            kind=kind,
            tone="tone-bad" if step["note"] else "tone-live",
            x=x,
            y=f"{BAND_HEIGHT - tall:.1f}",
            width=max(view.place(end) - x - 0.08, 0.05),
            height=f"{tall:.1f}",
            go="",
            title=f"{title}; {step['note']}" if step["note"] else title,
        )
    ]


def _grid(view: View, height: int) -> list[Markup]:
    return [
        _GRID.format(x=view.place(tick.at), height=height, day=" day" if tick.is_day else "") for tick in view.ticks()
    ]


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)
