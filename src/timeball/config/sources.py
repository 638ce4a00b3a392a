"""Where settings are written: their names in the environment and in the file, and error messages that use these names."""

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

SETTINGS_FILE = "timeball.toml"


# Not settings, but read or set elsewhere: by the client, by the pytest plugin, for the commands and isolated handlers that a worker runs.
_OTHER_VARIABLES = frozenset(
    f"{VARIABLE_PREFIX}{name}"
    for name in (
        *("URL", "API_KEY", "TEST_DATABASE_URL"),
        *("EXECUTION_ID", "JOB_ID", "JOB_NAME", "SCHEDULED_FOR", "ATTEMPT", "FENCE", "ORIGIN"),
    )
)


# Users choose the rest of the name of a secret.
_SECRET_PREFIX = f"{VARIABLE_PREFIX}SECRET_"


# Kubernetes sets such variables in every pod for a service called `timeball` or `timeball-...`.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT_\d+_(TCP|UDP|SCTP)\w*$")


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """A variable with our prefix that nothing reads, and the settings with similar names."""

    name: str
    similar: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return (
            did_you_mean(self.similar)
            or "docs/reference/settings.md lists all settings; if it is not ours, ignore this"
        )


def setting_paths(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The path of every setting: `("port",)`, `("worker", "slots")`."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield from ((name, inner) for inner in section.model_fields)
        else:
            yield (name,)


def setting_sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections with their names."""
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield name, section


def variable_name(path: Iterable[object]) -> str:
    """The name of a setting in the environment."""
    return VARIABLE_PREFIX + "__".join(map(str, path)).upper()


def unknown_variables(model: type[BaseModel], environment: Mapping[str, str]) -> list[UnknownVariable]:
    """The variables with our prefix that nothing reads; an unknown name within a section is an error already."""
    settings = [variable_name(path) for path in setting_paths(model)]
    sections = [variable_name([name]) for name, _ in setting_sections(model)]
    return [
        UnknownVariable(name, nearest_names(name, settings))
        for name in sorted(environment)
        if _looks_like_ours(name.upper(), environment[name])
        and name.upper() not in (*settings, *sections)
        and not name.upper().startswith(tuple(f"{section}__" for section in sections))
    ]


def _looks_like_ours(name: str, value: str) -> bool:
    is_service_link = _SERVICE_LINK.search(name) is not None or value.startswith("tcp://")
    return (
        name.startswith(VARIABLE_PREFIX)
        and name not in _OTHER_VARIABLES
        and not name.startswith(_SECRET_PREFIX)
        and not is_service_link
    )


def _section(annotation: object) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


class SettingSources:
    """Describes problems of settings by the name they have where they were written: argument, environment or file."""

    def __init__(self, model: type[BaseModel], given: Mapping[str, Any]) -> None:
        self._model = model
        self._given = given

    def describe(self, problems: Iterable[PydanticProblem]) -> list[str]:
        """One message for each setting that is not valid."""
        by_location: dict[tuple[int | str, ...], list[PydanticProblem]] = {}
        for problem in problems:
            by_location.setdefault(tuple(problem["loc"]), []).append(problem)
        return [self._describe(location, group) for location, group in by_location.items()]

    def _describe(self, location: Sequence[int | str], problems: Sequence[PydanticProblem]) -> str:
        path = tuple(step for step in location if isinstance(step, str))
        name = self._name_where_written(path)
        match problems[0]["type"]:
            case "extra_forbidden":
                return f"{name} is unknown{self._suggestion(path, name)}"
            case "lease_too_short":
                return self._describe_short_lease(path, problems[0]["ctx"])
        item = "".join(f"item {step + 1} of " for step in location if isinstance(step, int))
        # A URL may contain a password.
        return describe_problems(f"{item}{name}", path, problems, shows_value=not path[-1].endswith("_url"))

    def _name_where_written(self, path: tuple[str, ...]) -> str:
        """The name of a setting where its value comes from: a flag or argument, the environment, the file."""
        if path[0] in self._given:
            return ".".join(path)
        variable, section = variable_name(path), variable_name(path[:1])
        environment = {name.upper() for name in os.environ}
        if variable in environment or any(name.startswith(f"{variable}__") for name in environment):
            return variable
        # One variable may contain a whole section as JSON.
        return (
            f"{'.'.join(path[1:])} in {section}" if section in environment else f"{'.'.join(path)} in {SETTINGS_FILE}"
        )

    def _describe_short_lease(self, path: tuple[str, ...], spans: Mapping[str, Any]) -> str:
        lease, renewal = ((*path, name) for name in ("lease_seconds", "renew_seconds"))
        return (
            f"{self._in_use(lease)} is {spans['lease']:g} and {self._in_use(renewal)} is {spans['renewal']:g}, "
            f"expected a lease of at least three renewals: {3 * spans['renewal']:g}"
        )

    def _in_use(self, path: tuple[str, ...]) -> str:
        """The name of a setting that was written, or has its default."""
        name = self._name_where_written(path)
        is_default = name.endswith(f" in {SETTINGS_FILE}") and not _is_in_file(path)
        return f"{variable_name(path)} by default" if is_default else name

    def _suggestion(self, path: tuple[str, ...], name: str) -> str:
        as_variable = name == variable_name(path)
        sections = [] if as_variable else [section for section, _ in setting_sections(self._model)]
        settings = [variable_name(path) if as_variable else ".".join(path) for path in setting_paths(self._model)]
        question = did_you_mean(nearest_names(".".join(path), [*settings, *sections]))
        return f": {question}" if question else ""


def _is_in_file(path: Iterable[str]) -> bool:
    value: Any = tomllib.loads(Path(SETTINGS_FILE).read_text(encoding="utf-8")) if Path(SETTINGS_FILE).exists() else {}
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True


def undecodable_sections(model: type[BaseModel]) -> list[str]:
    """Messages about variables that should contain a whole section as JSON, and do not."""
    environment = {name.upper(): text for name, text in os.environ.items()}
    return [
        _describe_no_section(variable_name([name]), environment[variable_name([name])], section)
        for name, section in setting_sections(model)
        if variable_name([name]) in environment and not _is_json(environment[variable_name([name])])
    ]


def _describe_no_section(name: str, text: str, section: type[BaseModel]) -> str:
    setting, field = next(iter(section.model_fields.items()))
    return (
        f'{name} is "{quote_text(text)}", expected a JSON object such as {{"{setting}": {field.default}}}; '
        f"or set them one by one, such as {name}__{setting.upper()}={field.default}"
    )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
