"""The page about the command line, made of its own help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.cli.command_tree import all_commands

_CLI_HEAD = """# The command line

This page is made of the help texts; `make reference` writes it.

Every command that talks to the API also takes `--url`, `-o table|json|jsonl|csv`, `--json` and `--time relative|local|utc`.
Data goes to stdout, talk to stderr; people get tables, pipes get lines with tabs.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error |
| 2 | the command or a value is wrong |
| 3 | not found |
| 4 | not allowed |
| 5 | a conflict: it exists, or has changed meanwhile |
| 6 | the awaited execution did not succeed |
| 130 | interrupted |
"""
_EVERYWHERE = frozenset({"help", "output", "as_json", "times", "url", "install_completion", "show_completion"})


def cli_text() -> str:
    """The commands, by their help."""
    return "\n".join([_CLI_HEAD, *(line for path, one in all_commands() if path for line in _section(path, one))])


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    summary, _, rest = (command.help or "").partition("\n\n")
    yield f"{'#' * (1 + len(path))} timeball {' '.join(path)}\n"
    yield f"{' '.join(summary.split())}\n"
    examples = [line.strip() for line in rest.splitlines() if line.strip().startswith("timeball ")]
    if examples:
        yield "\n".join(["```console", *(f"$ {example}" for example in examples), "```\n"])
    words = [_words(parameter) for parameter in command.params if parameter.name not in _EVERYWHERE]
    if words and not hasattr(command, "commands"):
        yield "\n".join(words) + "\n"


def _words(parameter: Any) -> str:
    names = (
        parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or str(parameter.name).upper()]
    )
    return f"- `{', '.join(names)}`: {getattr(parameter, 'help', None) or ''}".rstrip(": ")
