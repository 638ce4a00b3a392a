"""Jobs out of files and into files: what is exported can be imported, and a file can say which jobs there are to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import Cli
from timeball.api.responses import cell, text_of_cell
from timeball.cli.job_options import JobFlags
from timeball.domain.job_fields import SPEC_FIELDS

JOBS: list[dict[str, Any]] = [
    {"name": "ab", "handler": "test.echo", "schedule": "30 2 * * *", "timezone": "Europe/Berlin", "tags": ["a", "b"]},
    {"name": "=1+1", "handler": "test.echo", "payload": {"text": '-a,\n"b"', "n": [1, None]}, "interval_seconds": 60},
    {"name": "7", "handler": "test.echo", "schedule": "manual", "priority": 90, "timeout_ms": 1500, "queue": "mail"},
]


def settings_of(cli: Cli) -> dict[str, Any]:
    """Every job, without what tells one database from another."""
    listed = cli("jobs", "list", "--json").json
    own = ("id", "created_at", "updated_at", "next_run_at", "last_execution", "starts_at")
    return {job["name"]: {name: value for name, value in job.items() if name not in own} for job in listed}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
def test_what_is_exported_can_be_imported(cli: Cli, kind: str) -> None:
    Path("first.json").write_text(json.dumps(JOBS))
    assert cli("jobs", "import", "first.json").code == 0
    before = settings_of(cli)

    assert cli("jobs", "export", "--to", f"out.{kind}").code == 0
    for name in before:
        assert cli("jobs", "delete", name, "--yes").code == 0
    imported = cli("jobs", "import", f"out.{kind}")

    assert imported.code == 0, imported.err
    assert len(before) == 3
    assert settings_of(cli) == before


def test_a_paused_job_is_told_and_a_byte_order_mark_is_understood(cli: Cli) -> None:
    assert cli("jobs", "create", "größer", "test.echo", "--every", "60s").code == 0
    assert cli("jobs", "pause", "größer").code == 0
    assert cli("jobs", "export", "--to", "out.csv", "--bom").code == 0
    assert cli("jobs", "delete", "größer", "--yes").code == 0

    imported = cli("jobs", "import", "out.csv")

    assert Path("out.csv").read_bytes().startswith(b"\xef\xbb\xbfid,name,")
    assert imported.code == 0, imported.err
    assert "1 of these jobs were paused when they were exported" in imported.err
    assert cli("jobs", "show", "größer", "--json").json["status"] == "active"


@given(st.text(max_size=5) | st.text("='+-@\t\r\n", max_size=4))
def test_every_text_survives_a_cell(text: str) -> None:
    assert text_of_cell(cell(text)) == text


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("jobs create a test.echo --every 60s --expires 10m", "start_within_seconds", 600),
        ("jobs create a test.echo --in 1h --expires 2098-01-01T00:00:00Z", "expires_at", "2098-01-01T00:00:00Z"),
        ("jobs create a test.echo --in 1h --tz Asia/Tokyo --expires 2098-01-01", "expires_at", "2097-12-31T15:00:00Z"),
    ],
)
def test_expires_takes_a_span_or_an_instant(cli: Cli, command: str, name: str, value: Any) -> None:
    created = cli(*command.split(), "--json")

    assert created.code == 0, created.err
    assert created.json[name] == value


def test_jobs_runs_and_triggers_take_meta(cli: Cli) -> None:
    made = cli("jobs", "create", "a", "test.echo", "--manual", "--meta", "tenant=acme", "--meta", "depth=3", "--json")
    own = cli("jobs", "trigger", "a", "--meta", "tenant=globex", "--json")
    run = cli("run", "test.echo", "--meta", "tenant=initech", "--json")

    assert made.json["meta"] == {"tenant": "acme", "depth": 3}
    assert own.json["meta"] == {"tenant": "globex"}
    shown = cli("runs", "show", run.json["execution_id"], "--json").json
    assert shown["meta"] == {"tenant": "initech"}


def test_a_run_says_what_becomes_of_its_key(cli: Cli) -> None:
    options = ("--key", "k", "--in", "1h", "--json")
    first = cli("run", "test.echo", "n=1", "--unique-for", "10m", *options)
    second = cli("run", "test.echo", "n=2", "--if-exists", "replace", *options)

    assert second.json["id"] == first.json["id"]
    assert cli("runs", "show", first.json["execution_id"], "--json").json["payload"] == {"n": 2}
    assert cli("run", "test.echo", "--key", "k", "--if-exists", "perhaps").code != 0


def test_a_run_and_a_trigger_take_expires(cli: Cli) -> None:
    assert cli("jobs", "create", "a", "test.echo", "--cron", "0 0 1 1 *").code == 0

    triggered = cli("jobs", "trigger", "a", "--expires", "2098-01-01T00:00:00Z", "--json")
    run = cli("run", "test.echo", "--expires", "10m", "--json")
    refused = cli("jobs", "trigger", "a", "--expires", "soon")

    assert triggered.json["expires_at"] == "2098-01-01T00:00:00Z"
    shown = cli("runs", "show", run.json["execution_id"], "--json").json
    assert shown["expires_at"] > shown["run_at"]
    assert refused.code != 0
    assert '--expires is "soon", expected a span such as 10m, or an instant' in refused.err


def test_a_text_that_looks_like_a_number_is_set_as_text(cli: Cli) -> None:
    created = cli(
        *("jobs", "create", "2026", "test.echo", "--every", "60s", "--json"),
        *("--set", "limit_key=2026", "--set", "max_running=2", "--set", "overlap=allow", "--set", "ends_at=null"),
    )

    assert created.code == 0, created.err
    fields = ("limit_key", "max_running", "overlap", "ends_at")
    assert [created.json[name] for name in fields] == ["2026", 2, "allow", None]


@pytest.mark.parametrize("name", [name for name, line in SPEC_FIELDS.items() if line.is_text])
def test_every_field_of_text_takes_what_looks_like_a_number_as_text(name: str) -> None:
    for typed, value in {"2026": "2026", "1.50": "1.50", "true": "true", '"quoted"': "quoted", "null": None}.items():
        assert JobFlags(other=[f"{name}={typed}"]).fields() == {name: value}


def test_a_misspelt_field_is_refused(cli: Cli) -> None:
    Path("jobs.jsonl").write_text('{"name": "a", "handler": "test.echo", "intervall_seconds": 60}\n')

    done = cli("jobs", "import", "jobs.jsonl")

    assert done.code == 2
    assert "intervall_seconds" in done.err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"name": "a"}', "a.json is an object whose jobs are nothing, expected a list of jobs"),
        ("a.json", '{"jobs": 3}', "a.json is an object whose jobs are a number, expected a list of jobs"),
        ("a.json", '"a"', "a.json is text, expected a list of jobs"),
        ("a.json", "[7]", "job 1 of a.json is a number, expected a job: a JSON object"),
        ("a.json", '{"a": [', "a.json is not valid JSON: unexpected end of data: line 1 column 8 (char 7)"),
        ("a.json", "", "a.json is not valid JSON"),
        ("a.jsonl", "\n\nnonsense\n", "line 3 of a.jsonl is not valid JSON"),
        ("a.jsonl", "\n[1]\n", "line 2 of a.jsonl is a list, expected a job: a JSON object"),
        (
            "a.yaml",
            "jobs: [\n",
            "the first line of a.yaml is 'jobs: [', expected the names of columns, name and handler",
        ),
        ("b.txt", "name\n", "expected csv, jsonl or json"),
        ("c.csv", b"\xff\xfe\0", "c.csv cannot be read: it is not text in UTF-8"),
        ("c.csv", None, "c.csv cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_none_says_where(cli: Cli, name: str, text: str | bytes | None, words: str) -> None:
    if text is not None:
        Path(name).write_bytes(text.encode() if isinstance(text, str) else text)

    done = cli("jobs", "import", name, *(["--format", "txt"] if name == "b.txt" else []))

    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 3


def test_sync_creates_changes_leaves_and_prunes(cli: Cli) -> None:
    file = Path("jobs.json")
    file.write_text(json.dumps({"jobs": JOBS}))
    Path("other.json").write_text('[{"name": "foreign", "handler": "test.echo", "schedule": "manual"}]')
    assert cli("jobs", "sync", "other.json", "--yes").code == 0

    planned = cli("jobs", "sync", "jobs.json", "--dry-run")
    assert {line[0] for line in planned.lines} == {"create"}
    assert list(settings_of(cli)) == ["foreign"]

    assert "3 created" in cli("jobs", "sync", "jobs.json", "--yes").err
    file.write_text(json.dumps([JOBS[0] | {"queue": "slow"}, JOBS[1]]))
    changed = cli("jobs", "sync", "jobs.json", "--prune", "--yes", "--json").json

    assert {step["name"]: step["action"] for step in changed} == {"ab": "change", "=1+1": "leave", "7": "delete"}
    assert {name: job["queue"] for name, job in settings_of(cli).items()} == {
        "foreign": "default",
        "ab": "slow",
        "=1+1": "default",
    }


def test_a_job_with_no_time_is_created_to_run_now_and_a_manual_one_says_so(cli: Cli) -> None:
    now = cli("jobs", "create", "hello", "test.echo", "--json").json
    by_hand = cli("jobs", "create", "by-hand", "test.echo", "--manual", "--json").json
    run = cli("run", "test.echo", "--name", "once", "--json").json

    assert (now["kind"], now["schedule"], now["status"]) == ("once", None, "active")
    assert now["execution_id"].startswith("exe_")
    assert (by_hand["kind"], by_hand["schedule"], by_hand["execution_id"]) == ("manual", "manual", None)
    assert run["execution_id"].startswith("exe_")
    assert len(cli("runs", "list", "--json").json) == 2


def test_an_edit_makes_a_job_manual(cli: Cli) -> None:
    assert cli("jobs", "create", "beat", "test.echo", "--every", "1h").code == 0

    edited = cli("jobs", "edit", "beat", "--manual", "--json").json
    refused = cli("jobs", "edit", "beat", "--set", "schedule=null")

    assert (edited["kind"], edited["interval_seconds"], edited["version"]) == ("manual", None, 2)
    assert refused.code == 2
    assert '"schedule": "manual"' in refused.err


def test_sync_asks_before_it_does_anything(cli: Cli) -> None:
    Path("jobs.json").write_text(json.dumps(JOBS))

    done = cli("jobs", "sync", "jobs.json")

    assert done.code == 2
    assert "--yes" in done.err
    assert settings_of(cli) == {}
