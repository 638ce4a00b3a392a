"""A contest: the peers that take part, what was measured of each, and why something was not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.notebook import Notebook, Unit
from bench.peers.catalog import Variant
from bench.peers.servers import Servers
from bench.peers.stage import Stage, staged

Note = tuple[str, float, Unit]
Measure = Callable[[Stage], Iterable[Note]]


def size_of_run() -> str:
    """How long a run was asked for."""
    asked = [name for name in ("SHORT", "FULL") if os.environ.get(name, "") not in ("", "0")]
    if len(asked) > 1:
        raise SystemExit("SHORT and FULL were both asked for; choose one, or none for the usual run")
    return asked[0].lower() if asked else "usual"


class FellShort(Exception):
    """A peer did what it was asked, but not in the time there was: an answer, and no failure."""


class Contest:
    """Asks all peers in turn, and keeps what it finds."""

    def __init__(self, servers: Servers, variants: Sequence[Variant]) -> None:
        self.servers = servers
        self.variants = variants
        self.size = size_of_run()
        self.notebook = Notebook("", "", None, {})
        self.refusals: dict[str, str] = {}

    def sized(self, short: int, usual: int, full: int) -> int:
        """A number that depends on how long a run was asked for."""
        return {"short": short, "usual": usual, "full": full}[self.size]

    def open(self, question: str, title: str) -> None:
        """Begin a new page."""
        self.notebook = Notebook(question, title, None, {})
        self.refusals = {}

    @property
    def rounds(self) -> int:
        """How often rates are measured."""
        return self.sized(1, 2, 5)

    def asked(self) -> list[Variant]:
        """Who takes part in the present question; of the others it is noted why not."""
        question = self.notebook.question
        for variant in self.variants:
            if question in variant.peer.cannot and question in variant.questions:
                self.refuse(variant, variant.peer.cannot[question])
        return [variant for variant in self.variants if variant.is_asked(question)]

    def interleave(self, measures: Mapping[str, Measure], rounds: int) -> None:
        """Measure all peers in turn, several times: a machine that is slow for a while is slow for all of them."""
        variants = self.asked()
        for _ in range(rounds):
            for variant in variants:
                for part, measure in measures.items():
                    self.measure(variant, part, measure)

    def measure(self, variant: Variant, part: str, measure: Measure) -> None:
        """Measure one peer on empty stores; one that fails is noted, and does not keep the others from going on."""
        reason = variant.peer.cannot.get(part)
        if reason is not None:
            self.refuse(variant, reason, part)
            return
        begun = time.monotonic()
        notes: list[Note] = []
        try:
            with staged(self.servers, variant) as stage:
                notes.extend(measure(stage))
        except FellShort as answer:
            self._refuse_aloud(variant, str(answer), part)
        except Exception as error:
            self._refuse_aloud(variant, f"failed: {error}", part)
        for figure, value, unit in notes:
            self.notebook.note(variant.subject, figure, value, unit)
        figures = ", ".join(f"{figure} {unit.show(value)}" for figure, value, unit in notes)
        print(f"  {variant.subject}: {figures} ({time.monotonic() - begun:.0f} s)", flush=True)

    def _refuse_aloud(self, variant: Variant, reason: str, part: str) -> None:
        self.refuse(variant, reason, part)
        print(f"  {variant.subject}, {part}: {reason}", flush=True)

    def refuse(self, variant: Variant, reason: str, part: str = "") -> None:
        """Note why there is no figure, of the question or of a part of it."""
        is_whole = part in ("", self.notebook.question)
        self.refusals[variant.subject if is_whole else f"{variant.subject}, {part}"] = reason

    def page(self) -> dict[str, Any]:
        """The present question: what was measured of whom, with which settings, and why some figures are missing."""
        question = self.notebook.question
        return self.notebook.as_json() | {
            "size": self.size,
            "servers": self.servers.describe(),
            "peers": [_described(variant) for variant in self.variants if question in variant.questions],
            "refusals": self.refusals,
        }


def _described(variant: Variant) -> dict[str, str]:
    return {
        "subject": variant.subject,
        "version": variant.peer.version,
        "store": variant.peer.store,
        "settings": variant.says,
        "keeps": variant.peer.keeps,
        "survives": variant.peer.survives,
    }
