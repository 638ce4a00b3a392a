"""Writes the pages of the reference that are made from the program itself: `make reference`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from timeball.clock import SystemClock
from timeball.config.settings import HandlerSettings, Settings
from timeball.domain.handler import ADMIN_HANDLERS
from timeball.domain.job_fields import (
    SPEC_FIELDS,
    Choice,
    Instant,
    Interval,
    JobField,
    Json,
    Label,
    Labels,
    Section,
    Text,
    Whole,
    json_default,
)
from timeball.handlers.builtin import BuiltinHandlers
from timeball.handlers.catalogue import HandlerCatalogue, HandlerDescription
from tools.cli_reference import cli_text

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
HANDLERS_FILE = REFERENCE / "handlers.md"
SETTINGS_FILE = REFERENCE / "settings.md"
CLI_FILE = REFERENCE / "cli.md"
JOBS_FILE = REFERENCE / "jobs.md"

_HEAD = """# Handlers

What comes in the box, and what each takes.
This page is made from the program by `make reference`.
`GET /api/v1/handlers` answers the same, together with the handlers of installed packages and of your workers.
A payload is checked when a job is created or changed, and again before it runs; an unknown field is an error.
A value that is marked *or a secret* can be `{"$secret": "NAME"}`.
The worker takes it from `TIMEBALL_SECRET_NAME`, or from a file `NAME` in `TIMEBALL_SECRETS_DIR`.
"""
_ENABLED_BY = {
    "shell.command": "`TIMEBALL_SHELL_ENABLED=true` and `TIMEBALL_SHELL_PROGRAMS`",
    "email.send": "`TIMEBALL_SMTP_URL`",
    "queue.publish": "`TIMEBALL_QUEUE_ALLOW`",
}


def handlers_text() -> str:
    """The page about the handlers in the box."""
    box = BuiltinHandlers(HandlerSettings(), SystemClock(), Path("files"))
    entries = HandlerCatalogue(box.known, ()).entries()
    return "\n".join([_HEAD, *(_section(entry) for entry in entries if entry.name in box.known)])


def _section(entry: HandlerDescription) -> str:
    lines = [f"## {entry.name}", "", entry.description]
    if entry.name in _ENABLED_BY:
        lines.append(f"A worker runs it only with {_ENABLED_BY[entry.name]}.")
    if entry.name in ADMIN_HANDLERS:
        lines.append("Its payload can be written by administrators only.")
    fields = entry.payload_schema.get("properties", {})
    if fields:
        lines += ["", "| field | type | default | |", "|---|---|---|---|"]
        required = entry.payload_schema.get("required", ())
        lines += [
            _row(name, field, entry.payload_schema, is_required=name in required) for name, field in fields.items()
        ]
    else:
        lines += ["", "Any JSON object."]
    return "\n".join([*lines, "", "```json", json.dumps(entry.example), "```", ""])


def _row(name: str, field: dict[str, Any], schema: dict[str, Any], *, is_required: bool) -> str:
    default = "required" if is_required else f"`{json.dumps(field.get('default'))}`"
    return f"| `{name}` | {_type(field, schema)} | {default} | {field.get('description', '')} |"


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "a secret" if name == "SecretReference" else _type(schema["$defs"][name], schema)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one, schema) for one in field["anyOf"] if one.get("type") != "null"))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    return {"string": "text", "integer": "whole number", "object": "object", "boolean": "true or false"}.get(
        field.get("type", ""), "any JSON"
    )


_SETTINGS_HEAD = """# Settings

This page is made from the program by `make reference`.
A setting comes from a flag of the command, the environment, or a file `timeball.toml` in the working folder; else it has its default.
In the file the names are small and without the prefix, and sections are tables.
So `TIMEBALL_WORKER__SLOTS=50` is `slots = 50` below `[worker]`.
All problems are reported together, and `timeball check` reports them without starting anything.
A name in the file that is no setting is an error.
A variable that begins with `TIMEBALL_` and is none is told of by `timeball check`, `timeball doctor` and a starting process's log.
"""


def settings_text() -> str:
    """The page about the settings, a table for each section."""
    plain, sections = {}, {}
    for name, field in Settings.model_fields.items():
        (sections if _is_section(field) else plain)[name] = field
    handlers = {name: plain.pop(name) for name in HandlerSettings.model_fields}
    tables = [_settings_table("## A process", plain, "TIMEBALL_")]
    for name, field in sections.items():
        head = f"## {name.capitalize()}\n\n{(field.annotation.__doc__ or '').strip()}"
        tables.append(_settings_table(head, field.annotation.model_fields, f"TIMEBALL_{name.upper()}__"))
    tables.append(_settings_table("## Handlers in the box", handlers, "TIMEBALL_"))
    return "\n".join([_SETTINGS_HEAD, *tables])


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _settings_table(head: str, fields: Mapping[str, FieldInfo], prefix: str) -> str:
    rows = [f"| `{prefix}{name.upper()}` | {_default(field)} | {field.description} |" for name, field in fields.items()]
    return "\n".join([head, "", "| variable | default | |", "|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None or value in ((), ""):
        return ""
    shown = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    listed = ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
    return f"`{shown or listed}`"


_JOBS_HEAD = """# The fields of a job

This page is made from the program by `make reference`.
The HTTP API, job files, templates and exports call the fields so.
The options of the Python SDK are called as in the second column; a span is written with its unit there, such as `"30s"`.
A handler can declare the fields that are marked with `*`: a job that leaves one out takes what its handler declares.
"""


def jobs_text() -> str:
    """The page about the fields of a job, a table for each section."""
    tables = []
    for section in Section:
        rows = [_field_row(line) for line in SPEC_FIELDS.values() if line.section is section]
        head = [f"## {section}", "", "| field | in Python | value | default | |", "|---|---|---|---|---|"]
        tables.append("\n".join([*head, *rows, ""]))
    return "\n".join([_JOBS_HEAD, *tables])


def _field_row(line: JobField) -> str:
    default = "required" if line.is_required else f"`{json.dumps(json_default(line))}`"
    mark = "*" if line.is_handler_option else ""
    word = "" if line.word in _ARGUMENTS else f"`{line.word}`"
    return f"| `{line.name}`{mark} | {word} | {_values(line)} | {default} | {line.about} |"


# What is an argument in Python, and not an option.
_ARGUMENTS = ("handler", "payload", "schedule", "interval")


def _values(line: JobField) -> str:
    match line.rule:
        case Label(longest=longest):
            return f"text of 1 to {longest:,} characters"
        case Text(longest=longest):
            return f"text of up to {longest:,} characters"
        case Whole(least=least, most=most):
            return f"{least:,} to {most:,}"
        case Choice(words=words):
            return "; ".join(f"`{word.value}`: {word.about}" for word in words)
        case Labels(most=most):
            return f"up to {most} texts of 1 to 200 characters"
        case Interval():
            return "whole seconds, 1 or more"
        case Instant():
            return "an instant in ISO 8601"
        case Json():
            return "any JSON"
        case _:
            assert_never(line.rule)


def made_pages() -> list[tuple[Path, str]]:
    """The pages that are made, and what is to stand in them."""
    return [
        (HANDLERS_FILE, handlers_text()),
        (SETTINGS_FILE, settings_text()),
        (CLI_FILE, cli_text()),
        (JOBS_FILE, jobs_text()),
    ]


def main() -> None:
    """Write the pages."""
    for file, text in made_pages():
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
