"""The fields of a job: the one table that every door reads.

`JobSpec` is the table. A line of it is the name, type and default of a field, and a `JobField` with the rest: what values it takes, which
column keeps it, how it is called and described. From `SPEC_FIELDS`, which is the same as a mapping, come

- the checks of `define_job`, and how a job becomes a row and a row a job (`store.db.columns`, `store.db.rows`);
- the column lists of SQL statements, such as `{job_columns}` (`store.db.statements`);
- the bodies that the API takes, its descriptions, limits and examples, and the columns of exports;
- the options that a handler declares, and the words of the SDK;
- the form and the settings of a job in the dashboard, job files of the command line, and `docs/reference/jobs.md`.

Type checkers cannot read a table, so these lists repeat names of it: `Job` and `RetryPolicy` (`domain.job`, `domain.policies`), `JobOut`,
`JobOptionParams` and `JobParams` (`api.models.jobs`), `PreviewIn` (`api.models.system`), and the typed dictionaries of `sdk.options`.
By choice a part of the names also stands in `JOB_FIELDS` (`domain.search`), in `_PLACED` of `dashboard.pages.job_form`, and in
`docs/reference/sdk.md` and `search.md`. `tests/domain/test_job_fields.py` compares all of these with this table, and the table with the
schema; `tests/dashboard/test_job_fields.py` reads the form and the page of a job. On the command line some fields have options of their own
(`cli.job_options`); `--set` takes all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from datetime import datetime
from enum import Flag, StrEnum, auto
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Final, TypeAlias, assert_never, get_args, get_type_hints

from timeball.domain.policies import (
    DEFAULT_MISFIRE_CAP,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TIMEOUT_MS,
    Delivery,
    IfExists,
    Misfire,
    OnGap,
    OnRepeat,
    Overlap,
    Policy,
    Shift,
)

MAX_INT32: Final = 2**31 - 1
MAX_META_BYTES: Final = 4_096
MAX_EXPECT_BYTES: Final = 1_024
MAX_FOLLOW_UP_BYTES: Final = 256 * 1024
MAX_SPAN_MS: Final = 366 * 24 * 3600 * 1000


# What values a field takes.


@dataclass(frozen=True, slots=True)
class Label:
    """Short text that names something: not blank, no control characters."""

    longest: int = 200


@dataclass(frozen=True, slots=True)
class Text:
    """Text; may be empty."""

    longest: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number. A name that ends in `_seconds` or `_ms` is a span: people read and write `1h30m`."""

    least: int
    most: int
    column_type: str = "integer"


@dataclass(frozen=True, slots=True)
class Choice:
    """A word of an enum. With *flag* the column is a boolean of that word's name: whether it is the word that was chosen."""

    words: type[Policy]
    flag: Policy | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """A list of labels, each once."""

    most: int


@dataclass(frozen=True, slots=True)
class Spans:
    """A list of spans in milliseconds; people read and write `5s, 30s`."""

    most: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A span in whole seconds, from one up."""


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant; one without an offset is on the clock of `timezone`."""


@dataclass(frozen=True, slots=True)
class Json:
    """Any JSON."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A small JSON object: texts as keys, any JSON as values, up to *most_bytes* as JSON."""

    most_bytes: int


@dataclass(frozen=True, slots=True)
class FollowUp(JsonObject):
    """A call that follows the end of an execution, as `domain.follow_ups` reads it."""


@dataclass(frozen=True, slots=True)
class Expectations(JsonObject):
    """What is expected of a job, as `domain.expectations` reads it."""


ValueRule: TypeAlias = Label | Text | Whole | Choice | Labels | Spans | Interval | Instant | Json | JsonObject


class Section(StrEnum):
    """What a field is about; forms and pages show fields by section."""

    WHAT = "What"
    WHEN = "When"
    HOW = "How"


WHAT, WHEN, HOW = Section


class Mark(Flag):
    """What else is true of a field."""

    # A handler may declare a value for all of its jobs; a job that says nothing takes it.
    HANDLER_OPTION = auto()
    # Many one-offs have it, so the statements of the plain enqueue write it. A one-off with any other field takes a longer way.
    PLAIN = auto()
    # The column is NULL for a job that does not recur: the field means nothing to it.
    RECURRENCE = auto()
    # The column is NULL in place of the default.
    SPARSE = auto()


HANDLER_OPTION, PLAIN, RECURRENCE, SPARSE = Mark
_NO_MARKS = Mark(0)


