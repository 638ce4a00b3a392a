"""What is said of a setting that cannot be used: by the name it has where it was written, what was found, what was expected."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from timeball.domain.instants import shown
from timeball.misfits import Problem, disappointment
from timeball.setting_names import FILE, did_you_mean, nearest, paths, sections, variable


class Sources:
    """Where settings may have been written: the arguments of a call, the environment, the file."""

    def __init__(self, model: type[BaseModel], given: Mapping[str, Any]) -> None:
        self._model = model
        self._given = given

    def tell(self, problems: Iterable[Problem]) -> list[str]:
        """One for each place where something does not fit."""
        by_place: dict[tuple[int | str, ...], list[Problem]] = {}
        for problem in problems:
            by_place.setdefault(_place(problem), []).append(problem)
        return [self._told(place, found) for place, found in by_place.items()]

    def _told(self, place: Sequence[int | str], problems: Sequence[Problem]) -> str:
        path = tuple(step for step in place if isinstance(step, str))
        name = self._named(path)
        first = problems[0]
        match first["type"]:
            case "extra_forbidden":
                return f"{name} is unknown{self._suggestion(path, name)}"
            case "lease_too_short":
                return self._short_lease(path, first["ctx"])
            case "value_error":
                return f"{name} {first['msg'].removeprefix('Value error, ')}"
        item = "".join(f"item {step + 1} of " for step in place if isinstance(step, int))
        # A URL may hold a password.
        return disappointment(f"{item}{name}", path, problems, tells_found=not path[-1].endswith("_url"))

    def _named(self, path: tuple[str, ...]) -> str:
        """A setting as it is called where its value comes from: a flag or argument, the environment, the file."""
        if path[0] in self._given:
            return ".".join(path)
        ours, section = variable(path), variable(path[:1])
        written = {name.upper() for name in os.environ}
        if ours in written or any(name.startswith(f"{ours}__") for name in written):
            return ours
        # A whole section may stand in one variable, as JSON.
        return f"{'.'.join(path[1:])} in {section}" if section in written else f"{'.'.join(path)} in {FILE}"

    def _short_lease(self, path: tuple[str, ...], spans: Mapping[str, Any]) -> str:
        lease, renewal = ((*path, name) for name in ("lease_seconds", "renew_seconds"))
        return (
            f"{self._in_use(lease)} is {spans['lease']:g} and {self._in_use(renewal)} is {spans['renewal']:g}, "
            f"expected a lease of three renewals or more: {3 * spans['renewal']:g} at least"
        )

    def _in_use(self, path: tuple[str, ...]) -> str:
        """The name of a setting that may have its default as well."""
        name = self._named(path)
        is_default = name.endswith(f" in {FILE}") and not _is_in_file(path)
        return f"{variable(path)} by default" if is_default else name

    def _suggestion(self, path: tuple[str, ...], name: str) -> str:
        as_variable = name == variable(path)
        whole = [] if as_variable else [section for section, _ in sections(self._model)]
        known = [variable(each) if as_variable else ".".join(each) for each in paths(self._model)]
        question = did_you_mean(nearest(".".join(path), [*known, *whole]))
        return f": {question}" if question else ""


def _place(problem: Problem) -> tuple[int | str, ...]:
    return tuple(problem["loc"])


def _is_in_file(path: Iterable[str]) -> bool:
    found: Any = tomllib.loads(Path(FILE).read_text(encoding="utf-8")) if Path(FILE).exists() else {}
    for step in path:
        if not isinstance(found, dict) or step not in found:
            return False
        found = found[step]
    return True


def undecodable(model: type[BaseModel]) -> list[str]:
    """The variables that should hold a whole section as JSON, and do not."""
    written = {name.upper(): text for name, text in os.environ.items()}
    return [
        _no_section(variable([name]), written[variable([name])], section)
        for name, section in sections(model)
        if variable([name]) in written and not _is_json(written[variable([name])])
    ]


def _no_section(name: str, text: str, section: type[BaseModel]) -> str:
    setting, field = next(iter(section.model_fields.items()))
    return (
        f'{name} is "{shown(text)}", expected a JSON object such as {{"{setting}": {field.default}}}; '
        f"or set one by one, as in {name}__{setting.upper()}={field.default}"
    )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
