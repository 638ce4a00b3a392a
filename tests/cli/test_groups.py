"""`timeball groups` and `timeball why grp_...`: what people read, what pipes get, and how they end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.conftest import Cli
from tests.cli.test_explain import Terminal, screen
from timeball.cli.session import CliSession

__all__ = ["screen"]

ECHO: dict[str, Any] = {"handler": "test.echo", "payload": {}}


def begin(**body: Any) -> str:
    return str(CliSession().talk(lambda client: client.request("POST", "/groups", body))["id"])


def test_a_group_is_shown_as_a_tree_with_bars(cli: Cli, screen: Terminal) -> None:
    group = begin(group=[ECHO, {"chain": [ECHO, ECHO, ECHO]}, {"group": [ECHO, ECHO]}])

    assert cli("groups", "show", group).code == 0

    title, bar, first, second, third, *inner = screen.getvalue().splitlines()
    assert title.startswith(f"{group} · open · created ")
    assert bar == "···················· 0 of 3"
    assert first.startswith("├ 1 – test.echo exe_")
    assert first.endswith(" queued")
    assert second.endswith(" queued · 2 steps left")
    assert third.startswith("└ 3 – grp_")
    assert third.endswith(" ···················· 0 of 2")
    assert [line[:8] for line in inner] == ["    ├ 1 ", "    └ 2 "]


def test_pipes_get_a_line_for_each_step(cli: Cli) -> None:
    group = begin(group=[ECHO, {"group": [ECHO, ECHO]}])

    lines = cli("groups", "show", group).out.splitlines()
    as_json = orjson.loads(cli("groups", "show", group, "--json").out)
    limited = orjson.loads(cli("groups", "show", group, "--json", "--limit", "1").out)

    assert [line.split()[0] for line in lines if "exe_" in line or "grp_" in line] == ["1", "2", "2.1", "2.2"]
    assert (as_json["total"], len(as_json["parts"]), as_json["has_more"]) == (2, 2, False)
    assert (len(limited["parts"]), limited["has_more"]) == (1, True)


def test_groups_are_listed_by_state(cli: Cli) -> None:
    first, second = begin(group=[ECHO]), begin(chain=[ECHO, ECHO])
    cli("groups", "cancel", first, "--yes")

    every = cli("groups").out
    opened = orjson.loads(cli("groups", "--state", "open", "--json").out)
    wrong = cli("groups", "--state", "dead")

    assert all(group in every for group in (first, second))
    assert "0 of 1" in every
    assert "1 of 1" in every
    assert [group["id"] for group in opened] == [second]
    assert wrong.code != 0
    assert "expected open, succeeded or failed" in wrong.err


def test_a_group_is_begun_from_a_file_or_from_stdin(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "book.json"
    file.write_bytes(orjson.dumps({"group": [ECHO, ECHO], "then": ECHO, "meta": {"tenant": "acme"}}))

    created = orjson.loads(cli("groups", "create", str(file), "--json").out)
    monkeypatch.setattr("sys.stdin", io.StringIO('[{"handler": "unknown.one"}]'))
    listed = cli("groups", "create", "-")

    assert (created["total"], created["meta"], created["warnings"]) == (2, {"tenant": "acme"}, [])
    assert listed.code == 0
    assert "no worker provides the handler unknown.one" in listed.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("7", "expected a group, a chain or a list of calls"),
        ('{"group": []}', "the group is empty"),
        ('{"group": [{"handler": "h"}, {"payload": {}}]}', "handler is missing"),
    ],
)
def test_a_file_that_is_no_group_is_an_error_in_words(cli: Cli, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "book.json").write_text(text)

    done = cli("groups", "create", str(tmp_path / "book.json"))

    assert (done.code, words in done.err) == (2, True)
    assert "Traceback" not in done.err


def test_a_group_is_cancelled_by_its_count(cli: Cli) -> None:
    group = begin(group=[ECHO, ECHO])

    unasked = cli("groups", "cancel", group)
    done = cli("groups", "cancel", group, "--yes", "--reason", "not needed")
    again = cli("groups", "cancel", group, "--yes")

    assert unasked.code != 0
    assert (done.code, "2 executions cancelled or asked to stop" in done.err) == (0, True)
    assert again.code == 5
    assert cli("groups", "show", "grp_01JCV3V1KC8M2T4QZ5R7N9X0AB").code == 3


def test_why_names_the_parts_for_which_a_group_waits(cli: Cli, screen: Terminal) -> None:
    group = begin(group=[ECHO, {"group": [ECHO]}])

    assert cli("why", group).code == 0

    lines = screen.getvalue().splitlines()
    text = " ".join(lines)
    assert lines[0].startswith(f"{group} · open · checked ")
    assert "OPEN: waits for 2 of 2: test.echo (exe_" in text
    assert any(line.startswith(" ✗ 1 test.echo exe_") for line in lines)
    assert any(line.startswith(" – 2 grp_") for line in lines)
    assert "no worker" in text


def test_why_of_a_group_is_there_for_programs(cli: Cli) -> None:
    group = begin(group=[ECHO])

    document = orjson.loads(cli("why", group, "--json").out)
    piped = cli("why", group).out

    assert (document["group_id"], document["waits_for"], document["waits"][0]["part"]) == (group, 1, 1)
    assert document["waits"][0]["execution_id"] in piped
    assert cli("why", group, "-o", "csv").out.splitlines()[0].startswith("part,state,handler,id")
