"""What all pages share: the templates, the files, the API, and who is at the reception."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.types import ASGIApp

from timeball.dashboard import charts
from timeball.dashboard.assets import Assets
from timeball.dashboard.pieces import when
from timeball.dashboard.shared_reads import SharedReads
from timeball.dashboard.visitor import Reception, Signer
from timeball.dashboard.wording import FILTERS, STATES
from timeball.insights import Insights
from timeball.live import Live
from timeball.settings import Settings
from timeball.version import __version__


class KeyCupboard(Protocol):
    """Where API keys are made, listed and revoked."""

    async def create(self, role: str, name: str, expires_in: timedelta | None, audit: Any) -> tuple[Any, str]: ...
    async def list(self) -> Sequence[Any]: ...
    async def revoke(self, key_id: str, audit: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The dashboard of one process."""

    api: ASGIApp
    insights: Insights
    reception: Reception
    cupboard: KeyCupboard
    live: Live
    settings: Settings
    assets: Assets
    templates: Environment
    reads: SharedReads
    signer: Signer
    # How many there are of what the side of every page names: as they were last counted, by the page each stands beside.
    counts: dict[str, str] = field(default_factory=dict)
    # How many streams the browsers of each caller hold open now.
    streams: Counter[str] = field(default_factory=Counter)

    def render(self, template: str, /, **context: Any) -> str:
        """A template, filled in."""
        return self.templates.get_template(template).render(**context)


class _Templates(Environment):
    """Most of what templates read are documents: `row.name` is looked for among the fields first, which is many times as quick."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj:
            return obj[attribute]
        try:
            return getattr(obj, attribute)
        except AttributeError:
            return super().getattr(obj, attribute)


def make_templates(assets: Assets) -> Environment:
    """The templates: everything is escaped, and a name that is missing is an error."""
    environment = _Templates(
        loader=PackageLoader("timeball.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # They come with the package: whoever changes one starts anew, and no page has to ask thirty times whether somebody did.
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(assets=assets, charts=charts, states=STATES, version=__version__, a_time=when)
    return environment
