"""Settings: read once, checked once, handed to each part as its own section.

Defaults, then a file (`timeball.toml`), then the environment (`TIMEBALL_...`), then flags. All problems are reported together.
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
from timeball.domain.node import Lease
from timeball.domain.values.text import check_label
from timeball.errors import InvalidInput, SettingsError, quote_text

BROKER_SCHEMES = {"redis": "redis", "rediss": "redis", "amqp": "rabbitmq", "amqps": "rabbitmq"}
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
# Longer than anybody waits, and short enough for a clock.
_A_YEAR = 366 * 86_400


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# In the environment a list is written `a, b, c`.
Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Ports = Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], NoDecode, BeforeValidator(_split)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _LeaseSection(_Section):
    """A section of nodes that hold leases."""

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
        default=10, gt=0, le=_A_YEAR, description="How long a scheduler is believed alive after a renewal."
    )
    renew_seconds: float = Field(default=3, gt=0, le=_A_YEAR, description="How often a scheduler renews its lease.")
    promotion_window_ms: int = Field(
        default=500, ge=1, le=10_000, description="How long before its time an execution is promoted."
    )
    look_ahead_seconds: float = Field(default=3, ge=2, le=60, description="How far ahead a scheduler reads.")
    batch: int = Field(default=1_000, ge=1, le=10_000, description="The most rows one promotion moves.")
    page: int = Field(default=2_000, ge=1, le=50_000, description="The most rows of a shard that one reading takes.")
    definitions: int = Field(default=100_000, ge=100, description="How many job definitions are kept in memory.")

    @property
    def promotion_window(self) -> timedelta:
        return timedelta(milliseconds=self.promotion_window_ms)

    @property
    def look_ahead(self) -> timedelta:
        return timedelta(seconds=self.look_ahead_seconds)


class WorkerSettings(_LeaseSection):
    """How a worker claims, runs and leaves."""

    slots: int = Field(default=20, ge=1, le=10_000, description="How many executions a worker runs together.")
    hold_limit: int = Field(
        default=500, ge=0, le=10_000, description="How many executions a worker holds for their instant."
    )
    queues: Texts = Field(default=(), description="The queues a worker serves; none named means all.")
    lease_seconds: float = Field(
        default=15, gt=0, le=_A_YEAR, description="How long a worker is believed alive after a renewal."
    )
    renew_seconds: float = Field(default=5, gt=0, le=_A_YEAR, description="How often a worker renews its lease.")
    retry_budget_per_second: float = Field(
        default=10,
        ge=0,
        description="How many retries a second a worker always allows a target: a handler, or a webhook's host.",
    )
    retry_budget_share: float = Field(
        default=0.2, ge=0, description="How many retries more for each first attempt at the same target."
    )
    grace_seconds: float = Field(
        default=30, ge=0, le=_A_YEAR, description="How long a leaving worker waits for what it runs."
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
    """How the dead are reaped and the past is trimmed."""

    reap_seconds: float = Field(default=2, gt=0, le=60, description="How often the reaper looks for the dead.")
    rollup_seconds: float = Field(
        default=5, gt=0, le=60, description="How often what has ended is folded into the rollups."
    )
    keep_days: int = Field(default=30, ge=1, description="How many days of history are kept.")
    keep_audit_days: int = Field(default=365, ge=1, description="How many days of the audit are kept.")
    days_ahead: int = Field(default=7, ge=1, le=60, description="For how many days ahead partitions are made.")


class ApiSettings(_Section):
    """How much one key may ask of one API process."""

    requests_per_second: float = Field(default=200, gt=0, description="How many requests a key may make, steadily.")
    request_burst: float = Field(default=1_000, ge=1, description="How many requests a key may make at a stretch.")
    concurrent_requests: int = Field(default=100, ge=1, description="How many requests of a key are answered together.")
    megabytes_per_second: float = Field(default=32, gt=0, description="How much a key may send, steadily.")
    megabyte_burst: float = Field(default=128, gt=0, description="How much a key may send at a stretch.")
    largest_body_megabytes: float = Field(default=1, gt=0, le=100, description="The largest body of a request.")
    largest_bulk_megabytes: float = Field(
        default=32, gt=0, le=1_000, description="The largest body of a request that creates many jobs."
    )
    largest_body_values: int = Field(
        default=200_000, ge=1_000, description="How many values (objects, lists, texts, numbers) a body may have."
    )
    largest_bulk_values: int = Field(
        default=500_000, ge=1_000, description="How many values the body of a request that creates many jobs may have."
    )
    stream_minutes: float = Field(
        default=60, gt=0, le=1_440, description="After how long a stream of events ends; its reader connects anew."
    )
    session_idle_hours: float = Field(
        default=12, gt=0, le=168, description="After how long without a request a session of the dashboard ends."
    )

    @property
    def longest_stream(self) -> timedelta:
        return timedelta(minutes=self.stream_minutes)

    @property
    def session_idle(self) -> timedelta:
        return timedelta(hours=self.session_idle_hours)

    most_connections: int = Field(
        default=1_000, ge=1, description="How many connections may be open; never more than the limit of files allows."
    )
    connections_per_address: int = Field(
        default=256, ge=1, description="How many connections one address may have open; proxies are exempt."
    )
    trusted_proxies: Texts = Field(
        default=(), description="Addresses (or CIDR) of proxies, which have as many connections open as they like."
    )
    request_seconds: float = Field(
        default=10,
        gt=0,
        le=_A_YEAR,
        description="How long the head of a request may take, and a body that stands still.",
    )
    least_kilobytes_per_second: float = Field(
        default=8, gt=0, description="How slowly a body may come, once the first seconds are over."
    )
    idle_seconds: float = Field(
        default=15, gt=0, le=_A_YEAR, description="How long a connection stays open between two requests."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            try:
                ip_network(one, strict=False)
            except ValueError:
                raise ValueError(
                    f"{quote_text(one)!r} is not an address, expected one such as 10.0.0.7 or 10.0.0.0/8"
                ) from None
        return given


def _refuse(problem: str | None) -> None:
    if problem:
        raise ValueError(problem)


class HandlerSettings(BaseModel):
    """What the handlers in the box may do and reach; the fields stand among the others: `TIMEBALL_SHELL_ENABLED`."""

    secrets_dir: Path | None = Field(
        default=None,
        description="A folder with one file per secret, besides TIMEBALL_SECRET_... in the environment; "
        "..._HOSTS, ..._QUEUES and ..._HANDLERS beside a secret say where it may go.",
    )
    webhook_allow: Texts = Field(
        default=(), description="Private targets of webhooks: CIDR or host name, each with or without :port."
    )
    webhook_ports: Ports = Field(default=(80, 443, 8080, 8443), description="The ports webhooks may go to.")
    webhook_http: bool = Field(default=False, description="Whether webhooks may go to public addresses without TLS.")
    webhook_signing_secrets: Texts = Field(
        default=(), description="The names of the secrets that sign webhooks which name none of their own."
    )
    files_root: Path | None = Field(
        default=None, description="The folder that files are written below; none means `files` in the data directory."
    )
    shell_enabled: bool = Field(default=False, description="Whether this worker runs commands at all.")
    shell_programs: Texts = Field(default=(), description="The programs it may run, as absolute paths.")
    shell_env: Texts = Field(
        default=(),
        description="The variables that the payload of a command may set, by their names; none means no others.",
    )
    shell_user: str | None = Field(
        default=None,
        description="As whom commands run if the worker is root; none means nobody. Not the account of the database.",
    )
    shell_cpu_seconds: int = Field(default=600, ge=1, description="The CPU time of a command's process.")
    shell_memory_mb: int = Field(default=1024, ge=16, description="The memory of a command's process.")
    shell_file_mb: int = Field(default=1024, ge=0, description="The largest file a command may write.")
    shell_output_mb: int = Field(default=10, ge=1, le=1024, description="How much a command may say.")
    queue_allow: Texts = Field(
        default=(), description="The RabbitMQ and Redis servers that messages may be put on, as host:port."
    )
    smtp_url: SecretStr | None = Field(
        default=None, description="The mail server: smtp://user:password@host:587, or smtps:// for TLS from the start."
    )
    smtp_from: str | None = Field(
        default=None, description="The sender of mail; none means the user of the mail server."
    )
    smtp_recipients: Texts = Field(
        default=(), description="Addresses and domains mail may go to; none named means all."
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
        description="The path below which a proxy shows API and dashboard, such as /timeball.",
    )
    data_dir: Path = Field(default=Path(".timeball"), description="Where the embedded PostgreSQL and files live.")
    database_url: str | None = Field(default=None, description="PostgreSQL to use; none means the embedded one.")
    broker_url: SecretStr | None = Field(
        default=None,
        description="A broker that carries due work: redis:// or rediss://, amqp:// or amqps://; none means PostgreSQL.",
    )
    database_pool: int = Field(
        default=8,
        ge=2,
        le=200,
        description="The most connections a process opens, besides three of its own, and one for enqueues in a tight loop.",
    )
    behind_pgbouncer: bool = Field(
        default=False, description="Whether the database is reached through PgBouncer in transaction mode."
    )
    database_silence_seconds: int = Field(
        default=8,
        ge=0,
        le=3_600,
        description=(
            "How long the other end of a connection to PostgreSQL may give no sign of life before it is given up, by TCP keepalive and "
            "TCP_USER_TIMEOUT; 0 leaves that to the operating system, and what the URL says of it goes before."
        ),
    )
    database_answer_seconds: float = Field(
        default=10,
        gt=0,
        le=60,
        description=(
            "How long a node waits for a statement that should answer at once, before it tries on another connection; "
            "twice as long after each time in a row, up to a minute."
        ),
    )
    migrate: bool = Field(default=True, description="Whether a starting process brings the schema up to date.")
    shards: int = Field(default=64, ge=1, le=1024, description="Into how many slices a new database cuts the schedule.")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="A port where a worker or scheduler alone lets Prometheus read it."
    )
    metrics_host: str = Field(default="127.0.0.1", description="The address of the metrics port.")
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto", description="How log lines look: auto is text in a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is logged."
    )
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    housekeeping: HousekeepingSettings = HousekeepingSettings()
    api: ApiSettings = ApiSettings()

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
                f'is "{quote_text(prefix)}", expected a path such as /timeball: with a / before each of its words, none at the '
                "end, and letters, digits and . _ ~ - in them"
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
    """Read the settings; SettingsError lists every problem at once, with where it comes from."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError(SettingSources(Settings, given).describe(error.errors(include_url=False))) from None
    except Undecodable as error:
        raise SettingsError(undecodable_sections(Settings) or [str(error)]) from None
    except (OSError, ValueError) as error:
        raise SettingsError([f"{SETTINGS_FILE} cannot be read: {error}"]) from None


def find_unknown_variables() -> list[UnknownVariable]:
    """What the environment has under our prefix and nothing reads: a typo, most likely."""
    return unknown_variables(Settings, os.environ)
