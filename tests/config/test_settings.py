"""Settings: where they come from, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeball.config.settings import Settings, find_unknown_variables, load_settings
from timeball.errors import SettingsError


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
            "database_pool in timeball.toml is 1, expected 2 or more",
            (
                "TIMEBALL_WORKER__LEASE_SECONDS is 5 and TIMEBALL_WORKER__RENEW_SECONDS by default is 5, "
                "expected a lease of at least three renewals: 15"
            ),
            "TIMEBALL_API__REQUST_BURST is unknown: did you mean TIMEBALL_API__REQUEST_BURST?",
            (
                "TIMEBALL_BROKER_URL begins with kafka://, expected redis:// or rediss:// or amqp:// or amqps://, "
                "as in redis://host:6379/0 or amqp://host:5672/"
            ),
            "port is -1, expected 0 or more",
        ]
    )


def test_a_url_is_never_repeated(folder: Path) -> None:
    (folder / "timeball.toml").write_text('smtp_url = ["smtp://user:canary@host"]\n')

    (told,) = problems()

    assert told == "smtp_url in timeball.toml: expected text"


@pytest.mark.parametrize("content", [b"port = \n", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_a_file_that_cannot_be_read_is_said(folder: Path, content: bytes) -> None:
    (folder / "timeball.toml").write_bytes(content)

    (told,) = problems()

    assert told.startswith("timeball.toml cannot be read: ")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PORT", "abc", 'is "abc", expected a whole number'),
        ("PORT", "70000", 'is "70000", expected 65535 or less'),
        ("port", "1.5", 'is "1.5", expected a whole number'),
        ("WORKER__SLOTS", "-1", 'is "-1", expected 1 or more'),
        ("WORKER__LEASE_SECONDS", "0", 'is "0", expected more than 0'),
        ("WORKER__LEASE_SECONDS", "long", 'is "long", expected a number'),
        ("WORKER__LEASE_SECONDS", "inf", 'is "inf", expected a finite number'),
        ("WORKER__GRACE_SECONDS", "1e300", 'is "1e300", expected 31622400 or less'),
        ("WORKER", "[1]", "is a list of 1, expected an object"),
        (
            "WORKER",
            "fifty",
            (
                'is "fifty", expected a JSON object such as {"lease_seconds": 15}; '
                "or set them one by one, such as TIMEBALL_WORKER__LEASE_SECONDS=15"
            ),
        ),
        ("MIGRATE", "maybe", 'is "maybe", expected true or false'),
        ("LOG_LEVEL", "loud", 'is "loud", expected debug, info, warning or error'),
        (
            "URL_PREFIX",
            "timeball/",
            (
                'is "timeball/", expected a path such as /timeball: each part begins with / and consists of letters, '
                "digits and . _ ~ -, without a / at the end"
            ),
        ),
        ("WORKER__QUEUES", "a" * 201, "cannot be used: item 1 has 201 characters, expected 1 to 200, not all blank"),
        ("SHELL_ENABLED", "x" * 99, "has 99 characters, expected true or false"),
    ],
)
def test_a_variable_is_told_by_its_name_with_what_was_found_and_what_was_expected(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TIMEBALL_{name}", value)

    assert problems() == [f"TIMEBALL_{name.upper()} {told}"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("WEBHOOK_PORTS", "80, none", 'item 2 of TIMEBALL_WEBHOOK_PORTS is "none", expected a whole number'),
        ("WEBHOOK_PORTS", "0", 'item 1 of TIMEBALL_WEBHOOK_PORTS is "0", expected 1 or more'),
        ("WORKER", '{"slots": 0}', "slots in TIMEBALL_WORKER is 0, expected 1 or more"),
    ],
)
def test_a_part_of_a_variable_is_told_with_the_name_of_the_whole(
    name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TIMEBALL_{name}", value)

    assert problems() == [told]


@pytest.mark.parametrize("name", ["database_url", "broker_url", "smtp_url"])
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("canary", "does not begin with a scheme, expected "),
        ("canary:canary@host", "does not begin with a scheme, expected "),
        ("mysql://user:canary@host/x", "begins with mysql://, expected "),
        ("{}://user:canary@host:abc/x", "has a port that is not a number from 1 to 65535, expected one like "),
        ("{}://user:canary@host:0/x", "has a port that is not a number from 1 to 65535, expected one like "),
        ("{}://user:can/ary@host/x", "has a port that is not a number from 1 to 65535, expected one like "),
        ("{}://user:canary@[host/x", "cannot be read as a URL, expected one like "),
        ("{}://user:canary@host/?canary", "has a query that cannot be read, expected name=value "),
        ("{}://user:canary@:5432/x", "has no host, expected one like "),
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_repeating_it(
    name: str, url: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = {"database_url": "postgresql", "broker_url": "redis", "smtp_url": "smtp"}[name]
    monkeypatch.setenv(f"TIMEBALL_{name.upper()}", url.format(scheme))

    (in_environment,) = problems()
    monkeypatch.delenv(f"TIMEBALL_{name.upper()}")
    (as_argument,) = problems(**{name: url.format(scheme)})

    assert in_environment.startswith(f"TIMEBALL_{name.upper()} {told}")
    assert as_argument.startswith(f"{name} {told}")
    assert "canary" not in in_environment + as_argument
    assert "ary@" not in in_environment + as_argument


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres:///shop?host=/tmp/sockets&port=5433",
        "postgresql://user:p%40ss@%2Ftmp%2Fsockets/shop",
        "postgresql://user@[::1]:5432,second,third:5433/shop?target_session_attrs=primary",
    ],
)
def test_every_address_that_the_driver_takes_is_taken(url: str) -> None:
    assert load_settings(database_url=url).database_url == url


@pytest.mark.parametrize("url", ["redis://:p@ss@host:6379/0", "amqp://host/%2F", "rediss://[::1]:6379"])
def test_every_address_that_a_broker_takes_is_taken(url: str) -> None:
    broker = load_settings(broker_url=url).broker_url

    assert broker is not None
    assert broker.get_secret_value() == url


def test_a_second_at_in_the_address_of_the_database_is_told_because_the_driver_misreads_it() -> None:
    (told,) = problems(database_url="postgresql://user:can@ary@host/shop")

    assert told.startswith("database_url has more than one @ before its path, expected one like ")
    assert "@ %40" in told


@pytest.mark.parametrize(
    ("file", "variables", "given", "told"),
    [
        (
            "[worker]\nlease_seconds = 7\n",
            {"TIMEBALL_WORKER__RENEW_SECONDS": "3"},
            {},
            (
                "worker.lease_seconds in timeball.toml is 7 and TIMEBALL_WORKER__RENEW_SECONDS is 3, "
                "expected a lease of at least three renewals: 9"
            ),
        ),
        (
            "",
            {},
            {"scheduler": {"renew_seconds": 4}},
            (
                "scheduler.lease_seconds is 10 and scheduler.renew_seconds is 4, "
                "expected a lease of at least three renewals: 12"
            ),
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(
    file: str,
    variables: dict[str, str],
    given: dict[str, object],
    told: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "timeball.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert problems(**given) == [told]


def test_an_argument_that_is_no_setting_is_refused() -> None:
    assert problems(prot=1) == ["prot is unknown: did you mean port?"]


@pytest.mark.parametrize(
    ("name", "similar"),
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
def test_a_misspelt_variable_is_reported_with_similar_settings(
    name: str, similar: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")

    (variable,) = find_unknown_variables()

    assert (variable.name, variable.similar) == (name, similar)
    assert variable.advice
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
        ("TIMEBALL_SCHEDULED_FOR", "of a command"),
        ("TIMEBALL_JOB_NAME", "of a command"),
        ("TIMEBALL_FENCE", "of a command"),
        ("TIMEBALL_ORIGIN", "of a command"),
        ("TIMEBALL_API_SERVICE_HOST", "of Kubernetes"),
        ("TIMEBALL_API_PORT", "tcp://10.0.0.1:8080"),
        ("TIMEBALL_API_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("TIMEBALLS", "of somebody else"),
    ],
)
def test_what_is_known_or_somebody_elses_is_not_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)

    assert find_unknown_variables() == []


def test_every_setting_has_a_description() -> None:
    sections = [field.annotation for field in Settings.model_fields.values() if field.description is None]

    assert [getattr(section, "__name__", section) for section in sections] == [
        "SchedulerSettings",
        "WorkerSettings",
        "HousekeepingSettings",
        "ApiSettings",
        "WatchSettings",
    ]
