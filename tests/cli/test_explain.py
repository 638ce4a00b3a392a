"""`why`, `doctor` and `forecast`: what people read, what pipes get, and how they end."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from tests.cli.conftest import Cli, Done
from tests.conftest import FreshDatabase
from tests.support.factories import make_node
from timeball.cli.output import Printer
from timeball.cli.schedules import forecast_lines
from timeball.cli.session import CliSession
from timeball.domain.explain.explanation import GATES
from timeball.domain.node import Lease
from timeball.env import Env
from timeball.store.store import Store


class Terminal(io.StringIO):
    """Standard output is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What a command prints for people, without colours."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    shown = Terminal()
    monkeypatch.setattr(CliSession, "printer", property(lambda self: Printer(self.output, self.times, out=shown)))
    return shown


def make_job(cli: Cli, **fields: object) -> str:
    body = {"handler": "app.crm:sync", "schedule": "0 3 * * *"} | fields
    created = CliSession().talk(lambda client: client.request("POST", "/jobs", body))
    return str(created["id"])


def test_why_shows_one_sentence_and_every_gate(cli: Cli, screen: Terminal) -> None:
    make_job(cli, name="sync-crm")

    assert cli("why", "sync-crm").code == 0

    title, headline, *gates = screen.getvalue().splitlines()
    assert title.startswith("sync-crm · exe_")
    assert headline.startswith("NOT STARTED: it is due at ")
    assert "Also: no worker is alive" in headline
    assert " ✓ job enabled                 the job is active" in gates
    assert any(line.startswith(" ✗ a worker serves the queue") for line in gates)
    assert "     start one: timeball worker app:tb --queue default" in gates
    assert sum(line.startswith((" ✓", " ✗", " –")) for line in gates) == len(GATES)


def test_why_for_programs_and_pipes(cli: Cli) -> None:
    job_id = make_job(cli, name="sync-crm")

    as_json = cli("why", "sync-crm", "--json").json
    piped = cli("why", job_id)
    of_execution = cli("why", as_json["execution_id"], "--json").json

    assert as_json["stopped_by"] == "run_time"
    assert of_execution["execution_id"] == as_json["execution_id"]
    assert (
        "stopped\tworker_for_queue\tno worker is alive\tstart one: timeball worker app:tb --queue default" in piped.out
    )
    header, *gates = cli("why", "sync-crm", "-o", "csv").out.splitlines()
    assert (header, len(gates)) == ("verdict,gate,sentence,advice,links", len(GATES))
    assert cli("why", "nobody").code == 3
    assert cli("why", "exe_nobody").code == 3
    assert cli("why", "01937b1d-8607-7000-8000-000000000000").code == 3


def test_why_at_an_instant_tells_the_chain(cli: Cli, screen: Terminal) -> None:
    make_job(cli, name="sync-crm")

    assert cli("why", "sync-crm", "--at", "2020-01-01T03:00").code == 0

    _, headline, *causes = screen.getvalue().splitlines()
    assert headline.startswith("NOTHING WAS DUE at 01 Jan 2020 03:00:00 UTC: the job was created at ")
    # What the first line says is not said again.
    assert causes[0].startswith("  version 1 of the job names this instant")


def test_why_at_an_instant_for_programs_and_bad_instants(cli: Cli) -> None:
    make_job(cli, name="sync-crm")

    ahead = cli("why", "sync-crm", "--at", "+1d", "-o", "json")
    refused = cli("why", "sync-crm", "--at", "sometime")

    assert orjson.loads(ahead.out)["because"][0]["kind"] == "not_due"
    assert refused.code != 0
    assert "--at" in refused.err


def test_the_doctor_says_what_to_type_and_fails(cli: Cli, screen: Terminal) -> None:
    done = cli("doctor")

    lines = screen.getvalue().splitlines()
    assert done.code == 1
    assert any(line.startswith("  ✓ database") and "PostgreSQL 15" in line for line in lines)
    assert any(line.startswith("  ✗ schedulers") for line in lines)
    assert "      start one: timeball scheduler" in lines


