"""What settings are called, in the environment and in the file; and what a misspelt one was probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

PREFIX = "TIMEBALL_"
FILE = "timeball.toml"
# No settings of a process, but read all the same: by the client, by the pytest plugin, by commands that a worker runs.
_OTHERS = frozenset(
    f"{PREFIX}{name}" for name in ("URL", "API_KEY", "TEST_DATABASE_URL", "EXECUTION_ID", "JOB_ID", "ATTEMPT")
)
# Whatever users want to call their secrets.
_SECRETS = f"{PREFIX}SECRET_"
# Kubernetes tells every pod of a service called `timeball` or `timeball-...` in such variables.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP|SCTP)\w*$")
_LIKENESS = 0.75


@dataclass(frozen=True, slots=True)
class Stranger:
    """A variable with our prefix that nothing reads, and what was probably meant."""

    name: str
    meant: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return did_you_mean(self.meant) or "docs/reference/settings.md has all of them; if it is not ours, ignore this"


def paths(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The way to every setting: `("port",)`, `("worker", "slots")`."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield from ((name, inner) for inner in section.model_fields)
        else:
            yield (name,)


def sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections, by name."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield name, section


def variable(path: Iterable[object]) -> str:
    """A setting as the environment calls it."""
    return PREFIX + "__".join(map(str, path)).upper()


def strangers(model: type[BaseModel], environment: Mapping[str, str]) -> list[Stranger]:
    """The variables with our prefix that nothing reads. One below a section is none: that is an error already."""
    known = [variable(path) for path in paths(model)]
    whole = [variable([name]) for name, _ in sections(model)]
    return [
        Stranger(name, nearest(name, known))
        for name in sorted(environment)
        if _looks_like_ours(name.upper(), environment[name])
        and name.upper() not in (*known, *whole)
        and not name.upper().startswith(tuple(f"{section}__" for section in whole))
    ]


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names that somebody may have meant: those that end alike, or else the one that is spelt almost alike."""
    import difflib  # for who has mistyped something

    plain = {_plain(each): each for each in known}
    ending = tuple(each for bare, each in plain.items() if bare.endswith(f"_{_plain(name)}"))
    alike = difflib.get_close_matches(_plain(name), plain, 1, _LIKENESS)
    return ending[:2] or tuple(plain[each] for each in alike)


def did_you_mean(names: Iterable[str]) -> str:
    """A question, if there is anything to ask."""
    words = " or ".join(names)
    return f"did you mean {words}?" if words else ""


def _looks_like_ours(name: str, value: str) -> bool:
    is_linked = _SERVICE_LINK.search(name) is not None or value.startswith("tcp://")
    return name.startswith(PREFIX) and name not in _OTHERS and not name.startswith(_SECRETS) and not is_linked


def _section(annotation: object) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _plain(name: str) -> str:
    return name.upper().removeprefix(PREFIX).replace(".", "_").replace("__", "_")
