"""What is said of a command that was typed wrong: what was found, what was expected, how it is typed, what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timeball.cli.app import run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a few files, and nothing to be reached from there."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "broken.py").write_text("\nimport nothing_of_that_name")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name == "broken":
            del sys.modules[name]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The three lines that a command ends with, as one that was misused."""
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return [line.strip() for line in err.splitlines()]


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ("wroker", "command wroker is unknown: did you mean worker?"),
        ("job", "command job is unknown: did you mean jobs?"),
        ("frobnicate", "command frobnicate is unknown"),
        ("db frobnicate", "command frobnicate is unknown, expected status, migrate"),
        ("jobs lst", "command lst is unknown: did you mean list?"),
        ("--vresion", "--vresion is unknown: did you mean --version?"),
        ("worker --quue mail", "--quue is unknown: did you mean --queue?"),
        ("up --port 1", "--port is unknown, expected --slots, --queue, --demo, --help"),
        ("jobs -x", "-x is unknown"),
        ("worker --slots abc", '--slots is "abc", expected a whole number'),
        ("worker --slots 1.5", '--slots is "1.5", expected a whole number'),
        ("worker --slots=0", '--slots is "0", expected 1 or more'),
        ("worker --slots 10001", '--slots is "10001", expected 10000 or less'),
        ("worker --slots", "--slots needs a value"),
        ("worker --processes x", '--processes is "x", expected a whole number'),
        ("api --port 70000", '--port is "70000", expected 65535 or less'),
        ("top --every often", '--every is "often", expected a number'),
        ("jobs --json=3", "--json takes no value"),
        ("jobs -o xml", '-o is "xml", expected table, json, jsonl or csv'),
        ("jobs -oxml", '-o is "xml", expected table, json, jsonl or csv'),
        ("jobs --output xml", '--output is "xml", expected table, json, jsonl or csv'),
        ("jobs --time=never", '--time is "never", expected relative, local or utc'),
        ("jobs -n0", '-n is "0", expected 1 or more'),
        ("jobs --limit x", '--limit is "x", expected a whole number'),
        ("jobs import", "FILE is missing"),
        ("jobs create a", "HANDLER is missing"),
        ("jobs backfill a --until 1h", "--from is missing"),
        ("worker app:tb another", "unexpected argument another"),
    ],
)
def test_what_was_typed_wrong_is_named_as_it_was_typed(
    typed: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, usage, advice = told(capsys, *typed.split())

    assert first == f"timeball: {what}"
    assert usage.startswith("Usage: timeball")
    assert advice.endswith("--help shows examples")


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        (["worker", "--queue", ""], "--queue has 0 characters, expected 1 to 200, not all blank"),
        (["worker", "--queue", "mail", "--queue", " "], "--queue has 1 characters, expected 1 to 200, not all blank"),
        (["worker", "nowhere:tb"], "there is no module 'nowhere'"),
        (["worker", "json:tb"], "json has no attribute 'tb'"),
        (["worker", "app.py"], 'the app is "app.py", expected module:attribute, such as app:tb'),
        (["check", ".app:tb"], 'the app is ".app:tb", expected module:attribute, such as app:tb'),
        (
            ["worker", "broken:tb"],
            "broken cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        (["run", "test.echo", "--every", "never"], '--every is "never", expected a span like'),
        (["run", "test.echo", "--in", "soon"], '--in is "soon", expected a span like'),
        (["run", "test.echo", "--at", "soon"], '--at is "soon", expected an instant such as'),
        (["run", "test.echo", "--timeout", "-1s"], '--timeout is "-1s", expected a span like'),
        (["run", "test.echo", "--priority", "101"], '--priority is "101", expected 0 to 100, low, normal, high'),
        (["run", "test.echo", "--priority", "9" * 5_000], "--priority has 5000 characters, expected 0 to 100"),
        (["run", "test.echo", "--in", "1m", "--at", "2030-01-01"], "--at and --in are given, expected one of them"),
        (["run", "test.echo", "--cron", "* * * * *", "--every", "1m"], "--cron and --every are given, expected one"),
        (["run", "test.echo", "--manual", "--every", "1m"], "--every and --manual are given, expected one of them"),
        (["run", "test.echo", "--payload", "nope"], "--payload is not valid JSON: "),
        (["run", "test.echo", "--payload", "@nowhere"], "nowhere cannot be read: No such file or directory"),
        (["run", "test.echo", "--payload", "@binary"], "binary cannot be read: it is not text in UTF-8"),
        (["run", "test.echo", "--payload", "{}", "a=1"], "--payload and KEY=VALUE are given, expected one of them"),
        (["jobs", "backfill", "a", "--from", "soon", "--until", "1h"], '--from is "soon", expected an instant such as'),
        (["jobs", "import", "nowhere.csv"], "nowhere.csv cannot be read: No such file or directory"),
        (["jobs", "import", "."], ". cannot be read: Is a directory"),
        (["jobs", "--url", "rubbish"], "--url does not begin with a scheme, expected http:// or https://, as in"),
        (["jobs", "--url", "ftp://me:canary@host"], "--url begins with ftp://, expected http:// or https://, as in"),
        (
            ["jobs", "show", "", "--url", "http://127.0.0.1:9"],
            'the name or id is "", expected an existing one',
        ),
        (["jobs", "show", "..", "--url", "http://127.0.0.1:9"], 'the name or id is "..", expected an existing one'),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_value_that_cannot_be_used_is_named_with_what_was_expected(
    typed: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, advice = told(capsys, *typed)

    assert first.startswith(f"timeball: {what}")
    assert len(first) < 300
    assert "canary" not in first
    assert advice


def test_the_place_of_a_mistake_in_a_program_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, where, advice = told(capsys, "worker", "broken:tb")

    assert where.startswith(f"{folder / 'broken.py'}, line 2")
    assert 'python -c "import broken"' in advice


def test_a_server_in_the_environment_is_told_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIMEBALL_URL", "127.0.0.1:8080")

    first, _, advice = told(capsys, "jobs")

    assert first == (
        "timeball: TIMEBALL_URL does not begin with a scheme, expected http:// or https://, as in http://127.0.0.1:8080"
    )
    assert advice == "such as TIMEBALL_URL=http://127.0.0.1:8080"