def test_the_doctor_for_programs_and_pipes(cli: Cli) -> None:
    piped = cli("doctor", "--problems")
    as_json = cli("doctor", "--problems", "--json")

    assert (piped.code, as_json.code) == (1, 1)
    assert piped.out.startswith("warn\t") or piped.out.startswith("fail\t")
    assert "ok\t" not in piped.out
    assert '"code": "schedulers"' in as_json.out


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("TIMEBALL_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none", "unreachable"),
        ("TIMEBALL_PORT", "many", "settings"),
    ],
)
def test_doctor_reports_why_it_cannot_check(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: str
) -> None:
    monkeypatch.setenv(name, value)

    done: Done = cli("doctor")

    assert done.code == 1
    assert done.out.startswith(f"fail\t{code}\t")


def test_a_forecast_is_a_map_of_hours(cli: Cli, screen: Terminal) -> None:
    make_job(cli, name="nightly")

    assert cli("forecast", "--days", "3", "--measure", "starts").code == 0

    lines = screen.getvalue().splitlines()
    assert lines[0] == " next 3 days   starts   zone UTC"
    assert lines[1].split() == [f"{hour:02}" for hour in range(24)]
    assert "█" in lines[3]
    assert "peak 03:00, 1 starts" in lines[3]
    assert " estimated, because they have no history: nightly" in lines
    assert lines[-1] == " Forecast accuracy  yesterday predicted 0 at peak, measured 0"
    assert len(screen.getvalue().splitlines()[3].split("█")[0]) == len(" Mon 16 ") + 3 * 3


def test_a_forecast_for_programs_and_pipes(cli: Cli) -> None:
    make_job(cli, name="nightly")

    assert len(cli("forecast", "--days", "2").lines) == 48
    as_json = cli("forecast", "--json").json
    assert (as_json["without_history"], as_json["collisions"]) == (["nightly"], [])
    assert cli("forecast", "--tz", "Mars").code == 2


def test_a_forecast_says_what_to_move(cli: Cli, fresh_database: FreshDatabase) -> None:
    async def register_worker() -> None:
        store = Store(fresh_database.dsn, Env())
        await store.open(migrates=False)
        await make_node(store, slots=1, lease=Lease(span=timedelta(days=1), interval=timedelta(hours=1)))
        await store.close()

    asyncio.run(register_worker())
    # Far from now: a job is not moved across it.
    hour = (datetime.now(UTC).hour + 12) % 24
    for name in ("nightly", "other"):
        make_job(cli, name=name, schedule=f"0 {hour} * * *")

    assert cli("forecast", "--spread").lines == [["nightly", f"0 {hour} * * *", f"5 {hour} * * *", "2", "1"]]
    (collision,) = cli("forecast", "--spread", "--json").json["collisions"]
    assert collision["spread"]["sentence"] == "with 1 job moved the peak is 1, which fits into 1 slot"
    assert "spread" not in cli("forecast", "--json").json["collisions"][0]


def test_clock_changes_and_full_hours_are_drawn() -> None:
    hours = [{"hour": hour, "value": float(hour), "note": None} for hour in range(24)]
    hours[2] = {"hour": 2, "value": None, "note": "gap"}
    forecast = {
        "days": [{"date": "2026-03-29", "peak": {"sentence": "peak 23:00, 23 of 8"}, "hours": hours}],
        "measure": "busy",
        "slots": 8,
        "timezone": "Europe/Berlin",
        "without_history": [],
        "left_out": 2,
        "hindsight": {"predicted_peak": 7.6, "measured_peak": 7.9},
    }

    spread = {
        "suggestions": [{"sentence": "reindex 0 3 * * * → 10 3 * * * (10 min later), peak 3 → 2"}],
        "left_out": [{"label": "sync", "why": "it does not recur"}],
        "sentence": "with 1 job moved the peak is 2, which fits into 2 slots",
    }

    lines = list(
        forecast_lines(forecast, [{"sentence": "7 times at 03:00", "spread": spread}, {"sentence": "at 04:00"}])
    )

    assert lines[2].startswith(" Sun 29 ·  ▂  ╳  ▄  ▅  ▆  ▇  █  █ ")
    assert lines[2].endswith("peak 23:00, 23 of 8   02:00 does not exist (clock change)")
    assert lines[3:] == [
        "  1  7 times at 03:00",
        "       reindex 0 3 * * * → 10 3 * * * (10 min later), peak 3 → 2",
        "       sync stays: it does not recur",
        "     → with 1 job moved the peak is 2, which fits into 2 slots",
        "  2  at 04:00",
        " 2 jobs are left out: there are too many",
        " Forecast accuracy  yesterday predicted 7.6 at peak, measured 7.9",
    ]
