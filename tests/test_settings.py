"""Settings: where they come from, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeball.errors import SettingsError
from timeball.settings import Settings, load_settings, unknown_variables


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(**given: object) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load_settings(**given)
    return refused.value.problems


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "timeball.toml").write_text('host = "file"\nport = 1\ndatabase_pool = 3\n[worker]\nslots = 7\n')
    monkeypatch.setenv("TIMEBALL_HOST", "environment")
    monkeypatch.setenv("TIMEBALL_PORT", "2")
    monkeypatch.setenv("TIMEBALL_WORKER__QUEUES", "mail, reports")

    settings = load_settings(host="flag")

    assert (settings.host, settings.port, settings.database_pool, settings.shards) == ("flag", 2, 3, 64)
    assert (settings.worker.slots, settings.worker.queues) == (7, ("mail", "reports"))


def test_every_problem_is_told_at_once_and_where_it_comes_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "timeball.toml").write_text(
        'hots = "x"\nslots = 3\ndatabase_pool = 1\n[woker]\nslots = 9\n[scheduler]\nlease_secs = 3\n'
    )
    monkeypatch.setenv("TIMEBALL_WORKER__LEASE_SECONDS", "5")
    monkeypatch.setenv("TIMEBALL_API__REQUST_BURST", "5")
    monkeypatch.setenv("TIMEBALL_BROKER_URL", "kafka://user:canary@host")

    told = problems(port=-1)

    assert sorted(told) == sorted(
        [
            "hots in timeball.toml is unknown: did you mean host?",
            "slots in timeball.toml is unknown: did you mean worker.slots?",
            "woker in timeball.toml is unknown: did you mean worker?",
            "scheduler.lease_secs in timeball.toml is unknown: did you mean scheduler.lease_seconds?",
            "database_pool in timeball.toml is 1: Input should be greater than or equal to 2",
            "TIMEBALL_WORKER does not fit together: lease of 0:00:05 is shorter than three renewal intervals of 0:00:05",
            "TIMEBALL_API__REQUST_BURST is unknown: did you mean TIMEBALL_API__REQUEST_BURST?",
            "TIMEBALL_BROKER_URL begins with 'kafka': expected redis://, rediss://, amqp://, amqps://, or nothing for PostgreSQL",
            "port is -1: Input should be greater than or equal to 0",
        ]
    )


def test_a_url_is_never_repeated(folder: Path) -> None:
    (folder / "timeball.toml").write_text('smtp_url = ["smtp://user:canary@host"]\n')

    (told,) = problems()

    assert told == "smtp_url in timeball.toml: Input should be a valid string"


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_a_file_that_cannot_be_read_is_said(folder: Path, content: bytes) -> None:
    (folder / "timeball.toml").write_bytes(content)

    (told,) = problems()

    assert told.startswith("timeball.toml cannot be read: ")


def test_a_wrong_item_of_a_list_is_told_under_the_name_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_WEBHOOK_PORTS", "80, none")

    (told,) = problems()

    assert told.startswith("TIMEBALL_WEBHOOK_PORTS is 'none': ")


def test_a_section_that_is_no_json_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_WORKER", "fifty")

    (told,) = problems()

    assert '"worker"' in told
    assert "expected JSON" in told


def test_an_argument_that_is_no_setting_is_refused() -> None:
    assert problems(prot=1) == ["prot is unknown: did you mean port?"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TIMEBALL_WOKER_SLOTS", ("TIMEBALL_WORKER__SLOTS",)),
        ("TIMEBALL_WORKER_SLOTS", ("TIMEBALL_WORKER__SLOTS",)),
        ("TIMEBALL_SLOTS", ("TIMEBALL_WORKER__SLOTS",)),
        ("TIMEBALL_DATABSE_URL", ("TIMEBALL_DATABASE_URL",)),
        ("TIMEBALL_LEASE_SECONDS", ("TIMEBALL_SCHEDULER__LEASE_SECONDS", "TIMEBALL_WORKER__LEASE_SECONDS")),
        ("timeball_prot", ("TIMEBALL_PORT",)),
        ("TIMEBALL_MOON_PHASE", ()),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest_known(
    name: str, meant: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")

    (stranger,) = unknown_variables()

    assert (stranger.name, stranger.meant) == (name, meant)
    assert stranger.advice
    load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEBALL_PORT", "1"),
        ("timeball_port", "1"),
        ("TIMEBALL_WORKER", "{}"),
        ("TIMEBALL_WORKER__SLOTS", "1"),
        ("TIMEBALL_SECRET_WOKER_SLOTS", "of a job"),
        ("TIMEBALL_URL", "of the client"),
        ("TIMEBALL_API_KEY", "of the client"),
        ("TIMEBALL_TEST_DATABASE_URL", "of the pytest plugin"),
        ("TIMEBALL_EXECUTION_ID", "of a command"),
        ("TIMEBALL_API_SERVICE_HOST", "of Kubernetes"),
        ("TIMEBALL_API_PORT", "tcp://10.0.0.1:8080"),
        ("TIMEBALL_API_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("TIMEBALLS", "of somebody else"),
    ],
)
def test_what_is_known_or_somebody_elses_is_not_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)

    assert unknown_variables() == []


def test_every_setting_has_a_description() -> None:
    sections = [field.annotation for field in Settings.model_fields.values() if field.description is None]

    assert [getattr(section, "__name__", section) for section in sections] == [
        "SchedulerSettings",
        "WorkerSettings",
        "HousekeepingSettings",
        "ApiSettings",
    ]
