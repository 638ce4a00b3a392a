"""Writes the reference pages that are generated from the program: `make reference`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, assert_never

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from tests.cli.command_tree import all_commands

from timeball.config.settings import HandlerSettings, Settings
from timeball.domain.handler import ADMIN_HANDLERS
from timeball.domain.job_fields import (
    SPEC_FIELDS,
    Choice,
    Instant,
    Interval,
    JobField,
    Json,
    JsonObject,
    Label,
    Labels,
    Section,
    Spans,
    Text,
    Whole,
    json_default,
)
from timeball.env import SystemClock
from timeball.handlers.catalogue import BuiltinHandlers, HandlerCatalogue, HandlerDescription

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
HANDLERS_FILE = REFERENCE / "handlers.md"
SETTINGS_FILE = REFERENCE / "settings.md"
CLI_FILE = REFERENCE / "cli.md"
JOBS_FILE = REFERENCE / "jobs.md"

_HANDLERS_HEAD = """# Handlers

The built-in handlers and their payloads.
`make reference` generates this page from the program.
`GET /api/v1/handlers` returns the same, together with the handlers of installed packages and of your workers.
A payload is checked when a job is created or changed, and again before it runs; an unknown field is an error.
A value that is marked *or a secret* can be `{"$secret": "NAME"}`.
The worker reads it from `TIMEBALL_SECRET_NAME`, or from a file `NAME` in `TIMEBALL_SECRETS_DIR`.
"""
_ENABLED_BY = {
    "shell.command": "`TIMEBALL_SHELL_ENABLED=true` and `TIMEBALL_SHELL_PROGRAMS`",
    "email.send": "`TIMEBALL_SMTP_URL`",
    "queue.publish": "`TIMEBALL_QUEUE_ALLOW`",
}


def handlers_text() -> str:
    """The page about the built-in handlers."""
    builtin = BuiltinHandlers(HandlerSettings(), SystemClock(), Path("files"))
    entries = HandlerCatalogue(builtin.known, ()).entries()
    return "\n".join([_HANDLERS_HEAD, *(_handler_section(entry) for entry in entries if entry.name in builtin.known)])


def _handler_section(entry: HandlerDescription) -> str:
    lines = [f"## {entry.name}", "", entry.description]
    if entry.name in _ENABLED_BY:
        lines.append(f"A worker runs it only with {_ENABLED_BY[entry.name]}.")
    if entry.name in ADMIN_HANDLERS:
        lines.append("Only administrators may write its payload.")
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
        return " or ".join(
            dict.fromkeys(_type(choice, schema) for choice in field["anyOf"] if choice.get("type") != "null")
        )
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    return {"string": "text", "integer": "whole number", "object": "object", "boolean": "true or false"}.get(
        field.get("type", ""), "any JSON"
    )


_SETTINGS_HEAD = """# Settings

`make reference` generates this page from the program.
A setting comes from an option of the command, the environment, or the file `timeball.toml` in the working folder; else from its default.
In the file, names are in lower case and without the prefix, and sections are tables.
So `TIMEBALL_WORKER__SLOTS=50` is `slots = 50` under `[worker]`.
All problems are reported together, and `timeball check` reports them without starting anything.
An unknown name in the file is an error.
`timeball check`, `timeball doctor` and the log of a starting process report unknown variables that begin with `TIMEBALL_`.
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
    tables.append(_settings_table("## Built-in handlers", handlers, "TIMEBALL_"))
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

`make reference` generates this page from the program.
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
        case Spans(most=most):
            return f"a list of up to {most} spans"
        case Labels(most=most):
            return f"up to {most} texts of 1 to 200 characters"
        case Interval():
            return "whole seconds, 1 or more"
        case Instant():
            return "an instant in ISO 8601"
        case Json():
            return "any JSON"
        case JsonObject(most_bytes=most_bytes):
            return f"a JSON object of up to {most_bytes:,} bytes"
        case _:
            assert_never(line.rule)


_CLI_HEAD = """# The command line

`make reference` generates this page from the help texts.

Every command that calls the API also takes `--url`, `-o table|json|jsonl|csv`, `--json` and `--time relative|local|utc`.
Data goes to stdout, messages to stderr; a terminal gets tables, a pipe gets lines with tabs.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error |
| 2 | the command or a value is wrong |
| 3 | not found |
| 4 | not allowed |
| 5 | a conflict: it exists already, or has changed meanwhile |
| 6 | the awaited execution did not succeed |
| 130 | interrupted |
"""
_COMMON_OPTIONS = frozenset({"help", "output", "as_json", "times", "url", "install_completion", "show_completion"})


def cli_text() -> str:
    """The page about the commands."""
    sections = [_command_section(path, command) for path, command in all_commands() if path]
    return "\n".join([_CLI_HEAD, *(line for section in sections for line in section)])


def _command_section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    summary, _, rest = (command.help or "").partition("\n\n")
    yield f"{'#' * (1 + len(path))} timeball {' '.join(path)}\n"
    yield f"{' '.join(summary.split())}\n"
    examples = [line.strip() for line in rest.splitlines() if line.strip().startswith("timeball ")]
    if examples:
        yield "\n".join(["```console", *(f"$ {example}" for example in examples), "```\n"])
    parameters = [_parameter_line(each) for each in command.params if each.name not in _COMMON_OPTIONS]
    if parameters and not hasattr(command, "commands"):
        yield "\n".join(parameters) + "\n"


def _parameter_line(parameter: Any) -> str:
    names = (
        parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or str(parameter.name).upper()]
    )
    return f"- `{', '.join(names)}`: {getattr(parameter, 'help', None) or ''}".rstrip(": ")


def generated_pages() -> list[tuple[Path, str]]:
    """The files, and the text of each."""
    return [
        (HANDLERS_FILE, handlers_text()),
        (SETTINGS_FILE, settings_text()),
        (CLI_FILE, cli_text()),
        (JOBS_FILE, jobs_text()),
    ]


def main() -> None:
    """Write the pages."""
    for file, text in generated_pages():
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
