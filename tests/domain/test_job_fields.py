"""The table of a job's fields, compared with everything that repeats a part of it: typed lists, words of policies, the schema, the form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from pydantic import BaseModel

from timeball.api.auth import Role
from timeball.api.models import executions as execution_models
from timeball.api.models import jobs as job_models
from timeball.api.models import metrics as metrics_models
from timeball.api.models import system as system_models
from timeball.api.models.jobs import JobIn, JobOptionParams, JobOut, JobParams, JobPatch, Moment
from timeball.api.models.system import PreviewIn
from timeball.application.queries.timeline import RowsBy
from timeball.cli.views import JOB_DETAILS
from timeball.dashboard.pages import job_form
from timeball.domain.bulk_operation import OperationAction, OperationState, OperationSubject
from timeball.domain.execution import DueKind, ExecutionState, Origin
from timeball.domain.explain.diagnosis import DiagnosisStatus
from timeball.domain.explain.facts import GateVerdict
from timeball.domain.forecast.timeline import TimelineMarkKind
from timeball.domain.handler import RunStyle
from timeball.domain.job import JOB_ATTRIBUTES, RETRY_FIELDS, Job, JobStatus, define_job, spec_values
from timeball.domain.job_changes import SyncAction
from timeball.domain.job_fields import (
    LIST_FIELDS,
    OPTION_FIELDS,
    SPEC_FIELDS,
    TIME_FIELDS,
    Choice,
    Expectations,
    FollowUp,
    Instant,
    JobField,
    JobSpec,
    Json,
    JsonObject,
    Label,
    Labels,
    Section,
    Spans,
    Text,
    Whole,
)
from timeball.domain.node import BrokerState, NodeKind
from timeball.domain.policies import Delivery, Misfire, OnGap, OnRepeat, Overlap, RetryPolicy
from timeball.domain.rollup import RollupPeriod
from timeball.domain.scheduling.cron import NoteKind
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.search import EXECUTION_FIELDS, JOB_FIELDS, SearchField
from timeball.domain.values import ids, text
from timeball.sdk import options as sdk
from timeball.store.db.columns import job_columns
from timeball.store.store import Store

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

# The type of a field's values, as a program reads them in an answer.
ANSWERED: dict[type, Any] = {
    Label: str,
    Text: str,
    Whole: int,
    Choice: str,
    Labels: list[str],
    Spans: list[int],
    Instant: datetime,
    Json: Any,
    JsonObject: dict[str, Any],
    FollowUp: dict[str, Any],
    Expectations: dict[str, Any],
}


def answered(line: JobField) -> Any:
    type_ = ANSWERED.get(type(line.rule), int)
    return type_ | None if line.is_optional else type_


def a_job(**spec: Any) -> Job:
    return define_job(JobSpec(handler="h", **spec), ids.JobId(UUID(int=1)), datetime(2026, 1, 1, tzinfo=UTC), 16)


# The typed lists.


def test_a_job_holds_every_field() -> None:
    assert spec_values(a_job()).keys() == SPEC_FIELDS.keys()
    assert JobSpec(**spec_values(a_job(schedule="@daily")) | {"payload": {}}) == JobSpec(handler="h", schedule="@daily")


@pytest.mark.parametrize("name", JOB_ATTRIBUTES)
def test_an_attribute_of_a_job_has_the_type_of_its_field(name: str) -> None:
    asked = get_type_hints(JobSpec)[name]
    held = get_type_hints(Job)[name]

    is_choice = isinstance(SPEC_FIELDS[name].rule, Choice)
    assert asked == (held | str if is_choice else held)


def test_the_retry_policy_has_the_types_and_defaults_of_its_fields() -> None:
    hints = get_type_hints(RetryPolicy)

    for attribute in fields(RetryPolicy):
        assert attribute.default == SPEC_FIELDS[attribute.name].default
        assert hints[attribute.name] == get_type_hints(JobSpec)[attribute.name]


def test_an_answer_tells_every_field_with_its_type_and_its_sentence() -> None:
    told = {name: info for name, info in JobOut.model_fields.items() if name in SPEC_FIELDS}

    assert {name: info.annotation for name, info in told.items()} == {n: answered(f) for n, f in SPEC_FIELDS.items()}
    assert all(info.description == SPEC_FIELDS[name].about for name, info in told.items())


def test_the_client_takes_every_field_with_its_type() -> None:
    hints = get_type_hints(JobParams)
    instants = {name: Moment | None for name, line in SPEC_FIELDS.items() if isinstance(line.rule, Instant)}
    kinds = {Labels: "tags", Spans: "backoff_ms"}
    lists = {name: get_type_hints(JobOptionParams)[kinds[type(SPEC_FIELDS[name].rule)]] for name in LIST_FIELDS}
    others = {"name": str, "interval_seconds": float | None} | lists

    assert hints == {n: answered(f) for n, f in SPEC_FIELDS.items()} | instants | others | {"unchecked": bool}


@pytest.mark.parametrize("model", [JobIn, JobPatch])
def test_a_request_takes_every_field(model: type[BaseModel]) -> None:
    assert model.model_fields.keys() == SPEC_FIELDS.keys() | {"unchecked"}


@pytest.mark.parametrize("name", sorted(PreviewIn.model_fields.keys() & SPEC_FIELDS.keys() - {"queue"}))
def test_a_schedule_to_look_at_takes_what_a_job_takes(name: str) -> None:
    properties = [model.model_json_schema()["properties"][name] for model in (PreviewIn, JobIn)]
    for schema in properties:
        schema.pop("description", None)

    assert properties[0] == properties[1]


def test_the_sdk_has_a_word_for_every_field() -> None:
    shared = {SPEC_FIELDS[name].word for name in OPTION_FIELDS}
    words = {line.word for line in SPEC_FIELDS.values()}
    # What an option of the SDK cannot be: it is an argument, or another word says it.
    apart = {"handler", "payload", "schedule", "interval", "after"}

    # Nothing is expected of a one-off.
    assert sdk.SharedOptions.__optional_keys__ == shared - {"expect"}
    assert shared < words
    of_occurrences = {line.word for line in SPEC_FIELDS.values() if line.section is Section.WHEN} - {"at", "timezone"}
    # A schedule has a rhythm in place of an instant, and its executions have no key. A one-off has no name, no owner and no rhythm.
    assert sdk.ScheduleOptions.__optional_keys__ - sdk._NOT_FIELDS == words - apart - {
        "at",
        "key",
        "if_exists",
        "unique_for",
    }
    assert sdk.EnqueueOptions.__optional_keys__ - sdk._NOT_FIELDS == (
        words - apart - of_occurrences - {"name", "description", "owner", "expect"}
    )
    assert sdk.HandlerDeclaration.__optional_keys__ - sdk._OF_HANDLER == shared


def listed_options(column: int) -> set[str]:
    """The options that a column of the table in the reference of the SDK ticks."""
    page = (REFERENCE / "sdk.md").read_text(encoding="utf-8")
    table = page.partition("| option | handler | schedule | enqueue | |")[2].partition("\n\n")[0]
    lines = [line.split("|") for line in table.splitlines() if "`" in line]
    return {word for line in lines if "✓" in line[column] for word in re.findall(r"`(\w+)`", line[1])}


@pytest.mark.parametrize(
    ("column", "options"), [(2, sdk.HandlerDeclaration), (3, sdk.ScheduleOptions), (4, sdk.EnqueueOptions)]
)
def test_the_reference_of_the_sdk_lists_every_option(column: int, options: Any) -> None:
    assert listed_options(column) == options.__optional_keys__


@pytest.mark.parametrize(("subject", "searched"), [("jobs", JOB_FIELDS), ("executions", EXECUTION_FIELDS)])
def test_the_reference_of_the_search_lists_every_field(subject: str, searched: Mapping[str, SearchField]) -> None:
    page = (REFERENCE / "search.md").read_text(encoding="utf-8")
    table = page.partition("| field | of | value |")[2].partition("\n\n")[0]
    lines = [line.split("|") for line in table.splitlines() if "`" in line]

    listed = {
        word for line in lines if line[2].strip() in ("both", subject) for word in re.findall(r"`(\w+)[`.]", line[1])
    }

    assert listed == searched.keys()


def test_a_search_for_jobs_reads_columns_of_jobs() -> None:
    columns = {line.column for line in SPEC_FIELDS.values()} | {"kind"}

    assert {field.column for field in JOB_FIELDS.values() if field.column} <= columns


def test_sizes_are_those_of_other_texts() -> None:
    assert SPEC_FIELDS["description"].rule == Text(text.MAX_DESCRIPTION)
    assert Label() == Label(text.MAX_LABEL)


# The lists of words.

CHOICES = {name: line.rule.words for name, line in SPEC_FIELDS.items() if isinstance(line.rule, Choice)}


@pytest.mark.parametrize("known", [sdk.SharedOptions, sdk.ScheduleOptions])
def test_the_sdk_has_the_words_of_each_policy(known: type) -> None:
    for word, hint in get_type_hints(known).items():
        if word in CHOICES:
            (literal,) = (part for part in get_args(hint) if get_origin(part) is Literal)
            assert get_args(literal) == tuple(CHOICES[word])
            assert CHOICES[word] in get_args(hint)


def test_each_word_says_what_it_does() -> None:
    for words in CHOICES.values():
        assert len({word.about for word in words} - {""}) == len(words)


@pytest.mark.parametrize("name", ["misfire", "overlap"])
def test_the_guide_to_time_explains_each_word(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "time.md").read_text(encoding="utf-8")
    table = page.partition(f"| `{name}` | what happens |")[2].partition("\n\n")[0]

    assert set(re.findall(r"(?m)^\| `(\w+)`", table)) == set(CHOICES[name])


# The literals of the API, each with the enum whose words they are. A literal that no enum has is not a list of ours.
API_WORDS: dict[tuple[str, str], type[StrEnum]] = {
    ("JobOut", "kind"): ScheduleKind,
    ("JobOut", "status"): JobStatus,
    ("SyncStepOut", "action"): SyncAction,
    ("ExecutionOut", "state"): ExecutionState,
    ("ExecutionOut", "origin"): Origin,
    ("OperationOut", "action"): OperationAction,
    ("OperationOut", "subject"): OperationSubject,
    ("OperationOut", "state"): OperationState,
    ("NodeOut", "kind"): NodeKind,
    ("NodeOut", "broker_state"): BrokerState,
    ("HandlerOut", "run_style"): RunStyle,
    ("FireTimeOut", "note"): NoteKind,
    ("DiagnosisOut", "status"): DiagnosisStatus,
    ("DoctorOut", "status"): DiagnosisStatus,
    ("GateOut", "verdict"): GateVerdict,
    ("MarkOut", "kind"): TimelineMarkKind,
    ("TimelineOut", "rows_by"): RowsBy,
    ("PreviewIn", "on_gap"): OnGap,
    ("PreviewIn", "on_repeat"): OnRepeat,
}


def models() -> Iterator[type[BaseModel]]:
    for module in (job_models, execution_models, metrics_models, system_models):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__:
                yield value


@pytest.mark.parametrize(("model", "name"), API_WORDS)
def test_the_api_has_the_words_of_each_enum(model: str, name: str) -> None:
    (found,) = (one for one in models() if one.__name__ == model)
    annotation = found.model_fields[name].annotation
    literals = [part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal]

    assert set(get_args(literals[0])) == set(API_WORDS[model, name])
    assert set(get_args(annotation)) - set(literals) - {NoneType} <= set(API_WORDS[model, name])


# The schema.

# The lists of words in constraints of the schema, by table and column.
SCHEMA_WORDS: dict[tuple[str, str], type[StrEnum]] = {
    ("job", "kind"): ScheduleKind,
    ("job", "on_gap"): OnGap,
    ("job", "on_repeat"): OnRepeat,
    ("job", "misfire"): Misfire,
    ("job", "overlap"): Overlap,
    ("due", "kind"): DueKind,
    ("node", "kind"): NodeKind,
    ("api_key", "role"): Role,
    ("operation", "action"): OperationAction,
    ("operation", "subject"): OperationSubject,
    ("operation", "state"): OperationState,
    ("rollup", "span"): RollupPeriod,
}
_WORDS = """
SELECT coalesce(nullif(conrelid, 0)::regclass::text, 'timeball.job') AS table, pg_get_constraintdef(oid) AS rule
FROM pg_constraint
WHERE contype = 'c'
  AND connamespace = 'timeball'::regnamespace
