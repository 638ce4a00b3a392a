"""HTML components that a page has by the hundred: built in Python, because a template takes ten times as long for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from timeball.dashboard.formatting import STATES, parse_instant

_NEVER = Markup('<span class="faint">–</span>')


def time_tag(value: Any, mode: str = "relative") -> Markup:
    """An instant in UTC, which the browser replaces by a relative or local time; a dash if there is none.

    *mode* is relative, clock (the day only if it is not today) or full.
    """
    instant = parse_instant(value) if value else None
    if instant is None:
        return _NEVER
    at = instant.astimezone(UTC)
    text = f"{at.isoformat(' ', 'seconds')[:19]} UTC"
    exact = f"{at.isoformat('T', 'milliseconds')[:23]}Z"
    return Markup(f'<time datetime="{exact}" data-mode="{escape(mode)}" title="{text}">{text}</time>')


def form_fields(token: str, back: str) -> Markup:
    """The hidden fields of every form that changes something: the CSRF token, and the address to return to."""
    return Markup(_hidden_inputs({"token": token, "back": back}))


@dataclass(frozen=True, slots=True)
class Components:
    """The components that depend on the request: its addresses, its form fields and the role of its caller."""

    sprite: str
    form_fields: Markup
    site_url: Callable[[str], str]
    can: Callable[[str], bool]

    def icon(self, name: str) -> Markup:
        """An icon."""
        return _icon(self.sprite, name)

    def state(self, word: str, text: str | None = None) -> Markup:
        """A state: icon, word and colour together."""
        return _badge(self.sprite, word, text)

    def action(
        self,
        path: str,
        text: str,
        icon_name: str | None = None,
        *,
        role: str = "operator",
        fields: Mapping[str, Any] | None = None,
        key: str | None = None,
        title: str | None = None,
        danger: bool = False,
        **more: Any,
    ) -> Markup:
        """A button in a form of its own; nothing for a caller without the role. *key* is its keyboard shortcut.

        *more*: `class`, and the confirmation dialog: `confirm` with its `detail` and `verb`; `reason` asks for a reason,
        `typed` for a name, `until` for an instant, which becomes the field of this name.
        """
        if not self.can(role):
            return Markup("")
        dialog = _dialog_attributes(text, danger=danger, **more) if more.get("confirm") else ""
        look = f"{escape(more.get('class', ''))}{' danger' if danger else ''}"
        tooltip = f' title="{escape(title)}" aria-label="{escape(title)}"' if title else ""
        on_key = f' data-key="{escape(key)}"' if key else ""
        return Markup(
            f'<form class="inline" method="post" action="{escape(self.site_url(path))}"{dialog}>'
            f"{self.form_fields}{_hidden_inputs(fields or {})}"
            f'<button class="{look}"{on_key}{tooltip}>{self.icon(icon_name) if icon_name else ""}{escape(text)}</button></form>'
        )


# There are few different icons and badges, and every page shows most of them.
@lru_cache(maxsize=1_000)
def _icon(sprite: str, name: str) -> Markup:
    return Markup(f'<svg class="icon" aria-hidden="true"><use href="{escape(sprite)}#{escape(name)}"/></svg>')


# typed: equal texts differ if one of them is markup.
@lru_cache(maxsize=1_000, typed=True)
def _badge(sprite: str, word: str, text: str | None = None) -> Markup:
    look = STATES[word]
    shown = escape(text or word.replace("_", " "))
    return Markup(f'<span class="badge tone-{look.tone}">{_icon(sprite, look.icon)}{shown}</span>')


def _hidden_inputs(fields: Mapping[str, Any]) -> str:
    return "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in fields.items()
    )


def _dialog_attributes(text: str, *, danger: bool, confirm: str, **more: Any) -> str:
    """The attributes from which the browser fills the confirmation dialog."""
    words = {"confirm": confirm, "detail": more.get("detail", ""), "verb": more.get("verb") or text}
    words |= {name: more[name] for name in ("typed", "until") if more.get(name)}
    flags = f"{' data-reason' if more.get('reason') else ''}{' data-danger' if danger else ''}"
    return "".join(f' data-{name}="{escape(value)}"' for name, value in words.items()) + flags