@dataclass(frozen=True, slots=True)
class JobField:
    """A line of the table. *name*, *default*, *is_required* and *is_optional* (it may be null) are those of the attribute of `JobSpec`.

    *sdk_word* is the name of the SDK's option, if that is not the field's name without its unit.
    """

    section: Section
    label: str
    rule: ValueRule
    marks: Mark = _NO_MARKS
    _: KW_ONLY
    about: str
    sdk_word: str = ""
    name: str = ""
    default: Any = None
    is_required: bool = False
    is_optional: bool = False

    @property
    def is_handler_option(self) -> bool:
        return Mark.HANDLER_OPTION in self.marks

    @property
    def is_plain(self) -> bool:
        return Mark.PLAIN in self.marks

    @property
    def is_of_recurrence(self) -> bool:
        return Mark.RECURRENCE in self.marks

    @property
    def is_sparse(self) -> bool:
        return Mark.SPARSE in self.marks

    @property
    def unit(self) -> str | None:
        """The unit of a span: `ms` or `seconds`; None for what is not a span."""
        suffix = self.name.rpartition("_")[2]
        return suffix if suffix in ("ms", "seconds") else None

    @property
    def bare_name(self) -> str:
        """The name without its unit, for doors where a span is written with its unit: `30s`."""
        return self.name.removesuffix(f"_{self.unit}")

    @property
    def word(self) -> str:
        """The name of the option of the SDK."""
        return self.sdk_word or self.bare_name

    @property
    def is_text(self) -> bool:
        """Whether its values are text, so that a name such as 2026 stays a name."""
        return isinstance(self.rule, Label | Text | Choice | Instant)

    @property
    def column(self) -> str:
        """The column that keeps it."""
        match self.rule:
            case Choice(flag=Policy() as flag):
                return flag.value
            case _:
                return self.name

    @property
    def column_type(self) -> str:
        """The type of its column."""
        match self.rule:
            case Whole(column_type=column_type):
                return column_type
            case Choice(flag=Policy()):
                return "boolean"
            case Label() | Text() | Choice():
                return "text"
            case Interval():
                return "bigint"
            case Instant():
                return "timestamptz"
            case Labels():
                return "text[]"
            case Spans():
                return "bigint[]"
            case Json() | JsonObject():
                return "jsonb"
            case _:
                assert_never(self.rule)


