"""The peers there are: a folder each, with a `peer.toml` that says how it is run and with which settings."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timeball.version import __version__

HERE = Path(__file__).resolve().parent
QUESTIONS = ("drain", "backlog", "latency", "lateness", "recurring", "recovery", "enqueue")
# What a question may be refused for: a question as a whole, or its part with two processes.
PARTS = (*QUESTIONS, "two processes", "bulk")
DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A job queue to be measured."""

    name: str
    title: str
    version: str
    language: str
    store: str
    client: Sequence[str]
    hears_others: bool
    """Whether a running worker learns of jobs that another process enqueues."""
    scheduler_for: Sequence[str]
    """The questions that need its scheduler, if that is a process of its own."""
    keeps: str
    """What is left of a finished job."""
    survives: str
    """What a crash may lose, of the server or of a worker."""
    cannot: Mapping[str, str]
    """Why it is not asked a question."""

    @property
    def folder(self) -> Path:
        return HERE / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A peer with certain settings."""

    peer: Peer
    name: str
    says: str
    commands: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    questions: Sequence[str]
    drain_jobs: int
    """How many jobs it drains in a few seconds."""

    @property
    def subject(self) -> str:
        return self.peer.title if self.name == DEFAULT else f"{self.peer.title}, {self.name}"

    def is_asked(self, question: str) -> bool:
        return question in self.questions and question not in self.peer.cannot


def all_peers() -> list[str]:
    """The names of all peers, Timeball first: it sets the scale."""
    names = sorted(path.parent.name for path in HERE.glob("*/peer.toml"))
    return sorted(names, key=lambda name: name != "timeball")


def variants_of(name: str) -> list[Variant]:
    """A peer with each of its settings, as its `peer.toml` has them."""
    document = tomllib.loads((HERE / name / "peer.toml").read_text(encoding="utf-8"))
    return list(_variants(_peer(name, document), document))


def _peer(name: str, document: Mapping[str, Any]) -> Peer:
    return Peer(
        name=name,
        title=document["title"],
        version=_version(HERE / name, document["package"]),
        language=document["language"],
        store=document["store"],
        client=document["client"],
        hears_others=document.get("hears_others", True),
        scheduler_for=document.get("scheduler_for", ()),
        keeps=document["keeps"],
        survives=document["survives"],
        cannot=document.get("cannot", {}),
    )


def _version(folder: Path, package: str) -> str:
    """The pinned one; Timeball's is that of this clone."""
    pins, modules = folder / "requirements.txt", folder / "package.json"
    if pins.exists():
        lines = (line.partition("==") for line in pins.read_text().splitlines())
        return next(version for name, _, version in lines if name == package)
    if modules.exists():
        return str(json.loads(modules.read_text())["dependencies"][package])
    return __version__


def _variants(peer: Peer, document: Mapping[str, Any]) -> Iterator[Variant]:
    for name, settings in document["settings"].items():
        yield Variant(
            peer=peer,
            name=name,
            says=settings["says"],
            commands=document["commands"] | settings.get("commands", {}),
            environment=settings.get("environment", {}),
            questions=settings.get("questions", QUESTIONS),
            drain_jobs=settings.get("drain_jobs", document["drain_jobs"]),
        )
