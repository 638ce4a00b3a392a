"""Dockerfile and compose.yaml without containers: they are read, and what they say is run: commands, environment, health checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.support.broker_servers import Rabbitmq, free_port, running_redis
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on, wait_until
from tests.system.cluster import Process

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "any"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "timeball"}
NODES = ("api", "scheduler", "worker")


# the Dockerfile


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    all_of_them = instructions()
    begins = max(place for place, (word, _) in enumerate(all_of_them) if word == "FROM")
    return all_of_them[begins:]


def image_environment() -> dict[str, str]:
    settings = " ".join(rest for word, rest in last_stage() if word == "ENV")
    return dict(setting.split("=", 1) for setting in settings.split())


def test_the_image_runs_as_an_account_without_rights_and_says_whether_it_is_healthy() -> None:
    stage = dict(last_stage())

    user, group = stage["USER"].split(":")
    assert user.isdecimal(), "by number, for those who check it"
    assert "0" not in (user, group)
    assert json.loads(stage["ENTRYPOINT"]) == ["timeball"]
    assert stage["HEALTHCHECK"].endswith('CMD ["timeball", "alive"]')


def test_the_image_is_made_of_a_named_release_and_of_locked_packages_without_a_database() -> None:
    bases = {rest.split()[0] for word, rest in instructions() if word == "FROM"}
    lock = (ROOT / "requirements" / "image.lock").read_text()

    assert bases == {"python:3.12-slim"}
    assert "pgserver" not in lock
    assert {"redis==", "aio-pika==", "asyncpg==", "hatchling=="} <= set(re.findall(r"^[\w-]+==", lock, re.MULTILINE))
    assert any("--require-hashes -r requirements/image.lock" in rest for word, rest in instructions() if word == "RUN")


def test_the_image_lock_names_the_versions_that_the_tests_run_with() -> None:
    def versions(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text()
        return set(re.findall(r"^([\w.-]+==\S+)", text, re.MULTILINE))

    assert versions("image.lock") <= versions("dev.lock")


def test_everything_that_is_copied_is_there_and_let_through() -> None:
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    sources = {source for paths in copied for source in paths[:-1]}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert sources == let_through
    assert all((ROOT / source).exists() for source in sources)


# compose.yaml


def test_the_whole_system_is_there() -> None:
    assert {name: service.get("deploy", {}).get("replicas", 1) for name, service in OURS.items()} == {
        "migrate": 1,
        "first-key": 1,
        "api": 1,
        "scheduler": 2,
        "worker": 2,
    }
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "redis": ["redis"],
        "rabbitmq": ["rabbitmq"],
    }


def test_every_image_has_a_release_and_every_lasting_service_a_health_check() -> None:
    for name, service in SERVICES.items():
        assert ":" in service["image"] or service["image"] == "timeball"
        assert service["restart"] == "no" or service["healthcheck"]["test"][0] == "CMD", name


def test_the_image_is_built_once_and_asked_of_no_registry() -> None:
    """One that is built for each service is another image each time, and the next `up` would make every container anew."""
    assert [name for name, service in OURS.items() if "build" in service] == ["migrate"]
    assert {service["pull_policy"] for service in OURS.values()} == {"never"}


def test_logs_are_rotated_and_our_containers_have_limits() -> None:
    assert all(service["logging"]["options"]["max-size"] for service in SERVICES.values())
    assert all(service["pids_limit"] and service["mem_limit"] for service in OURS.values())


def test_no_character_of_the_password_breaks_the_url() -> None:
    """It is handed over beside the URL."""
    environment = OURS["api"]["environment"]
    password = "p@ss/w:rd#1%41"

    assert resolve(environment["PGPASSWORD"], {"POSTGRES_PASSWORD": password}) == password
    assert "$" not in environment["TIMEBALL_DATABASE_URL"]


def test_our_containers_can_do_nothing_that_they_need_not() -> None:
    for service in OURS.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_workers_are_given_longer_to_end_than_they_take() -> None:
    from timeball.config.settings import load_settings

    assert float(OURS["worker"]["stop_grace_period"].removesuffix("s")) > load_settings().worker.grace_seconds


def test_the_api_is_not_for_the_whole_network() -> None:
    assert all(port.startswith("127.0.0.1:") for port in OURS["api"]["ports"])


def test_the_health_checks_of_the_servers_beside_ours_tell_life_from_death(servers: Servers) -> None:
    """The same commands, with the port and the database of this test behind them."""
    how, *is_ready = SERVICES["postgres"]["healthcheck"]["test"]
    assert how == "CMD"
    assert "--host=127.0.0.1" in is_ready, "the server that makes the cluster listens on the socket alone"
    server = server_or_give_up(servers)
    by_socket = [word for word in is_ready if not word.startswith("--host")]
    assert says_yes(*by_socket, f"--dbname={server.dsn('postgres')}")
    assert not says_yes(*is_ready, f"--port={free_port()}")

    how, *answers = SERVICES["redis"]["healthcheck"]["test"]
    assert how == "CMD"
    port = free_port()
    with running_redis(*SERVICES["redis"]["command"][1:], port=port):
        assert says_yes(*answers[:1], "-p", f"{port}", *answers[1:])
    assert not says_yes(*answers[:1], "-p", f"{port}", *answers[1:])


def test_the_health_check_of_rabbitmq_tells_life_from_death(rabbitmq: Rabbitmq) -> None:
    how, *is_alive = SERVICES["rabbitmq"]["healthcheck"]["test"]
    assert how == "CMD"
    assert rabbitmq.says_yes(*is_alive)
    assert not rabbitmq.says_yes(*is_alive, RABBITMQ_NODENAME="nobody@localhost")


def says_yes(*command: str) -> bool:
    """Whether a command ends well."""
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def server_or_give_up(servers: Servers) -> PostgresServer:
    try:
        return servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise


def test_without_a_password_nothing_starts() -> None:
    with pytest.raises(LookupError, match="choose a password"):
        resolve("${POSTGRES_PASSWORD:?choose a password}", {})


def resolve(text: str, variables: dict[str, str]) -> str:
    """A value with its variables, as compose replaces them."""

    def value(match: re.Match[str]) -> str:
        name, operator, rest = match.group(1), match.group(2), match.group(3)
        found = variables.get(name, "")
        if not found and operator == ":?":
            raise LookupError(rest)
        return found or rest

    return re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", value, text)


class Deployment:
    """What compose would start, as processes: the hosts of the network are those of the test."""

    def __init__(self, folder: Path, dsn: str, **variables: str) -> None:
        self._folder = folder
        self._variables = {"POSTGRES_PASSWORD": PASSWORD} | variables
        self._dsn = dsn
        self.port = str(free_port())
        self.processes: dict[str, Process] = {}

    def environment(self, name: str) -> dict[str, str]:
        """That of the image and of the service; only addresses are other ones here."""
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        given = {key: resolve(value, self._variables) for key, value in OURS[name]["environment"].items()}
        image = {key: value for key, value in image_environment().items() if key not in ("PATH",)}
        moved = {
            "TIMEBALL_DATABASE_URL": self._dsn,
            "TIMEBALL_DATA_DIR": str(self._folder),
            # A container has a /tmp of its own.
            "TMPDIR": str(self._folder),
        }
        if "TIMEBALL_PORT" in given:
            moved["TIMEBALL_PORT"] = self.port
        return inherited | image | given | moved

    def run(self, name: str) -> str:
        """Run a service that ends by itself."""
        command = [sys.executable, "-m", "timeball", *OURS[name]["command"]]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        """Start a service that lasts, as often as it is wanted."""
        for number in range(OURS[name].get("deploy", {}).get("replicas", 1)):
            label = f"{name}-{number + 1}"
            command = [sys.executable, "-m", "timeball", *OURS[name]["command"]]
            self.processes[label] = Process(
                command, self._folder, self.environment(name), self._folder / f"{label}.log"
            )

    def is_healthy(self, name: str) -> bool:
        """What the health check of a service says."""
        how, program, *arguments = OURS[name]["healthcheck"]["test"]
        assert (how, program) == ("CMD", "timeball")
        command = [sys.executable, "-m", program, *arguments]
        return (
            subprocess.run(
                command, cwd=self._folder, env=self.environment(name), capture_output=True, check=False
            ).returncode
            == 0
        )

    def request(self, path: str, key: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def end(self) -> None:
        for process in self.processes.values():
            process.end()


@pytest.fixture
def deploy(tmp_path: Path, servers: Servers) -> Iterator[Callable[..., Deployment]]:
    """Deploys on an empty database."""
    server = server_or_give_up(servers)
    name = server.create_database()
    made: list[Deployment] = []

    def make(**variables: str) -> Deployment:
        made.append(Deployment(tmp_path, server.dsn(name), **variables))
        return made[-1]

    yield make
    for deployment in made:
        deployment.end()
    server.drop_database(name)


def test_the_migration_waits_for_a_database_that_is_not_there_yet(tmp_path: Path, servers: Servers) -> None:
    server = server_or_give_up(servers)
    name = server.create_database()
    sockets = tmp_path / "sockets"
    url = server.dsn(name).replace(quote(server.host, safe=""), quote(str(sockets), safe=""))
    environment = dict(os.environ) | {"TIMEBALL_DATABASE_URL": url, "TIMEBALL_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "timeball", *OURS["migrate"]["command"]]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as migration:
        assert migration.stderr is not None
        assert migration.stdout is not None
        assert migration.stderr.readline().startswith("waiting for the database: PostgreSQL cannot be reached")
        sockets.symlink_to(server.host)
        assert migration.stdout.read().startswith("the schema is at version")

    assert migration.returncode == 0
    server.drop_database(name)


@pytest.mark.slow
def test_what_compose_says_runs_and_is_healthy_and_works(deploy: Callable[..., Deployment], redis_port: int) -> None:
    deployment = deploy(TIMEBALL_BROKER_URL=f"redis://127.0.0.1:{redis_port}/0")
    deployment.run("migrate")
    key = deployment.run("first-key").strip()
    assert deployment.run("first-key") == "", "a second start makes no second key"
    assert not any(deployment.is_healthy(name) for name in NODES)

    for name in NODES:
        deployment.start(name)
    for name in NODES:
        wait_until(lambda name=name: deployment.is_healthy(name), f"{name} is healthy", 90)

    def document() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = deployment.request("/workers", key)["data"]
        return found

    wait_until(lambda: len(document()) == 2, "both workers are there")
    assert {node["broker"] for node in document()} == {"redis"}
    job = deployment.request("/jobs", key, {"handler": "test.echo", "payload": {"hello": "containers"}})

    def has_run() -> bool:
        executions = deployment.request(f"/jobs/{job['id']}/executions", key)["data"]
        return [execution["state"] for execution in executions] == ["succeeded"]

    wait_until(has_run, "the job has run", 60)
    deployment.processes["worker-1"].terminate()
    deployment.processes["worker-2"].terminate()
    wait_until(lambda: not deployment.is_healthy("worker"), "the health check notices", 60)