# A field in two lines reads as a table; the formatter would make it ten.
# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as a caller asks for it: nothing is checked yet. The attributes are the table of the fields of a job."""

    name: Annotated[str | None, JobField(WHAT, "Name", Label(),
        about="Unique among jobs; commands and addresses take it in place of the id.")] = None
    description: Annotated[str | None, JobField(WHAT, "Description", Text(10_000), PLAIN,
        about="What the job is for.")] = None
    handler: Annotated[str, JobField(WHAT, "Handler", Label(), PLAIN,
        about="The name of the code that runs.")]
    payload: Annotated[Any, JobField(WHAT, "Payload", Json(),
        about="What the handler is given: any JSON, up to 256 KB, with references to the run.")] = field(default_factory=dict)
    tags: Annotated[tuple[str, ...], JobField(WHAT, "Tags", Labels(50), HANDLER_OPTION | PLAIN | SPARSE,
        about="Words to find jobs by.")] = ()
    owner: Annotated[str | None, JobField(WHAT, "Owner", Label(),
        about="What the job belongs to, such as a row of a program's own tables: `query:17`.")] = None
    meta: Annotated[dict[str, Any] | None, JobField(WHAT, "Meta", JsonObject(MAX_META_BYTES), PLAIN,
        about="A JSON object about its executions that is no argument, such as a tenant; up to 4 KB.")] = None

    schedule: Annotated[str | None, JobField(WHEN, "Cron expression", Text(1_000),
        about="A cron expression (`H` is a value that the name of the job decides), a recurrence rule of calendars "
        "(`RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9`), or `manual`: only when it is triggered. "
        "A job with no time at all runs now, once.")] = None
    interval_seconds: Annotated[int | float | None, JobField(WHEN, "Every", Interval(),
        about="The job runs every so many whole seconds.")] = None
    scheduled_at: Annotated[datetime | str | None, JobField(WHEN, "At", Instant(), sdk_word="at",
        about="The instant of a one-off, or the first instant of an interval.")] = None
    after: Annotated[str | None, JobField(WHEN, "After", Label(),
        about="The name of another job: this one runs after each success of an occurrence of that, and is for the same instant.")] = None
    timezone: Annotated[str, JobField(WHEN, "Zone", Text(200), PLAIN | SPARSE,
        about="The IANA time zone of the schedule, and of instants without an offset.")] = "UTC"
    on_gap: Annotated[OnGap | str, JobField(WHEN, "If a clock change skips it", Choice(OnGap),
        about="What becomes of a wall time that a clock change skips.")] = OnGap.NEXT_VALID
    on_repeat: Annotated[OnRepeat | str, JobField(WHEN, "If a clock change repeats it", Choice(OnRepeat),
        about="What becomes of a wall time that a clock change repeats.")] = OnRepeat.FIRST
    skip_on: Annotated[tuple[str, ...], JobField(WHEN, "Not on the days of", Labels(10), SPARSE,
        about="The names of calendars whose days are left out.")] = ()
    only_on: Annotated[tuple[str, ...], JobField(WHEN, "Only on the days of", Labels(10), SPARSE,
        about="The names of calendars: on other days than theirs the job does not run.")] = ()
    shift: Annotated[Shift | str, JobField(WHEN, "On such a day", Choice(Shift), SPARSE,
        about="What becomes of an occurrence on a day of `skip_on`.")] = Shift.NONE
    starts_at: Annotated[datetime | str | None, JobField(WHEN, "Not before", Instant(),
        about="No occurrence lies before this instant.")] = None
    ends_at: Annotated[datetime | str | None, JobField(WHEN, "Not after", Instant(),
        about="No occurrence lies after this instant.")] = None
    max_executions: Annotated[int | None, JobField(WHEN, "Stop after so many executions", Whole(1, 2**62, "bigint"),
        about="After so many executions the schedule ends.")] = None
    pause_after_failures: Annotated[int | None, JobField(WHEN, "Pause after failures", Whole(1, 1_000),
        about="After so many dead executions in a row the job is paused; a resumption or an edit begins the count anew.")] = None
    jitter_seconds: Annotated[int, JobField(WHEN, "Jitter", Whole(0, 86_400), SPARSE,
        about="Spreads jobs that are due together: each runs up to so many seconds late, always by the same span.")] = 0
    misfire_grace_seconds: Annotated[int, JobField(WHEN, "If missed by more than", Whole(0, 366 * 86_400), RECURRENCE,
        about="An occurrence that is later than this is a misfire.")] = 30
    misfire: Annotated[Misfire | str, JobField(WHEN, "Then", Choice(Misfire), RECURRENCE,
        about="What becomes of an occurrence that is a misfire.")] = Misfire.LATEST
    misfire_cap: Annotated[int, JobField(WHEN, "Missed runs at most", Whole(1, 10_000), RECURRENCE,
        about="How many misfires run at most, where `misfire` is `all`.")] = DEFAULT_MISFIRE_CAP
    misfire_max_age_seconds: Annotated[int | None, JobField(WHEN, "Missed runs not older than", Whole(0, 2**40, "bigint"), RECURRENCE,
        about="A misfire that is older than this does not run.")] = None
    overlap: Annotated[Overlap | str, JobField(WHEN, "If the previous execution is unfinished", Choice(Overlap), RECURRENCE,
        about="What becomes of an occurrence while an earlier execution of the job is unfinished.")] = Overlap.SKIP

    queue: Annotated[str, JobField(HOW, "Queue", Label(), HANDLER_OPTION | PLAIN,
        about="Where executions wait for a worker.")] = DEFAULT_QUEUE
    priority: Annotated[int, JobField(HOW, "Priority", Whole(0, 100, "smallint"), HANDLER_OPTION | PLAIN,
        about="Higher first; low 25, normal 50, high 75, critical 100.")] = DEFAULT_PRIORITY
    max_retries: Annotated[int, JobField(HOW, "Retries", Whole(0, MAX_INT32), HANDLER_OPTION | PLAIN, sdk_word="retries",
        about="How many more attempts follow a failed first one.")] = 3
    max_lost: Annotated[int, JobField(HOW, "Lost attempts", Whole(1, MAX_INT32), HANDLER_OPTION | PLAIN,
        about="How many workers may die over an execution before it is given up.")] = 3
    initial_backoff_ms: Annotated[int, JobField(HOW, "Initial retry delay", Whole(0, MAX_SPAN_MS, "bigint"), HANDLER_OPTION | PLAIN,
        sdk_word="backoff", about="The pause before the first retry; it doubles with each further one.")] = 1_000
    max_backoff_ms: Annotated[int, JobField(HOW, "Longest retry delay", Whole(0, MAX_SPAN_MS, "bigint"), HANDLER_OPTION | PLAIN,
        about="The longest pause before a retry.")] = 3_600_000
    backoff_ms: Annotated[tuple[int, ...], JobField(HOW, "Pauses", Spans(100), HANDLER_OPTION | SPARSE,
        about="The pauses before the first, the second and each further retry, to the millisecond; the last one repeats. Without any they "
        "grow from the first pause to the longest.")] = ()
    timeout_ms: Annotated[int | None, JobField(HOW, "Time limit", Whole(1, MAX_SPAN_MS, "bigint"), HANDLER_OPTION | PLAIN,
        about="How long an attempt may take; null lets it take as long as it likes.")] = DEFAULT_TIMEOUT_MS
    delivery: Annotated[Delivery | str, JobField(HOW, "Delivery", Choice(Delivery, flag=Delivery.AT_MOST_ONCE), HANDLER_OPTION | PLAIN,
        about="Whether an attempt whose end is unknown is repeated.")] = Delivery.AT_LEAST_ONCE
    max_running: Annotated[int | None, JobField(HOW, "Concurrent executions at most", Whole(1, MAX_INT32), HANDLER_OPTION,
        about="How many executions may run together, across all workers.")] = None
    limit_key: Annotated[str | None, JobField(HOW, "Limit key", Label(),
        about="Jobs with the same key share one limit of `max_running`.")] = None
    unique_key: Annotated[str | None, JobField(HOW, "Unique key", Label(), sdk_word="key",
        about="At most one unfinished execution has this key.")] = None
    if_exists: Annotated[IfExists | str, JobField(HOW, "If the key is taken", Choice(IfExists), SPARSE,
        about="What an enqueue does with a waiting execution that has its `unique_key`.")] = IfExists.KEEP
    unique_for_seconds: Annotated[int | None, JobField(HOW, "Unique for", Whole(1, 366 * 86_400),
        about="The `unique_key` stays taken so long after the time of the execution, even if that has ended.")] = None
    start_within_seconds: Annotated[int | None, JobField(HOW, "Start within", Whole(1, 366 * 86_400), HANDLER_OPTION, sdk_word="expires",
        about="An execution that has not begun so long after its time is skipped, for the reason `expired`.")] = None
    expires_at: Annotated[datetime | str | None, JobField(HOW, "Expires at", Instant(), sdk_word="expires",
        about="A one-off that has not begun by this instant is skipped, for the reason `expired`.")] = None

    on_success: Annotated[dict[str, Any] | None, JobField(HOW, "On success", FollowUp(MAX_FOLLOW_UP_BYTES),
        about='What is called when an execution has succeeded, such as `{"handler": "mail.send", "payload": {}}`.')] = None
    on_failure: Annotated[dict[str, Any] | None, JobField(HOW, "On failure", FollowUp(MAX_FOLLOW_UP_BYTES),
        about="What is called when an execution has ended otherwise: dead, cancelled or skipped.")] = None
    expect: Annotated[dict[str, Any] | None, JobField(HOW, "Expect", Expectations(MAX_EXPECT_BYTES), HANDLER_OPTION,
        about='What is expected of the job, such as `{"start_within": "1m", "succeed_every": "26h"}`: an alert opens while it is not so. '
        "A one-off has none.")] = None

    @property
    def has_time(self) -> bool:
        """Whether it says when the job runs. A new job that does not runs now; an edit or a declaration has to say it."""
        return any(getattr(self, name) is not None for name in TIME_FIELDS)

    @property
    def is_one_off(self) -> bool:
        """Whether it runs once: it names no rhythm and no job that it comes after."""
        return self.schedule is None and self.interval_seconds is None and self.after is None