"""


async def rows(store: Store, query: str) -> list[Mapping[str, Any]]:
    async with store.database.connection() as connection:
        return list(await connection.fetch(query))


async def test_every_field_has_its_column(store: Store) -> None:
    columns = await rows(
        store,
        "SELECT attname AS name, format_type(atttypid, NULL) AS type, attnotnull AS is_required FROM pg_attribute"
        " WHERE attrelid = 'timeball.job'::regclass AND attnum > 0 AND NOT attisdropped",
    )
    types = {row["name"]: row["type"].replace("timestamp with time zone", "timestamptz") for row in columns}

    assert {line.column: types[line.column] for line in SPEC_FIELDS.values()} == {
        line.column: line.column_type for line in SPEC_FIELDS.values()
    }
    of_the_cause = {"follows", "follows_as", "continuation", "group_id"}
    assert job_columns(a_job()).keys() | {"created_at", "updated_at"} | of_the_cause == types.keys()
    # A column that is NULL for some jobs may be.
    required = {row["name"] for row in columns if row["is_required"]}
    empty = {
        line.column for line in SPEC_FIELDS.values() if line.is_optional or line.is_sparse or line.is_of_recurrence
    }
    assert not required & empty


async def test_the_schema_has_the_words_of_each_enum(store: Store) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for row in await rows(store, _WORDS):
        match = re.search(r"(\w+) = ANY \(+(?:ARRAY\[)(.*?)\]", row["rule"])
        if match:
            # A rule about some of the words may come before or after the one that lists them all.
            place = row["table"].removeprefix("timeball."), match[1]
            found[place] = max(found.get(place, set()), set(re.findall(r"'(\w+)'", match[2])), key=len)

    assert {place: words for place, words in found.items() if place in SCHEMA_WORDS} == {
        place: set(words) for place, words in SCHEMA_WORDS.items()
    }


async def test_the_schema_has_the_least_value_of_each_field(store: Store) -> None:
    least: dict[str, int] = {}
    for row in await rows(store, _WORDS):
        if row["table"] == "timeball.job" and (match := re.search(r"\(VALUE\)\.(\w+) >= '?(\d+)", row["rule"])):
            least[match[1]] = int(match[2])

    expected = {n: f.rule.least for n, f in SPEC_FIELDS.items() if isinstance(f.rule, Whole)} | {"interval_seconds": 1}
    assert {name: number for name, number in least.items() if name in expected} == expected


async def test_sql_knows_which_overlaps_are_serial(store: Store) -> None:
    words = ", ".join(f"('{word}')" for word in Overlap)
    serial = await rows(store, f"SELECT word FROM (VALUES {words}) AS overlap (word) WHERE timeball.is_serial(word)")

    assert {row["word"] for row in serial} == {word for word in Overlap if word.is_serial}


# The command line and the form.


def test_a_job_is_shown_with_every_field() -> None:
    job = {name: f"the {name}" for name in SPEC_FIELDS} | {"kind": "manual"}

    shown = [column.value(job) for column in JOB_DETAILS]

    # These are told in the words of the schedule.
    assert {name for name in SPEC_FIELDS if job[name] not in shown} == set(TIME_FIELDS)


def test_the_form_has_every_field() -> None:
    placed = job_form._PLACED | {name for names in job_form._MORE.values() for name in names}

    assert job_form._FIELDS.keys() >= job_form._PLACED
    assert placed == {line.bare_name for line in SPEC_FIELDS.values()} - {
        "schedule",
        "interval",
        "scheduled_at",
        "after",
        "payload",
    }


def test_what_the_form_shows_of_a_job_is_what_it_reads_back() -> None:
    job = {name: line.default for name, line in SPEC_FIELDS.items()} | {
        "kind": "manual",
        "schedule": "manual",
        "handler": "h",
        "name": "n",
        "version": 1,
        "tags": ["a", "b"],
        "skip_on": [],
        "only_on": [],
        "backoff_ms": [5_000, 90_500],
        "delivery": Delivery.AT_MOST_ONCE,
        "misfire_max_age_seconds": 90,
        "max_running": 3,
    }

    body = job_form.job_body(job_form.form_values(job))

    assert body == {name: job[name] for name in SPEC_FIELDS}


def test_retry_fields_are_fields() -> None:
    assert SPEC_FIELDS.keys() > set(RETRY_FIELDS)
