"""Where settings come from: their names in the environment and in the file, and the error messages that use those names."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from timeball.domain.values.field_errors import (
    VARIABLE_PREFIX,
    PydanticProblem,
    describe_problems,
    did_you_mean,
    nearest_names,
)
from timeball.errors import quote_text

# What settings are called, in the environment and in the file; and what a misspelt one was probably meant to be.

SETTINGS_FILE = "timeball.toml"


# No settings of a process, but read all the same: by the client, by the pytest plugin, by commands that a worker runs.
_OTHER_VARIABLES = frozenset(
    f"{VARIABLE_PREFIX}{name}" for name in ("URL", "API_KEY", "TEST_DATABASE_URL", "EXECUTION_ID", "JOB_ID", "ATTEMPT")
)


# Whatever users want to call their secrets.
_SECRET_PREFIX = f"{VARIABLE_PREFIX}SECRET_"


# Kubernetes tells every pod of a service called `timeball` or `timeball-...` in such variables.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP|SCTP)\w*$")


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """A variable with our prefix that nothing reads, and what was probably meant."""

    name: str
    meant: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return did_you_mean(self.meant) or "docs/reference/settings.md has all of them; if it is not ours, ignore this"


def setting_paths(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The way to every setting: `("port",)`, `("worker", "slots")`."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield from ((name, inner) for inner in section.model_fields)
        else:
            yield (name,)


def setting_sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections, by name."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield name, section


def variable_name(path: Iterable[object]) -> str:
    """A setting as the environment calls it."""
    return VARIABLE_PREFIX + "__".join(map(str, path)).upper()


def unknown_variables(model: type[BaseModel], environment: Mapping[str, str]) -> list[UnknownVariable]:
    """The variables with our prefix that nothing reads. One below a section is none: that is an error already."""
    known = [variable_name(path) for path in setting_paths(model)]
    whole = [variable_name([name]) for name, _ in setting_sections(model)]
    return [
        UnknownVariable(name, nearest_names(name, known))
        for name in sorted(environment)
        if _looks_like_ours(name.upper(), environment[name])
        and name.upper() not in (*known, *whole)
        and not name.upper().startswith(tuple(f"{section}__" for section in whole))
    ]


def _looks_like_ours(name: str, value: str) -> bool:
    is_linked = _SERVICE_LINK.search(name) is not None or value.startswith("tcp://")
    return (
        name.startswith(VARIABLE_PREFIX)
        and name not in _OTHER_VARIABLES
        and not name.startswith(_SECRET_PREFIX)
        and not is_linked
    )


def _section(annotation: object) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


class SettingSources:
    """Names a setting in an error as it is named where it was written: in a call, in the environment, in the file."""

    def __init__(self, model: type[BaseModel], given: Mapping[str, Any]) -> None:
        self._model = model
        self._given = given

    def describe(self, problems: Iterable[PydanticProblem]) -> list[str]:
        """One sentence for each setting that does not fit."""
        by_place: dict[tuple[int | str, ...], list[PydanticProblem]] = {}
        for problem in problems:
            by_place.setdefault(tuple(problem["loc"]), []).append(problem)
        return [self._describe_place(place, found) for place, found in by_place.items()]

    def _describe_place(self, place: Sequence[int | str], problems: Sequence[PydanticProblem]) -> str:
        path = tuple(step for step in place if isinstance(step, str))
        name = self._name_where_written(path)
        match problems[0]["type"]:
            case "extra_forbidden":
                return f"{name} is unknown{self._suggestion(path, name)}"
            case "lease_too_short":
                return self._short_lease(path, problems[0]["ctx"])
        item = "".join(f"item {step + 1} of " for step in place if isinstance(step, int))
        # A URL may hold a password.
        return describe_problems(f"{item}{name}", path, problems, shows_value=not path[-1].endswith("_url"))

    def _name_where_written(self, path: tuple[str, ...]) -> str:
        """A setting as it is called where its value comes from: a flag or argument, the environment, the file."""
        if path[0] in self._given:
            return ".".join(path)
        ours, section = variable_name(path), variable_name(path[:1])
        written = {name.upper() for name in os.environ}
        if ours in written or any(name.startswith(f"{ours}__") for name in written):
            return ours
        # A whole section may stand in one variable, as JSON.
        return f"{'.'.join(path[1:])} in {section}" if section in written else f"{'.'.join(path)} in {SETTINGS_FILE}"

    def _short_lease(self, path: tuple[str, ...], spans: Mapping[str, Any]) -> str:
        lease, renewal = ((*path, name) for name in ("lease_seconds", "renew_seconds"))
        return (
            f"{self._in_use(lease)} is {spans['lease']:g} and {self._in_use(renewal)} is {spans['renewal']:g}, "
            f"expected a lease of three renewals or more: {3 * spans['renewal']:g} at least"
        )

    def _in_use(self, path: tuple[str, ...]) -> str:
        """The name of a setting that may have its default as well."""
        name = self._name_where_written(path)
        is_default = name.endswith(f" in {SETTINGS_FILE}") and not _is_in_file(path)
        return f"{variable_name(path)} by default" if is_default else name

    def _suggestion(self, path: tuple[str, ...], name: str) -> str:
        as_variable = name == variable_name(path)
        whole = [] if as_variable else [section for section, _ in setting_sections(self._model)]
        known = [variable_name(each) if as_variable else ".".join(each) for each in setting_paths(self._model)]
        question = did_you_mean(nearest_names(".".join(path), [*known, *whole]))
        return f": {question}" if question else ""


def _is_in_file(path: Iterable[str]) -> bool:
    found: Any = tomllib.loads(Path(SETTINGS_FILE).read_text(encoding="utf-8")) if Path(SETTINGS_FILE).exists() else {}
    for step in path:
        if not isinstance(found, dict) or step not in found:
            return False
        found = found[step]
    return True


def undecodable_sections(model: type[BaseModel]) -> list[str]:
    """The variables that should hold a whole section as JSON, and do not."""
    written = {name.upper(): text for name, text in os.environ.items()}
    return [
        _not_a_section(variable_name([name]), written[variable_name([name])], section)
        for name, section in setting_sections(model)
        if variable_name([name]) in written and not _is_json(written[variable_name([name])])
    ]


def _not_a_section(name: str, text: str, section: type[BaseModel]) -> str:
    setting, field = next(iter(section.model_fields.items()))
    return (
        f'{name} is "{quote_text(text)}", expected a JSON object such as {{"{setting}": {field.default}}}; '
        f"or set one by one, as in {name}__{setting.upper()}={field.default}"
    )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