# fmt: on


# The fields that say when a job runs: one of them is given, or none.
TIME_FIELDS: Final = ("schedule", "interval_seconds", "scheduled_at", "after")


def _read_table() -> Mapping[str, JobField]:
    hints = get_type_hints(JobSpec, include_extras=True)
    table: dict[str, JobField] = {}
    for attribute in fields(JobSpec):
        type_, line = get_args(hints[attribute.name])
        default = attribute.default_factory() if attribute.default_factory is not MISSING else attribute.default
        table[attribute.name] = replace(
            line,
            name=attribute.name,
            default=None if default is MISSING else default,
            is_required=default is MISSING,
            is_optional=NoneType in get_args(type_),
        )
    return MappingProxyType(table)


SPEC_FIELDS: Final[Mapping[str, JobField]] = _read_table()

# The fields that are lists: a request gives them as JSON has them, a spec holds them as tuples.
LIST_FIELDS: Final = tuple(name for name, line in SPEC_FIELDS.items() if isinstance(line.rule, Labels | Spans))

# The pauses that grow. A list of pauses goes before them, so one of them that is given takes the list's place.
GROWING_BACKOFF: Final = frozenset({"initial_backoff_ms", "max_backoff_ms"})

# The fields that a handler's declaration gives to its jobs.
OPTION_FIELDS: Final = tuple(name for name, line in SPEC_FIELDS.items() if line.is_handler_option)


def json_default(line: JobField) -> Any:
    """The default of a field as JSON has it."""
    match line.rule:
        case Choice():
            return line.default.value
        case Labels() | Spans():
            return list(line.default)
        case _:
            return line.default
