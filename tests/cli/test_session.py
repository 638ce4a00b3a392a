"""A command talks to a server, or to the API in its own process: the same rules, the same words."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.conftest import Cli
from timeball.cli.session import CliSession


def test_without_a_server_the_api_is_called_in_process_and_the_audit_names_the_user(cli: Cli) -> None:
    limited = cli("queues", "limit", "mail", "3", "--json")
    audited = CliSession().talk(lambda client: client.system.audit())

    assert limited.json["max_running"] == 3
    assert [(record.actor, record.action) for record in audited.data] == [("cli:ana", "queue.limit")]


def test_keys_do_not_matter_without_a_server(cli: Cli) -> None:
    assert cli("keys", "create", "--role", "viewer").code == 0

    assert cli("queues", "pause", "mail").code == 0


def test_a_noun_alone_lists(cli: Cli) -> None:
    cli("queues", "limit", "mail", "3")

    assert cli("queues").out == cli("queues", "list").out
    assert cli("queues").lines[0][0] == "mail"


def test_a_server_that_does_not_answer_is_told_in_three_lines(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_seconds: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", at_once)
    done = cli("queues", "--url", "http://127.0.0.1:9")

    assert done.code == 1
    assert len(done.err.splitlines()) == 3
    assert "127.0.0.1:9" in done.err


def test_a_bad_value_ends_with_the_code_of_usage(cli: Cli) -> None:
    done = cli("queues", "limit", "mail", "lots")

    assert done.code == 2
    assert '"lots"' in done.err
