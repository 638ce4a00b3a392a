"""The settings of a process: read once, checked once, and handed to each part as its own section.

Defaults come first, then the file `timeball.toml`, the environment (`TIMEBALL_...`) and flags. All problems are reported together.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as Undecodable

from timeball.config.servers import broker_parameter_problem, database_url_problem, server_url_problem
from timeball.config.sources import (
    SETTINGS_FILE,
    SettingSources,
    UnknownVariable,
    undecodable_sections,
    unknown_variables,
)
from timeball.domain.handler import check_memory
from timeball.domain.node import Lease
from timeball.domain.scheduling.civil_time import load_zone
from timeball.domain.values.text import check_label
from timeball.errors import InvalidInput, SettingsError, quote_text

BROKER_SCHEMES = {"redis": "redis", "rediss": "redis", "amqp": "rabbitmq", "amqps": "rabbitmq"}
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
# Longer than any wait, and short enough for date arithmetic.
_A_YEAR = 366 * 86_400


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _size(value: Any) -> int:
    try:
        return check_memory(int(value) if isinstance(value, str) and value.isdecimal() else value)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


# In the environment a list is written `a, b, c`.
Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Size = Annotated[int, BeforeValidator(_size)]
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode, BeforeValidator(_split)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _LeaseSection(_Section):
    """The settings of a node that holds a lease."""

    lease_seconds: float
    renew_seconds: float

    @property
    def lease(self) -> Lease:
        return Lease(span=timedelta(seconds=self.lease_seconds), interval=timedelta(seconds=self.renew_seconds))

    @model_validator(mode="after")
    def _lease_fits(self) -> Self:
        try:
            _ = self.lease
        except SettingsError:
            spans = {"lease": self.lease_seconds, "renewal": self.renew_seconds}
            raise PydanticCustomError("lease_too_short", "the lease is too short", spans) from None
        return self


class SchedulerSettings(_LeaseSection):
    """How a scheduler looks ahead and promotes."""

    lease_seconds: float = Field(
        default=10, gt=0, le=_A_YEAR, description="How long a scheduler counts as alive after it has renewed its lease."
    )
    renew_seconds: float = Field(default=3, gt=0, le=_A_YEAR, description="How often a scheduler renews its lease.")
    promotion_window_ms: int = Field(
        default=500, ge=1, le=10_000, description="How long before its time an execution is promoted to ready."
    )
    look_ahead_seconds: float = Field(
        default=3, ge=2, le=60, description="How far ahead a scheduler reads the schedule."
    )
    batch: int = Field(
        default=1_000, ge=1, le=10_000, description="How many executions one statement promotes at most."
    )
    page: int = Field(
        default=2_000, ge=1, le=50_000, description="How many rows of a shard one statement reads at most."
    )
    definitions: int = Field(default=100_000, ge=100, description="How many job definitions are kept in memory.")

    @property
    def promotion_window(self) -> timedelta:
        return timedelta(milliseconds=self.promotion_window_ms)

    @property
    def look_ahead(self) -> timedelta:
        return timedelta(seconds=self.look_ahead_seconds)


class WorkerSettings(_LeaseSection):
    """How a worker claims and runs executions, and how it stops."""

    slots: int = Field(default=20, ge=1, le=10_000, description="How many executions a worker runs at once.")
    hold_limit: int = Field(
        default=500,
        ge=0,
        le=10_000,
        description="How many executions a worker claims ahead of their time, to start them exactly then.",
    )
    queues: Texts = Field(default=(), description="The queues a worker serves. Empty: all queues.")
    lease_seconds: float = Field(
        default=15, gt=0, le=_A_YEAR, description="How long a worker counts as alive after it has renewed its lease."
    )
    renew_seconds: float = Field(default=5, gt=0, le=_A_YEAR, description="How often a worker renews its lease.")
    retry_budget_per_second: float = Field(
        default=10,
        ge=0,
        description="How many retries per second a worker always allows for one target: a handler, or the host of a webhook.",
    )
    retry_budget_share: float = Field(
        default=0.2, ge=0, description="How many further retries each first attempt at the same target allows."
    )
    isolate: bool = Field(default=False, description="Whether all handlers of the program run in child processes.")
    runs_per_child: int = Field(
        default=1_000,
        ge=1,
        description="After how many executions a child process is replaced, if its handler says nothing.",
    )
    max_memory: Size | None = Field(
        default=None,
        description="How much memory a process may keep, such as 1GB: a child process is replaced after the execution that left it with "
        "more, if its handler says nothing; a worker process that keeps more drains, and its supervisor starts another.",
    )
    grace_seconds: float = Field(
        default=30, ge=0, le=_A_YEAR, description="How long a stopping worker waits for its running executions."
    )

    @field_validator("queues")
    @classmethod
    def _queues_have_names(cls, queues: tuple[str, ...]) -> tuple[str, ...]:
        for number, queue in enumerate(queues, start=1):
            try:
                check_label(queue, f"item {number}")
            except InvalidInput as error:
                raise ValueError(f"cannot be used: {error}") from None
        return queues

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)


class HousekeepingSettings(_Section):
    """How executions of dead nodes are rescued, and how long history is kept."""

    reap_seconds: float = Field(
        default=2, gt=0, le=60, description="How often the reaper looks for dead nodes and timed-out attempts."
    )
    rollup_seconds: float = Field(
        default=5, gt=0, le=60, description="How often ended executions are added to the rollups."
    )
    alert_seconds: float = Field(default=10, gt=0, le=3_600, description="How often alerts are evaluated.")
    keep_days: int = Field(default=30, ge=1, description="How many days ended executions are kept.")
    keep_audit_days: int = Field(default=365, ge=1, description="How many days the audit log is kept.")
    days_ahead: int = Field(default=7, ge=1, le=60, description="How many days ahead partitions are created.")


class WatchSettings(_Section):
    """How `timeball watch` looks after an installation, and whom it tells."""

    every_seconds: float = Field(
        default=30, ge=1, le=3_600, description="How often a watcher looks at the database, and pings."
    )
    answer_seconds: float = Field(
        default=20, gt=0, le=600, description="How long a look may take before the database counts as out of reach."
    )
    ping_url: SecretStr | None = Field(
        default=None,
        description="An address outside that a watcher calls after each look, as Healthchecks has it: a POST to it if all is well, "
        "and to the same address with /fail behind it if not, with what is wrong in the body.",
    )
    webhook_url: SecretStr | None = Field(
        default=None,
        description="An address that a watcher sends its alerts to, as a channel of the kind webhook would, without a channel.",
    )
    channels: Texts = Field(
        default=(),
        description="The channels that a watcher may send to; one to which no route leads gets everything. Empty: those of the routes.",
    )

    @field_validator("ping_url", "webhook_url")
    @classmethod
    def _is_an_address(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not re.fullmatch(r"https?://[^/?#\s@]+([/?#]\S*)?", url.get_secret_value()):
            # Not repeated: who knows such an address can use it.
            raise ValueError("is not an address, expected one such as https://hc-ping.com/your-check")
        return url


class ApiSettings(_Section):
    """How much one API key may ask of one API process, and how connections are limited."""

    requests_per_second: float = Field(
        default=200, gt=0, description="How many requests per second a key may make on average."
    )
    request_burst: float = Field(default=1_000, ge=1, description="How many requests a key may make at once.")
    concurrent_requests: int = Field(
        default=100, ge=1, description="How many requests of a key are handled at the same time."
    )
    megabytes_per_second: float = Field(
        default=32, gt=0, description="How many megabytes per second a key may send on average."
    )
    megabyte_burst: float = Field(default=128, gt=0, description="How many megabytes a key may send at once.")
    largest_body_megabytes: float = Field(
        default=1, gt=0, le=100, description="The largest request body, in megabytes."
    )
    largest_bulk_megabytes: float = Field(
        default=32,
        gt=0,
        le=1_000,
        description="The largest body of a request that creates many jobs or a group, in megabytes.",
    )
    largest_body_values: int = Field(
        default=200_000,
        ge=1_000,
        description="How many values (objects, lists, strings, numbers) a request body may contain.",
    )
    largest_bulk_values: int = Field(
        default=500_000,
        ge=1_000,
        description="How many values the body of a request that creates many jobs or a group may contain.",
    )
    timezone: str = Field(
        default="UTC", description="The IANA time zone of times without an offset, in the drop-in routes."
    )
    stream_minutes: float = Field(
        default=60, gt=0, le=1_440, description="After how long the server ends an event stream; clients reconnect."
    )
    metrics_jobs: int = Field(
        default=200,
        ge=0,
        le=5_000,
        description="How many recurring jobs have a name in the metrics for Prometheus: the first that were created.",
    )
    session_idle_hours: float = Field(
        default=12, gt=0, le=168, description="After how long without a request a dashboard session ends."
    )

    @property
    def longest_stream(self) -> timedelta:
        return timedelta(minutes=self.stream_minutes)

    @property
    def session_idle(self) -> timedelta:
        return timedelta(hours=self.session_idle_hours)

    most_connections: int = Field(
        default=1_000,
        ge=1,
        description="How many connections may be open; never more than the limit of open files allows.",
    )
    connections_per_address: int = Field(
        default=256, ge=1, description="How many connections one address may have open; trusted proxies are exempt."
    )
    trusted_proxies: Texts = Field(
        default=(),
        description="Proxies that may have any number of connections open: addresses, or networks in CIDR notation.",
    )
    request_seconds: float = Field(
        default=10,
        gt=0,
        le=_A_YEAR,
        description="How long the head of a request may take, and how long its body may stall.",
    )
    least_kilobytes_per_second: float = Field(
        default=8, gt=0, description="The slowest rate at which a request body may arrive, after its first seconds."
    )
    idle_seconds: float = Field(
        default=15, gt=0, le=_A_YEAR, description="How long a connection stays open between requests."
    )

    @field_validator("timezone")
    @classmethod
    def _zone_is_one(cls, zone: str) -> str:
        try:
            load_zone(zone)
        except InvalidInput as error:
            raise ValueError(f"cannot be used: {error}") from None
        return zone

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_addresses(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ip_network(proxy, strict=False)
            except ValueError:
                raise ValueError(
                    f"{quote_text(proxy)!r} is not an address, expected one such as 10.0.0.7 or 10.0.0.0/8"
                ) from None
        return proxies


def _refuse(problem: str | None) -> None:
    if problem:
        raise ValueError(problem)


class HandlerSettings(BaseModel):
    """What the built-in handlers may do and reach. Their variables have no section: `TIMEBALL_SHELL_ENABLED`."""

    secrets_dir: Path | None = Field(
        default=None,
        description="A folder with one file per secret, in addition to TIMEBALL_SECRET_... in the environment; "
        "..._HOSTS, ..._QUEUES and ..._HANDLERS beside a secret limit where it may be used.",
    )
    public_url: str | None = Field(
        default=None,
        description="Where people open the dashboard, such as https://timeball.example.com; messages of alerts link there.",
    )
    webhook_allow: Texts = Field(
        default=(), description="Private networks (CIDR) and hosts that webhooks may call, each with or without :port."
    )
    webhook_ports: Ports = Field(default=(80, 443, 8080, 8443), description="The ports that webhooks may call.")
    webhook_http: bool = Field(default=False, description="Whether webhooks may call public addresses without TLS.")
    webhook_signing_secrets: Texts = Field(
        default=(), description="The names of the secrets that sign webhooks without a secret of their own."
    )
    files_root: Path | None = Field(
        default=None, description="The folder that files are written to. Default: `files` in the data directory."
    )
    shell_enabled: bool = Field(default=False, description="Whether this worker runs shell commands.")
    shell_programs: Texts = Field(default=(), description="The programs that commands may run, as absolute paths.")
    shell_env: Texts = Field(
        default=(),
        description="The names of the environment variables that the payload of a command may set.",
    )
    shell_user: str | None = Field(
        default=None,
        description="The account that commands run as if the worker runs as root. Default: the account `nobody`. "
        "It must not be the account of the database server.",
    )
    shell_cpu_seconds: int = Field(
        default=600, ge=1, description="How much CPU time each process of a command may use."
    )
    shell_memory_mb: int = Field(default=1024, ge=16, description="How much memory each process of a command may use.")
    shell_file_mb: int = Field(default=1024, ge=0, description="The largest file a command may write.")
    shell_output_mb: int = Field(default=10, ge=1, le=1024, description="How much output of a command is read.")
    queue_allow: Texts = Field(
        default=(), description="The RabbitMQ and Redis servers that messages may be sent to, as host:port."
    )
    smtp_url: SecretStr | None = Field(
        default=None, description="The mail server: smtp://user:password@host:587, or smtps:// for TLS from the start."
    )
    smtp_from: str | None = Field(
        default=None, description="The sender of mail. Default: the user in the URL of the mail server."
    )
    smtp_recipients: Texts = Field(
        default=(), description="The addresses and domains that mail may be sent to. Empty: all."
    )

    @field_validator("smtp_url")
    @classmethod
    def _mail_server_is_one(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            example = "smtp://user:password@host:587"
            _refuse(server_url_problem(url.get_secret_value(), ("smtp", "smtps"), example))
        return url


class Settings(HandlerSettings, BaseSettings):
    """All settings of a process."""

    model_config = SettingsConfigDict(
        env_prefix="TIMEBALL_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        toml_file=SETTINGS_FILE,
    )

    host: str = Field(default="127.0.0.1", description="The address the API listens on.")
    port: int = Field(default=8080, ge=0, le=65535, description="The port the API listens on.")
    url_prefix: str = Field(
        default="",
        description="The path under which a proxy serves API and dashboard, such as /timeball.",
    )
    data_dir: Path = Field(default=Path(".timeball"), description="The folder of the embedded PostgreSQL and of files.")
    database_url: str | None = Field(default=None, description="The PostgreSQL to use. Default: the embedded one.")
    broker_url: SecretStr | None = Field(
        default=None,
        description="A broker that carries due work: redis:// or rediss://, amqp:// or amqps://. Default: none, PostgreSQL does.",
    )
    database_pool: int = Field(
        default=8,
        ge=2,
        le=200,
        description="How many connections a process opens at most, in addition to three of its own and one for enqueues in a tight loop.",
    )
    inline: bool | Literal["raise"] = Field(
        default=False,
        description=(
            "Whether enqueues of a program call their handlers at once, without a database; `raise` also raises the errors of handlers."
        ),
    )
    behind_pgbouncer: bool = Field(
        default=False, description="Whether the database is reached through PgBouncer in transaction mode."
    )
    database_silence_seconds: int = Field(
        default=8,
        ge=0,
        le=3_600,
        description=(
            "How long a connection to PostgreSQL may be silent before it is closed, by TCP keepalive and TCP_USER_TIMEOUT. 0 leaves "
            "that to the operating system; parameters of the URL take precedence."
        ),
    )
    database_answer_seconds: float = Field(
        default=10,
        gt=0,
        le=60,
        description=(
            "How long a node waits for a statement that should return at once, before it tries another connection; doubled after "
            "each failure in a row, up to a minute."
        ),
    )
    migrate: bool = Field(default=True, description="Whether a starting process brings the schema up to date.")
    shards: int = Field(
        default=64, ge=1, le=1024, description="Into how many shards a new database divides the schedule."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="The port where a worker or scheduler without an API serves its Prometheus metrics.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="The address of the metrics port.")
    otlp_metrics_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Where a worker or scheduler sends its metrics by OTLP over HTTP, such as http://collector:4318/v1/metrics; "
        "OTEL_EXPORTER_OTLP_HEADERS has the headers.",
    )
    otlp_metrics_seconds: float = Field(default=60, ge=1, le=3600, description="How often it sends them.")
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto", description="The format of log lines; auto is text on a terminal, and JSON otherwise."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is logged."
    )
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    housekeeping: HousekeepingSettings = HousekeepingSettings()
    api: ApiSettings = ApiSettings()
    watch: WatchSettings = WatchSettings()

    @field_validator("broker_url")
    @classmethod
    def _broker_is_one(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            example = "redis://host:6379/0 or amqp://host:5672/"
            _refuse(server_url_problem(url.get_secret_value(), BROKER_SCHEMES, example))
            _refuse(broker_parameter_problem(url.get_secret_value()))
        return url

    @field_validator("database_url")
    @classmethod
    def _database_is_one(cls, url: str | None) -> str | None:
        if url is not None:
            _refuse(database_url_problem(url))
        return url

    @field_validator("url_prefix")
    @classmethod
    def _prefix_is_a_path(cls, prefix: str) -> str:
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(
                f'is "{quote_text(prefix)}", expected a path such as /timeball: each part begins with / and consists of '
                "letters, digits and . _ ~ -, without a / at the end"
            )
        return prefix

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**given: Any) -> Settings:
    """Read the settings; SettingsError lists all problems, each with the place it was written at."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError(SettingSources(Settings, given).describe(error.errors(include_url=False))) from None
    except Undecodable as error:
        raise SettingsError(undecodable_sections(Settings) or [str(error)]) from None
    except (OSError, ValueError) as error:
        raise SettingsError([f"{SETTINGS_FILE} cannot be read: {error}"]) from None


def find_unknown_variables() -> list[UnknownVariable]:
    """Variables with our prefix that nothing reads, most likely because of a typo."""
    return unknown_variables(Settings, os.environ)
