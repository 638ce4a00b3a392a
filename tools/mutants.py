"""Guards taken out, one at a time, each with the tests that must notice: `make mutants` does it, in a copy of the tree.

A mutant that lives means that a promise is kept by luck. `tests/tools/test_mutants.py` sees to it that this list keeps up with the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutant:
    """In *file*, *old* (found there once) becomes *new*; at least one of *tests* must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_SQL = "store/sql"
_OUTCOMES, _PROMOTE, _RACES = "tests/store/test_outcomes.py", "tests/store/test_promote.py", "tests/store/test_races.py"
_SCHEDULER, _REAPER, _LIFE = (
    "tests/engine/scheduler/test_scheduler.py",
    "tests/engine/scheduler/test_reaper.py",
    "tests/engine/test_node.py",
)
_KEYS = "tests/store/test_if_exists.py"
_WATCHED = "tests/domain/test_watch.py"
_HOOKS_OUT = "tests/engine/scheduler/test_webhooks.py"
_ALERTS, _ALERT_STORE, _ALERT_RULES = (
    "tests/engine/scheduler/test_alerts.py",
    "tests/store/test_alerts.py",
    "tests/domain/test_alerts.py",
)
_ALERT_ROUTES, _DELIVERIES = "tests/domain/test_alert_routes.py", "tests/handlers/builtin/test_alert_delivery.py"
_FREEZES = "tests/engine/scheduler/test_freezes.py"
_EXECUTOR, _HEARTBEAT = "tests/engine/worker/test_executor.py", "tests/engine/test_lease.py"
_LIFECYCLE, _OCCURRENCES = "tests/domain/test_lifecycle.py", "tests/domain/scheduling/test_occurrences.py"
_FOLLOW_UPS, _GROUPS = "tests/store/test_follow_ups.py", "tests/store/test_groups.py"
_AFTER = "tests/store/test_after.py"
_SCHEDULES = "tests/sdk/test_schedule_calls.py"
_RULES = "tests/domain/scheduling/test_rrule.py"
_CALENDARS, _CALENDAR_STORE = "tests/engine/scheduler/test_calendars.py", "tests/store/test_calendars.py"
_CALENDAR_RULES, _CALENDARS_OF_API = "tests/domain/scheduling/test_calendars.py", "tests/api/test_calendars.py"
_WATCH = "tests/engine/worker/test_contracts.py"
_HOOKS, _DEPENDENCIES = "tests/handlers/test_hooks.py", "tests/handlers/test_dependencies.py"
_RECORDER, _RUN_OUTCOME = "tests/engine/worker/test_recorder.py", "tests/engine/runners/test_outcome.py"
_THREADS, _PROCESSES = "tests/engine/runners/test_thread.py", "tests/engine/runners/test_process.py"
_LEDGER = "tests/application/queries/test_ledger.py"
_BACKFILLS = "tests/application/commands/test_backfills.py"
_REFERENCES, _WEBHOOK = "tests/engine/worker/test_references.py", "tests/handlers/builtin/test_webhook.py"
_FAILURE_LOG, _PRINTS = "tests/engine/runners/test_failure_log.py", "tests/engine/runners/test_print_capture.py"
_OTEL = "tests/contrib/test_otel.py"
_DISPATCHER, _RECEIVER = "tests/engine/test_ticket_publisher.py", "tests/engine/test_ticket_claimer.py"


# What comes behind the counters in the claim by lane, and only there: the claim by name ends otherwise.
_REST_OF_A_CLAIM = (
    "tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,\n"
    "           expires_at, :incarnation, :claim_id, coalesce(:now, now()),\n"
    "           greatest(coalesce(:now, now()), run_at) + timeout_ms * interval '1 millisecond' + interval '5 seconds', :is_limited"
)


# The rows of `due` that a sweep locks; and the statement of the sweep, in the store.
_SWEPT_DUE = """      AND NOT (kind = 'occurrence' AND origin = 'schedule')
    ORDER BY expires_at
    LIMIT :limit
    FOR UPDATE"""
_SWEEP = """        rows = await self._database.fetch("expire_waiting", limit=limit, reason=SkipReason.EXPIRED.value)
"""


def _one(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, old, new, tests)


_SUMMARIES = "tests/store/test_job_summaries.py"

MUTANTS = (
    # recurrence rules
    _one(
        "a rule that is said again counts anew",
        "domain/job.py",
        "    if isinstance(job.rule, Rrule) and is_rrule(",
        "    if False and is_rrule(",
        f"{_RULES}::test_a_rule_that_is_said_again_goes_on_counting_as_before",
    ),
    _one(
        "a rule without days is searched for ever",
        "domain/scheduling/rrule.py",
        "            interval=12 * date.max.year,\n",
        "            interval=1,\n",
        f"{_RULES}::test_a_rule_that_never_fires_is_refused_and_not_searched_for_ever",
    ),
    # backfills
    _one(
        "backfill twice",
        "store/backfills.py",
        "new = [request for request in requests if request.id not in existing]",
        "new = list(requests)",
        f"{_BACKFILLS}::test_two_backfills_that_have_chosen_the_same_occurrence_fill_it_in_once",
    ),
    _one(
        "a filling under a new id for each backfill",
        "domain/backfill.py",
        "if self.standing is Standing.MISSING:",
        "if False:",
        f"{_BACKFILLS}::test_two_backfills_that_have_chosen_the_same_occurrence_fill_it_in_once",
    ),
    _one(
        "backfills of a job that do not wait for each other",
        f"{_SQL}/operations.sql",
        "\nFOR NO KEY UPDATE;",
        ";",
        f"{_BACKFILLS}::test_a_backfill_waits_for_another_one_that_creates_executions_of_its_job",
    ),
    _one(
        "a skip range that counts what its version does not name",
        "store/backfills.py",
        "for request in new if request.scheduled_for in in_ranges]",
        "for request in new]",
        f"{_BACKFILLS}::test_a_range_counts_only_the_occurrences_that_its_own_version_names",
    ),
    _one(
        "a step of a backfill that is repeated",
        f"{_SQL}/operations.sql",
        "\n  AND cursor_at IS NOT DISTINCT FROM :previous::timestamptz",
        "\n  AND :previous::timestamptz IS NULL",
        f"{_BACKFILLS}::test_a_step_whose_reply_was_lost_is_not_repeated",
    ),
    _one(
        "a paused backfill that goes on",
        f"{_SQL}/operations.sql",
        "      AND (state <> 'paused' OR cancel_requested)\n",
        "",
        f"{_BACKFILLS}::test_a_paused_backfill_creates_nothing_until_it_is_resumed",
    ),
    _one(
        "an occurrence that is skipped because a backfill runs",
        f"{_SQL}/promotion.sql",
        " AND running.origin <> 'backfill'",
        "",
        f"{_BACKFILLS}::test_a_backfill_does_not_make_the_schedule_skip",
    ),
    _one(
        "an occurrence that is skipped because a backfill is ready",
        f"{_SQL}/promotion.sql",
        " AND ready.origin <> 'backfill'",
        "",
        f"{_BACKFILLS}::test_a_backfill_does_not_make_the_schedule_skip",
    ),
    _one(
        "an occurrence that is skipped because a backfill is tried again",
        f"{_SQL}/promotion.sql",
        "AND due.origin <> 'backfill'",
        "",
        f"{_BACKFILLS}::test_a_backfill_does_not_make_the_schedule_skip",
    ),
    _one(
        "an occurrence that stops a backfill",
        f"{_SQL}/limits.sql",
        "      AND origin <> 'backfill'\n",
        "",
        f"{_BACKFILLS}::test_under_a_limit_of_one_the_schedule_and_a_backfill_take_turns",
    ),
    _one(
        "a reaper that stops a backfill",
        f"{_SQL}/limits.sql",
        "  AND running.origin <> 'backfill'\n",
        "",
        f"{_BACKFILLS}::test_under_a_limit_of_one_the_schedule_and_a_backfill_take_turns",
    ),
    # what the code that does the work is told
    _one(
        "references resolved by the instant of the attempt",
        "engine/worker/executor.py",
        "scheduled_for=claimed.scheduled_for, execution_id",
        "scheduled_for=claimed.run_at, execution_id",
        f"{_REFERENCES}::test_a_retry_is_called_with_its_own_attempt_and_fence_and_with_the_same_instant",
    ),
    _one(
        "a retry with the attempt number of the first",
        "engine/worker/executor.py",
        "attempt=claimed.attempt, fence=claimed.fence",
        "attempt=1, fence=claimed.fence",
        f"{_REFERENCES}::test_a_retry_is_called_with_its_own_attempt_and_fence_and_with_the_same_instant",
    ),
    _one(
        "references resolved by the schedule of the present version",
        f"{_SQL}/jobs.sql",
        "WHERE id = :job_id\n  AND version = :version\nUNION ALL",
        "WHERE id = :job_id\nUNION ALL",
        f"{_REFERENCES}::test_the_schedule_is_that_of_the_version_that_the_execution_cites",
    ),
    _one(
        "a failed attempt for a schedule that cannot be read",
        "engine/worker/executor.py",
        "        except StoreUnavailable as error:\n            return Snoozed(",
        "        except NotImplementedError as error:\n            return Snoozed(",
        f"{_REFERENCES}::test_an_execution_whose_schedule_cannot_be_read_waits_without_a_failed_attempt",
    ),
    _one(
        "references unchecked for handlers that are not known here",
        "application/commands/requests.py",
        "        elif REFERENCE_MARK in payload:\n",
        "        elif False:\n",
        "tests/api/test_payload_references.py::test_a_wrong_reference_is_refused_at_every_door",
    ),
    _one(
        "a secret that a reference names",
        "domain/payload_references.py",
        "        elif _SECRET in value:\n",
        "        elif False:\n",
        "tests/domain/test_payload_references.py::test_a_wrong_reference_is_refused_with_its_place_and_what_was_expected",
    ),
    _one(
        "a payload that sets what a webhook tells",
        "handlers/builtin/webhook.py",
        '_RESERVED_PREFIXES = ("proxy-", HEADER_PREFIX)',
        '_RESERVED_PREFIXES = ("proxy-",)',
        f"{_WEBHOOK}::test_a_payload_that_could_never_be_sent_is_refused_when_the_job_is_created",
    ),
    _one(
        "a signature of headers by the key of the body",
        "handlers/occurrence.py",
        "[hmac.digest(key, _KEY_PURPOSE, hashlib.sha256) for key in keys]",
        "[*keys]",
        f"{_WEBHOOK}::test_what_a_signed_request_tells_is_signed_with_its_body_by_old_and_new_secret",
    ),
    # what runs
    _one(
        "a claim with the payload of another version",
        f"{_SQL}/claiming.sql",
        "CASE WHEN job.version = taken.version THEN job.payload ELSE timeball.payload_of(taken.job_id, taken.version) END",
        "job.payload",
        "tests/store/test_job_version.py::test_a_ready_occurrence_keeps_its_version",
    ),
    _one(
        "a claim with the meta of another version",
        f"{_SQL}/claiming.sql",
        "CASE WHEN job.version = taken.version THEN job.meta ELSE timeball.meta_of(taken.job_id, taken.version) END",
        "job.meta",
        "tests/store/test_job_version.py::test_a_queued_execution_has_the_meta_of_its_version",
    ),
    # errors, prints and traces
    _one(
        "a failed attempt that is told a second time in the log of its run",
        "current.py",
        "        if is_failure_record(record):\n            return\n",
        "",
        f"{_FAILURE_LOG}::test_the_record_is_no_line_of_the_run_and_is_not_written_to_stderr_beside_our_own_log",
    ),
    _one(
        "a worker that logs what its child has logged",
        "engine/runners/failure_log.py",
        "    if raised == LOGGED_BY_CHILD:\n        return None\n",
        "",
        f"{_FAILURE_LOG}::test_what_a_child_has_logged_and_what_has_not_failed_is_no_failure",
    ),
    _one(
        "a record that is written to a stream and is a second line",
        "engine/runners/print_capture.py",
        " and sys._getframe(1).f_code is not _WRITES_RECORDS",
        "",
        f"{_PRINTS}::test_a_record_that_goes_to_a_stream_is_kept_once_with_its_level",
    ),
    _one(
        "a word after the end of an attempt that opens a log which nothing closes",
        "engine/worker/recorder.py",
        "        if not self._is_running(context):\n            return _ClosedSink()\n",
        "",
        "tests/engine/worker/test_log_writer.py::"
        "test_what_an_attempt_has_left_behind_and_speaks_after_its_end_opens_no_log",
    ),
    _one(
        "a trace that an attempt has begun and no execution keeps",
        "engine/worker/recorder.py",
        "        if self._traces:\n            await self._write_traces(batch)\n",
        "",
        f"{_OTEL}::test_an_occurrence_of_a_schedule_begins_a_trace_that_its_retries_and_what_follows_keep",
    ),
    # code around runs, and before enqueues
    _one(
        "async code that leaves out plain functions without a word",
        "handlers/hooks.py",
        "if self.is_async and not self.coroutines_only and not is_async(handler):",
        "if False:",
        f"{_HOOKS}::test_async_code_around_a_plain_function_is_refused_whichever_comes_first",
    ),
    _one(
        "an attempt that failed around its handler and says that it succeeded",
        "handlers/layers.py",
        "            context.active_run.fail_with(error)\n",
        "            pass\n",
        f"{_HOOKS}::test_an_error_of_the_code_around_fails_the_attempt_and_the_code_outside_sees_it",
    ),
    _one(
        "a handler that was stopped and says that it succeeded",
        "current.py",
        "RunOutcome.STOPPED if context.is_halted and context.has_noticed else outcome",
        "outcome",
        f"{_HOOKS}::test_a_handler_that_stopped_because_it_was_asked_to_is_told_so",
    ),
    _one(
        "a context manager that swallows the error of a handler",
        "handlers/layers.py",
        "        if self._manager.__exit__(kind, error, traceback) and error is not None:\n            error",
        "        return self._manager.__exit__(kind, error, traceback)\n        if error is not None:\n            error",
        f"{_DEPENDENCIES}::test_what_is_provided_cannot_swallow_the_error_of_the_handler",
    ),
    _one(
        "a forked copy that closes what it shares with the worker",
        "handlers/layers.py",
        "        end_forked_copy(context)\n",
        "",
        f"{_DEPENDENCIES}::test_a_copy_that_the_handler_forked_closes_nothing",
    ),
    _one(
        "a dependency that is opened anew for each parameter",
        "handlers/dependencies.py",
        "    if provider.function in opened:\n        return opened[provider.function]\n    needs = {name: _open(",
        "    needs = {name: _open(",
        f"{_DEPENDENCIES}::test_what_a_handler_depends_on_is_opened_once_and_closed_in_reverse",
    ),
    _one(
        "a plain function that depends on what is async",
        "handlers/dependencies.py",
        "            if provider.is_async:",
        "            if False:",
        f"{_DEPENDENCIES}::test_what_could_never_be_provided_is_refused_at_the_declaration",
    ),
    _one(
        "a child without the start of its process",
        "engine/runners/child.py",
        "        hooks.start_child()\n",
        "",
        f"{_HOOKS}::test_a_child_has_the_code_around_its_runs_and_its_own_start_and_stop",
    ),
    _one(
        "many enqueues that no hook sees",
        "sdk/handlers.py",
        "        request = self._request_of(payloads)\n",
        "        request = self._request or _make_request(self._target, self._options)\n",
        "tests/sdk/test_enqueue_hooks.py::test_every_enqueue_and_schedule_is_seen_before_it_is_made",
    ),
    _one(
        "a hook that changes the meta of all enqueues of a handle",
        "sdk/enqueue_hooks.py",
        "{} if given is None else check_meta(given)",
        "{} if given is None else given",
        "tests/sdk/test_enqueue_hooks.py::test_a_hook_cannot_change_the_meta_that_others_are_enqueued_with",
    ),
    _one(
        "an operator's retry that forgets the meta",
        "application/commands/executions.py",
        "            meta=own.meta,\n",
        "",
        "tests/store/test_job_version.py::test_retries_carry_meta_on",
    ),
    _one(
        "handlers of Django that join no transaction",
        "contrib/django/transactions.py",
        "return request if connection is None else replace(request, connection=connection)",
        "return request",
        "tests/contrib/test_django.py::test_a_handler_joins_the_transaction_around_it_as_a_task_does",
    ),
    _one(
        "groups of a transaction of Django that wake no worker",
        "contrib/django/transactions.py",
        "if (announce := _announcement_of(verb, answer)) is not None:",
        "if (announce := _announcement_of(verb, None)) is not None:",
        "tests/contrib/test_django.py::test_nodes_are_woken_after_the_commit_of_whatever_they_should_do",
    ),
    _one(
        "tasks of Django whose failure is told twice",
        "contrib/django/tasks.py",
        'if job.on_failure is not None and job.on_failure["handler"] == END_OF_TASK:',
        "if job.id is None:",
        "tests/contrib/test_django.py::test_the_end_of_a_task_is_told_once_whatever_ended_it",
    ),
    _one(
        "tests of Django whose fixture looks at another database",
        "contrib/django/app.py",
        "return database.url if database.alias is not None and database.alias == self._tested_alias else None",
        "return None",
        "tests/contrib/test_manage_py.py::test_the_fixture_of_pytest_uses_django_s_test_database",
    ),
    _one(
        "a database that is opened inline",
        "sdk/enqueue.py",
        "BackgroundLoop(self._open, self._check_not_inline)",
        "BackgroundLoop(self._open)",
        "tests/sdk/test_inline.py::test_what_needs_a_database_is_refused",
    ),
    _one(
        "an inline run that nothing follows",
        "sdk/inline_runs.py",
        "work = job.on_success if ended.state is ExecutionState.SUCCEEDED else job.on_failure",
        "work = None",
        "tests/sdk/test_inline.py::test_what_follows_a_run_runs_after_it",
    ),
    _one(
        "executions that forget that something follows them",
        f"{_SQL}/jobs.sql",
        "coalesce(given.has_follow_ups, job.has_follow_ups) AS has_follow_ups",
        "given.has_follow_ups",
        "tests/store/test_job_version.py::test_what_follows_the_executions_of_a_job_follows_each_of_them",
    ),
    _one(
        "an edited one-off that forgets what it was",
        "store/jobs.py",
        'await run("keep_versions", job_ids=outdated)',
        "pass",
        "tests/store/test_job_version.py::test_a_ready_one_off_keeps_its_version",
    ),
    _one(
        "a request that asks no right of the handler that is to run",
        "store/jobs.py",
        "            if check is not None:\n",
        "            if False:\n",
        f"{_RACES}::test_a_request_checks_the_right_to_the_handler_that_will_run",
    ),
    _one(
        "an edit that looks at the new handler alone",
        "application/commands/requests.py",
        "        self.check_owner(before, actor)\n",
        "",
        "tests/api/test_handlers.py::test_security_3_an_editor_cannot_put_a_payload_under_a_queued_command",
    ),
    # order
    _one(
        "a claim that is read back in whatever order it lies",
        f"{_SQL}/claiming.sql",
        "\nORDER BY running.run_at - running.priority * interval '12 seconds', running.id;\n",
        ";\n",
        "tests/store/test_claim.py::test_a_claim_that_is_read_back_is_in_the_order_of_its_reply",
    ),
    _one(
        "orphans reaped in whatever order they lie",
        "store/executions.py",
        'sorted(await self._database.fetch("orphaned_claims", limit=limit))',
        'await self._database.fetch("orphaned_claims", limit=limit)',
        "tests/engine/simulation/test_swarm.py::test_once_the_trouble_is_over_everything_has_ended_once[169]",
    ),
    _one(
        "groups that are closed in whatever order their parts have ended",
        "store/executions.py",
        "        causes = sorted(causes)\n",
        "",
        "tests/engine/simulation/test_swarm.py::test_once_the_trouble_is_over_everything_has_ended_once[46]",
    ),
    # follow-ups
    _one(
        "an end that is followed later, by another statement",
        "store/migrations/0001_initial.sql",
        "WHEN (NEW.has_follow_ups AND NEW.has_ended_part IS NOT TRUE)\n",
        "WHEN (NEW.has_follow_ups AND false)\n",
        f"{_FOLLOW_UPS}::test_every_other_end_is_followed_as_a_failure",
    ),
    _one(
        "a stale outcome that is followed",
        f"{_SQL}/finishing.sql",
        "      AND running.claim_id = outcome.claim_id\n",
        "",
        f"{_GROUPS}::test_a_stale_outcome_ends_no_part",
    ),
    _one(
        "what follows a success after another end",
        "store/migrations/0001_initial.sql",
        "RETURN nullif(calls -> CASE WHEN state = 'succeeded' THEN",
        "RETURN nullif(calls -> CASE WHEN state <> 'dead' THEN",
        f"{_FOLLOW_UPS}::test_every_other_end_is_followed_as_a_failure",
    ),
    _one(
        "a join that is counted twice",
        "store/migrations/0001_initial.sql",
        "    WHERE execution_group.id = close_group.group_id\n      AND execution_group.state = 'open'\n    FOR UPDATE;",
        "    WHERE execution_group.id = close_group.group_id\n    FOR UPDATE;",
        f"{_GROUPS}::test_a_group_that_is_closed_is_not_closed_again",
    ),
    _one(
        "a group that is closed while parts of it run",
        "store/migrations/0001_initial.sql",
        "       OR EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = close_group.group_id",
        "       OR EXISTS (SELECT 1 FROM timeball.group_part WHERE false AND group_part.group_id = close_group.group_id",
        f"{_GROUPS}::test_a_group_that_is_closed_is_not_closed_again",
    ),
    _one(
        "a group whose last parts ended side by side, that no transaction closes",
        "store/executions.py",
        '            await self._database.fetch("close_ended_groups", causes=causes)\n',
        "",
        f"{_GROUPS}::test_a_large_group_whose_last_parts_ended_in_two_transactions_is_closed_after_them",
    ),
    _one(
        "a cancelled chain that goes on with its next step",
        "store/migrations/0001_initial.sql",
        "            has_succeeded := is_cancelled IS NOT TRUE;\n",
        "",
        f"{_GROUPS}::test_a_chain_whose_group_was_cancelled_begins_no_further_step",
    ),
    _one(
        "a step that begins while its group is being cancelled",
        "store/migrations/0001_initial.sql",
        "            WHERE execution_group.id = go_on.group_id\n            FOR SHARE;\n",
        "            WHERE execution_group.id = go_on.group_id;\n",
        f"{_RACES}::test_a_step_that_succeeds_while_its_group_is_cancelled",
    ),
    _one(
        "a group that the reaper leaves open",
        "store/queues.py",
        '                    await self._database.fetch("close_group", id=row["group_id"])\n',
        "                    pass\n",
        f"{_GROUPS}::test_a_large_group_whose_last_parts_ended_in_two_transactions_is_closed_after_them",
    ),
    _one(
        "a group that keeps the reaper from the others",
        "store/queues.py",
        "                with suppress(*REFUSED):\n",
        "                with suppress():\n",
        f"{_GROUPS}::test_a_group_that_cannot_be_closed_keeps_the_reaper_from_nothing",
    ),
    _one(
        "batches that wait for each other's groups",
        "store/migrations/0001_initial.sql",
        "    ELSIF left_over = 0 THEN\n",
        "    ELSE\n",
        f"{_RACES}::test_two_ends_of_the_last_parts_of_a_group_do_not_wait_for_each_other",
    ),
    _one(
        "batches of single calls that wait for each other's groups",
        "store/migrations/0001_initial.sql",
        "        IF ended.group_ended_at IS NOT NULL\n           AND NOT EXISTS (",
        "        IF ended.group_ended_at IS NOT NULL\n           OR NOT EXISTS (",
        f"{_RACES}::test_two_ends_of_the_last_parts_of_a_group_do_not_wait_for_each_other",
    ),
    _one(
        "a part whose own call is forgotten",
        "store/migrations/0001_initial.sql",
        "                  AND job.on_success IS NULL\n                  AND job.continuation",
        "                  AND job.continuation",
        f"{_GROUPS}::test_one_statement_ends_parts_of_all_kinds_and_other_work",
    ),
    _one(
        "a part that forgets the call of the version that ran",
        "store/migrations/0001_initial.sql",
        "                  AND job.version = execution.version\n",
        "",
        f"{_GROUPS}::test_a_part_is_followed_by_the_calls_of_the_version_that_ran",
    ),
    _one(
        "a success that the trigger takes for the end of a part",
        f"{_SQL}/finishing.sql",
        "CASE WHEN has_follow_ups THEN id <> ALL ((SELECT recorded.followed FROM recorded)::uuid[]) END",
        "has_follow_ups",
        f"{_GROUPS}::test_one_statement_ends_parts_of_all_kinds_and_other_work",
    ),
    _one(
        "a part that the statement does not end",
        "store/migrations/0001_initial.sql",
        "              AND num_nonnulls(group_part.state) = 0\n",
        "              AND num_nonnulls(group_part.state) = 1\n",
        f"{_GROUPS}::test_the_last_part_closes_the_group_and_writes_what_follows",
    ),
    _one(
        "parts that are found by reading all that are open",
        "store/migrations/0001_initial.sql",
        "              AND num_nonnulls(group_part.state) = 0\n",
        "              AND group_part.state IS NULL\n",
        "tests/store/test_plans.py::test_parts_of_a_large_group_are_looked_up_one_by_one",
    ),
    _one(
        "an end that begins more than one statement can write",
        "domain/follow_ups.py",
        'if kind == "group" and (begun',
        "if not kind and (begun",
        "tests/domain/test_follow_ups.py::test_a_group_begins_no_more_calls_at_once_than_one_end_can_write",
    ),
    _one(
        "a lost mark of what follows, that verify does not see",
        f"{_SQL}/verify.sql",
        "WHEN execution.has_follow_ups OR execution.finished_at",
        "WHEN true OR execution.finished_at",
        f"{_GROUPS}::test_verify_names_a_group_that_is_not_as_its_parts_are",
    ),
    # jobs that come after others
    _one(
        "a success that is followed twice",
        "store/migrations/0001_initial.sql",
        "        ON CONFLICT DO NOTHING;\n        CONTINUE WHEN NOT FOUND;\n        expires_at",
        "        ON CONFLICT DO NOTHING;\n        expires_at",
        f"{_AFTER}::test_an_occurrence_that_succeeds_twice_is_followed_once",
    ),
    _one(
        "a job that comes after a failure",
        "store/migrations/0001_initial.sql",
        "CASE WHEN has_succeeded AND NEW.job_id <> NEW.id\n",
        "CASE WHEN NEW.job_id <> NEW.id\n",
        f"{_AFTER}::test_no_other_end_is_an_occurrence",
    ),
    _one(
        "a job that comes after whatever is done by hand",
        "store/migrations/0001_initial.sql",
        "THEN timeball.occurrence_of(NEW.origin, NEW.scheduled_for, NEW.retry_of) END;",
        "THEN NEW.scheduled_for END;",
        f"{_AFTER}::test_a_trigger_is_no_occurrence",
    ),
    _one(
        "a job that is paused, and comes after another all the same",
        "store/migrations/0001_initial.sql",
        "        IF own.paused_at IS NOT NULL THEN\n            INSERT INTO timeball.finished (id, job_id, state, origin,",
        "        IF false THEN\n            INSERT INTO timeball.finished (id, job_id, state, origin,",
        f"{_AFTER}::test_of_a_paused_job_it_is_recorded_as_skipped",
    ),
    _one(
        "a circle of jobs that come after each other",
        "domain/job.py",
        "    if job.id in (id_ for id_, _ in passed):",
        "    if False:",
        f"{_AFTER}::test_a_circle_is_refused",
    ),
    _one(
        "edits that close a circle together",
        "store/follow_ups.py",
        '    await database.fetch("lock_out_other_causes", connection)\n',
        "",
        f"{_RACES}::test_two_edits_that_touch_no_job_of_each_other_close_no_circle",
    ),
    # slots
    _one(
        "a handler that waits for another run and keeps its slot",
        "engine/worker/attempts.py",
        "            busy -= self._given_away()\n",
        "            pass\n",
        "tests/sdk/test_waiting.py::test_two_parents_in_two_slots_get_the_results_of_their_children",
    ),
    _one(
        "a worker that lends slots without end",
        "engine/worker/attempts.py",
        "        return min(waiting, self._most_lent)\n",
        "        return waiting\n",
        "tests/engine/worker/test_attempts.py::test_as_many_attempts_as_may_lend_their_slots_to_others",
    ),
    _one(
        "an attempt that has ended and lends its slot for ever",
        "engine/worker/attempts.py",
        "sum(self.attempts.get(context.claimed.id) is context for context in list(self.lent))",
        "len(self.lent)",
        "tests/engine/worker/test_attempts.py::test_an_attempt_that_has_ended_lends_nothing",
    ),
    _one(
        "a limited call that goes past its limit",
        "store/migrations/0001_initial.sql",
        "    IF job.limit_key IS NULL THEN\n        INSERT INTO timeball.ready",
        "    IF true THEN\n        INSERT INTO timeball.ready",
        f"{_FOLLOW_UPS}::test_a_limited_call_waits_for_a_place_of_its_limit",
    ),
    _one(
        "a call of a handler that its author may not use",
        "application/commands/requests.py",
        '        for path, call in calls_in(fields):\n            self.check_owner(call["handler"], actor)\n',
        "",
        "tests/api/test_follow_ups.py::test_only_an_administrator_lets_a_command_follow",
    ),
    # outcomes
    _one(
        "a success that cannot be followed, kept until its worker is lost",
        "domain/lifecycle.py",
        "    if isinstance(outcome, Succeeded):\n        yield Failed",
        "    if False:\n        yield Failed",
        "tests/engine/test_hostile_results.py::test_what_cannot_follow_a_run_costs_its_neighbours_nothing",
    ),
    _one(
        "a batch that is too much for one statement, tried as it is for ever",
        "engine/worker/recorder.py",
        "            self._portion = max(len(batch) // 2, 1)\n",
        "            pass\n",
        f"{_RECORDER}::test_a_batch_that_is_too_much_for_one_statement_is_written_in_parts",
    ),
    _one(
        "a success without its fence",
        f"{_SQL}/finishing.sql",
        "      AND running.fence = outcome.fence\n",
        "",
        f"{_OUTCOMES}::test_a_stale_outcome_changes_nothing",
    ),
    _one(
        "successes locked in whatever order they come",
        "store/executions.py",
        "sorted(findings, key=lambda f: f.claimed.id.bytes)",
        "findings",
        f"{_RACES}::test_a_batch_of_running_executions_is_locked_in_the_order_of_ids",
    ),
    _one(
        "a success without its claim",
        f"{_SQL}/finishing.sql",
        "      AND running.claim_id = outcome.claim_id\n",
        "",
        "tests/engine/worker/test_recorder.py::test_the_claim_id_alone_refuses_a_claim_that_another_history_gave",
    ),
    _one(
        "an end without its claim",
        f"{_SQL}/finishing.sql",
        "          AND running.claim_id = given.claim_id\n          AND running.stop IS NOT DISTINCT FROM given.stop\n",
        "          AND running.stop IS NOT DISTINCT FROM given.stop\n",
        f"{_OUTCOMES}::test_the_outcome_of_the_present_claim_counts_of_two_in_a_batch",
        f"{_OUTCOMES}::test_a_stale_outcome_changes_nothing",
    ),
    _one(
        "an end that does not hear a stop",
        f"{_SQL}/finishing.sql",
        "          AND running.stop IS NOT DISTINCT FROM given.stop\n",
        "",
        f"{_REAPER}::test_what_people_say_while_the_reaper_makes_up_its_mind_is_heeded",
        f"{_RACES}::test_an_outcome_decided_before_a_request_is_decided_again",
    ),
    _one(
        "an end that does not look at its job again",
        f"{_SQL}/finishing.sql",
        "(looked_at.is_paused, looked_at.is_deleted) <> (given.is_paused, given.is_deleted)",
        "false",
        f"{_REAPER}::test_what_people_say_while_the_reaper_makes_up_its_mind_is_heeded",
    ),
    _one(
        "a fence that begins again on release",
        f"{_SQL}/finishing.sql",
        "           next_attempts, next_lost, fence, tzdata, limit_key",
        "           next_attempts, next_lost, 0, tzdata, limit_key",
        f"{_OUTCOMES}::test_fences_grow_over_all_attempts",
    ),
    _one(
        "another's key freed",
        f"{_SQL}/finishing.sql",
        "      AND live_key.key = removed.unique_key\n      AND live_key.execution_id = removed.id\n",
        "      AND live_key.key = removed.unique_key\n",
        f"{_OUTCOMES}::test_a_success_does_not_free_a_key_that_another_execution_has_by_now",
    ),
    _one(
        "a lost reply taken for a stale outcome",
        "engine/worker/recorder.py",
        "        if refused and was_tried:\n",
        "        if False:\n",
        "tests/engine/worker/test_recorder.py::test_a_lost_reply_is_no_stale_outcome",
    ),
    # unique keys
    _one(
        "new arguments for what has begun",
        f"{_SQL}/unique_keys.sql",
        "AND origin = 'enqueue' AND attempts = 0 AND lost = 0\n",
        "AND origin = 'enqueue'\n",
        f"{_KEYS}::test_a_released_attempt_has_begun",
    ),
    _one(
        "new arguments for another handler",
        f"{_SQL}/unique_keys.sql",
        "unique_key = :key AND handler = :handler AND origin",
        "unique_key = :key AND origin",
        f"{_KEYS}::test_a_cancellation_frees_the_key_for_the_one_that_waits",
    ),
    _one(
        "one that waits for its key and runs beside what has it",
        f"{_SQL}/promotion.sql",
        "(taken.awaits_key OR (taken.kind = 'occurrence'",
        "((taken.kind = 'occurrence'",
        f"{_KEYS}::test_what_has_begun_stays_as_it_is_and_another_runs_after_it",
    ),
    _one(
        "one that waits for its key and is overtaken by newer arguments",
        "store/enqueue.py",
        'successor, holder = facts["successor_id"], None',
        "successor, holder = None, None",
        f"{_KEYS}::test_a_key_that_became_free_is_not_waited_for",
    ),
    _one(
        "an enqueue with a key of several, of which one is refused",
        "store/enqueue.py",
        "may_refuse = len(jobs) > 1 and (bool(changing) or any(",
        "may_refuse = len(jobs) > 1 and (any(",
        "tests/sdk/test_enqueue.py::test_enqueues_are_neither_doubled_nor_refused_for_another_one_that_is",
    ),
    _one(
        "one key of two handlers taken for one",
        "store/enqueue.py",
        "alike.setdefault((job.unique_key, job.handler), [])",
        'alike.setdefault((job.unique_key, ""), [])',
        f"{_KEYS}::test_of_two_handlers_with_one_key_in_one_batch_the_second_runs_after_the_first",
    ),
    _one(
        "a replacement in a batch that takes the place of an extension",
        "store/enqueue.py",
        "groupby(alike[of_key], lambda job: job.if_exists)",
        "groupby(alike[of_key], lambda _job: None)",
        f"{_KEYS}::test_one_batch_may_extend_and_replace",
    ),
    _one(
        "a key that is held and never given back",
        f"{_SQL}/promotion.sql",
        "      AND held_until <= coalesce(:now, now())\n    RETURNING key\n",
        "      AND false\n    RETURNING key\n",
        f"{_KEYS}::test_a_held_key_holds_occurrences_and_requests_off_until_its_instant",
    ),
    _one(
        "a key that is not held after the end",
        "store/migrations/0001_initial.sql",
        "WHEN (OLD.held_until IS NOT NULL AND NOT OLD.has_ended)",
        "WHEN (false)",
        f"{_KEYS}::test_a_key_is_held_after_the_end_of_its_execution",
    ),
    _one(
        "a held key taken from what is unfinished",
        f"{_SQL}/unique_keys.sql",
        "WHERE key = ANY (:keys::text[])\n  AND has_ended\n",
        "WHERE key = ANY (:keys::text[])\n",
        f"{_KEYS}::test_only_what_has_ended_forgets_its_key",
    ),
    _one(
        "an edit that gives a waiting one the key of another",
        f"{_SQL}/jobs.sql",
        "       AND NOT EXISTS (SELECT 1 FROM timeball.live_key "
        "WHERE live_key.key = given.unique_key AND live_key.execution_id = given.id OFFSET 0)\n",
        "       AND false\n",
        f"{_KEYS}::test_an_edit_of_the_one_that_waits_for_a_key_lets_it_wait",
    ),
    # expected errors
    _one(
        "an expected error that pauses its job",
        f"{_SQL}/finishing.sql",
        "             AND NOT EXISTS (SELECT 1 FROM timeball.settled "
        "WHERE settled.execution_id = latest.id AND settled.how = 'expected')\n",
        "",
        f"{_REAPER}::test_a_job_is_not_paused_for_errors_that_its_handler_expects",
    ),
    _one(
        "an expected death that is counted as one",
        f"{_SQL}/rollups.sql",
        "THEN 'expected' ELSE finished.state END AS what",
        "THEN finished.state ELSE finished.state END AS what",
        "tests/api/test_metrics.py::test_what_a_handler_expects_raises_no_alarm",
    ),
    # summaries of jobs
    _one(
        "a backfill that counts as the latest run",
        f"{_SQL}/rollups.sql",
        "        WHERE job_id <> id\n          AND origin <> 'backfill'\n",
        "        WHERE job_id <> id\n",
        f"{_SUMMARIES}::test_backfills_and_one_offs_leave_no_summary",
    ),
    _one(
        "an old run that is folded late and told as the latest",
        f"{_SQL}/rollups.sql",
        "CASE WHEN past.duration_at > latest.duration_at OR latest.duration_at IS NULL THEN",
        "CASE WHEN latest.duration_at IS NULL THEN",
        f"{_SUMMARIES}::test_the_latest_run_is_told_and_not_the_one_that_was_folded_last",
    ),
    _one(
        "a row of failures that a success folded later ends, though it came before",
        f"{_SQL}/rollups.sql",
        "                WHEN past.failed_at > unbroken.at THEN 1\n",
        "",
        f"{_SUMMARIES}::test_a_failure_behind_a_success_that_is_folded_later_counts",
    ),
    _one(
        "a deleted job that is told for ever",
        "store/jobs.py",
        '        await run("forget_summaries", job_ids=[job.id for _, job in deleted])\n',
        "",
        f"{_SUMMARIES}::test_a_summary_outlives_the_history_and_ends_with_its_job",
    ),
    _one(
        "an exemplar of what is not counted yet",
        "api/resources/prometheus.py",
        "exemplar=exemplars.of_outcome(*pair, outcome) if count else None)",
        "exemplar=exemplars.of_outcome(*pair, outcome))",
        "tests/api/test_metrics.py::test_an_exemplar_waits_until_its_execution_is_counted",
    ),
    # expiry
    _one(
        "expiry after claim",
        "engine/worker/executor.py",
        "        if claimed.expires_at is not None and claimed.expires_at <= self._env.clock.now():\n",
        "        if False:\n",
        f"{_EXECUTOR}::test_what_has_expired_is_not_started",
    ),
    _one(
        "a sweep that expires a begun execution",
        f"{_SQL}/finishing.sql",
        "CASE WHEN given.started_at IS NULL THEN removed.expires_at END AS next_expires_at",
        "removed.expires_at AS next_expires_at",
        "tests/store/test_expiry.py::test_an_execution_that_has_begun_expires_no_more",
    ),
    _one(
        "a sweep that takes the pending occurrence of a schedule",
        f"{_SQL}/expiry.sql",
        "      AND NOT (kind = 'occurrence' AND origin = 'schedule')\n",
        "",
        "tests/store/test_expiry.py::test_the_pending_occurrence_of_a_schedule_is_left_to_its_scheduler",
    ),
    _one(
        "a sweep that waits for a promotion",
        f"{_SQL}/expiry.sql",
        f"{_SWEPT_DUE} SKIP LOCKED",
        _SWEPT_DUE,
        f"{_RACES}::test_an_expiry_that_comes_while_a_delayed_execution_is_promoted",
    ),
    _one(
        "an expired execution that keeps its key",
        f"{_SQL}/expiry.sql",
        "      AND live_key.execution_id = gone.id\n",
        "      AND false\n",
        "tests/store/test_expiry.py::test_an_expired_execution_frees_its_key",
    ),
    _one(
        "an expired execution that keeps its place",
        "store/executions.py",
        f"{_SWEEP}        await self.unblock_after_commit(",
        f"{_SWEEP}        sorted(",
        "tests/store/test_expiry.py::test_the_place_of_an_expired_execution_is_passed_on",
    ),
    _one(
        "an expired occurrence that stops what runs",
        "domain/scheduling/occurrences.py",
        "stop_running=stop_running and bool(affordable),",
        "stop_running=stop_running,",
        f"{_OCCURRENCES}::test_an_expired_occurrence_stops_no_running_execution",
    ),
    # claims
    _one(
        "a claim that does not count",
        f"{_SQL}/claiming.sql",
        f"           least(attempts, 2147483646) + 1, lost, least(fence, 9223372036854775806) + 1, {_REST_OF_A_CLAIM}",
        f"           attempts, lost, least(fence, 9223372036854775806) + 1, {_REST_OF_A_CLAIM}",
        "tests/store/test_claim.py::test_a_claim_keeps_every_column_and_adds_its_own",
    ),
    _one(
        "a fence that does not grow",
        f"{_SQL}/claiming.sql",
        f"lost, least(fence, 9223372036854775806) + 1, {_REST_OF_A_CLAIM}",
        f"lost, fence, {_REST_OF_A_CLAIM}",
        f"{_OUTCOMES}::test_fences_grow_over_all_attempts",
    ),
    _one(
        "a claim whose reply was lost is forgotten",
        "engine/worker/claimer.py",
        "        self.in_flight.end()\n        self._executor.accept(claims)\n",
        "        self.in_flight.end()\n",
        "tests/engine/worker/test_claimer.py::test_a_claim_whose_reply_was_lost_is_read_back",
    ),
    _one(
        "places counted without a lock",
        f"{_SQL}/limits.sql",
        "WHERE key = ANY (:keys::text[])\nORDER BY key\nFOR NO KEY UPDATE;",
        "WHERE key = ANY (:keys::text[])\nORDER BY key;",
        f"{_RACES}::test_an_unblock_counts_what_another_is_unblocking",
    ),
    _one(
        "places that wait for a caller who names their limit",
        f"{_SQL}/limits.sql",
        "FOR NO KEY UPDATE;",
        "FOR UPDATE;",
        f"{_RACES}::test_a_place_is_passed_on_while_a_caller_enqueues_with_the_same_limit",
    ),
    _one(
        "a caller who locks the limit that an enqueue names",
        f"{_SQL}/jobs.sql",
        "          AND known.max_running = named.max_running\n        FOR KEY SHARE\n",
        "          AND known.max_running = named.max_running\n        FOR UPDATE\n",
        f"{_RACES}::test_a_place_is_passed_on_while_a_caller_enqueues_with_the_same_limit",
    ),
    _one(
        "places that wait for a caller who changes what waits for them",
        f"{_SQL}/limits.sql",
        "        FOR UPDATE SKIP LOCKED\n    ) AS first",
        "    ) AS first",
        f"{_RACES}::test_a_place_is_passed_on_while_a_caller_changes_what_waits_for_it",
    ),
    _one(
        "a limit that is deleted while a call that follows names it",
        "store/migrations/0001_initial.sql",
        "          AND running_limit.max_running = job.max_running\n        FOR KEY SHARE;",
        "          AND running_limit.max_running = job.max_running;",
        f"{_RACES}::test_the_janitor_comes_while_a_call_that_follows_names_a_limit",
    ),
    _one(
        "batches that wait for each other's limits",
        "store/migrations/0001_initial.sql",
        "          AND running_limit.max_running = job.max_running\n        FOR KEY SHARE;",
        "          AND running_limit.max_running = job.max_running\n        FOR UPDATE;",
        f"{_RACES}::test_two_ends_that_are_followed_by_calls_with_one_limit_do_not_wait_for_each_other",
    ),
    _one(
        "a statement that is slow alone, and is cut off after the same time again and again",
        "store/db/database.py",
        "for each in (_ANY, name))",
        "for each in (_ANY,))",
        "tests/store/db/test_silent_connections.py::test_a_statement_that_alone_is_slow_is_given_more_time",
    ),
    # the ledger
    _one(
        "a ledger that hides what calendars leave out",
        "application/queries/ledger.py",
        "        if query.has_left_out and not job.is_enqueued:\n",
        "        if False:\n",
        f"{_LEDGER}::test_days_that_are_left_out_now_end_with_this_moment",
    ),
    _one(
        "a ledger that takes a trigger for the end of a job",
        "store/ledger.py",
        "if last is not None or batch.read_to is None:",
        "if True:",
        f"{_LEDGER}::test_a_job_that_has_ended_leaves_out_what_it_left_out_whatever_is_triggered_later",
    ),
    _one(
        "a ledger that puts a gap in the place of what begins at its end",
        "domain/scheduling/verdicts.py",
        "return UUID(int=key.int - 1) if",
        "return key if",
        f"{_LEDGER}::test_what_was_missed_from_the_end_of_a_gap_on_is_told_beside_the_gap",
    ),
    _one(
        "a ledger that expects what a freeze holds",
        "domain/scheduling/verdicts.py",
        "return self.is_frozen or pending.run_at <= self.now",
        "return pending.run_at <= self.now",
        f"{_LEDGER}::test_what_a_freeze_holds_waits_and_names_the_freeze",
    ),
    _one(
        "a ledger that expects what a freeze will skip",
        "domain/scheduling/verdicts.py",
        "reason=self._skipped_for(instant),",
        "reason=None,",
        f"{_LEDGER}::test_what_a_freeze_will_skip_is_expected_with_its_reason",
    ),
    _one(
        "a freeze that uses up executions ahead",
        "domain/scheduling/verdicts.py",
        "_last_of(self.rule, after, left, until, self.frozen)",
        "_last_of(self.rule, after, left, until)",
        f"{_LEDGER}::test_what_a_freeze_will_skip_is_expected_with_its_reason",
    ),
    _one(
        "a look at what was missed that hides what is missed later",
        "store/rollups.py",
        " {row['at'].isoformat()} {row['latest']}",
        "",
        "tests/dashboard/test_ledger_page.py::test_what_was_missed_is_named_until_it_was_seen_and_again_when_more_is_missed",
    ),
    _one(
        "a timeline without the jobs that a freeze holds",
        "application/queries/timeline.py",
        "(*data.fires, *data.held):\n        parts",
        "data.fires:\n        parts",
        "tests/application/queries/test_timeline.py::test_a_job_that_a_freeze_holds_all_the_time_has_a_row_without_marks",
    ),
    _one(
        "operations that wait for an API process",
        "engine/scheduler/housekeeping.py",
        "if await self._has_operations():",
        "if False:",
        "tests/engine/scheduler/test_operations.py::test_a_backfill_without_an_api_process_is_fed_by_the_housekeeper",
    ),
    # calendars: one rule of days for every reader, and no job that cites another version than the present one
    _one(
        "a scheduler that ignores calendars",
        "store/db/rows.py",
        """        version=row["version"],
        rule=rule_from(row, calendars),
""",
        """        version=row["version"],
        rule=rule_from(dict(row) | {"calendars": None}, calendars),
""",
        f"{_CALENDARS}::test_a_job_runs_on_the_days_that_its_calendars_leave",
    ),
    _one(
        "a backfill and a preview that ignore calendars",
        "store/db/rows.py",
        """        payload=row["payload_text"],
        rule=rule_from(row, calendars),
""",
        """        payload=row["payload_text"],
        rule=rule_from(dict(row) | {"calendars": None}, calendars),
""",
        f"{_CALENDARS_OF_API}::test_a_backfill_leaves_the_same_days_out",
    ),
    _one(
        "a forecast that ignores calendars",
        "store/timeline.py",
        "rule=rule_from(row, calendars),",
        'rule=rule_from(dict(row) | {"calendars": None}, calendars),',
        f"{_CALENDARS_OF_API}::test_forecast_timeline_and_feed_use_the_days_of_the_job",
    ),
    _one(
        "a proof that ignores calendars",
        "store/verify/proof.py",
        "rule=rule_from(row, calendars),",
        'rule=rule_from(dict(row) | {"calendars": None}, calendars),',
        f"{_CALENDARS}::test_a_job_runs_on_the_days_that_its_calendars_leave",
    ),
    _one(
        "a ledger that steps over the days of an interval's calendar",
        "domain/scheduling/ledger.py",
        "rule.interval if isinstance(rule, Every) and rule.calendar is None else None",
        "rule.interval if isinstance(rule, Every) else None",
        f"{_CALENDARS}::test_an_interval_rests_on_the_days_of_a_calendar",
    ),
    _one(
        "a count that ignores calendars",
        "domain/scheduling/cron.py",
        "        return self._named_days.count(start, end)",
        "        return sum(map(super().matches_day, _days(start, end)))",
        f"{_CALENDAR_RULES}::test_two_that_move_onto_one_day_are_one",
    ),
    _one(
        "a way back that ignores calendars",
        "domain/scheduling/cron.py",
        "        return self._named_days.before(day)",
        "        return super()._days_before(day)",
        f"{_CALENDAR_RULES}::test_a_schedule_ends_with_the_last_day_of_only_on",
    ),
    _one(
        "the second pass of the last allowed day",
        "domain/scheduling/cron.py",
        """                if period.reading is WallTimeRepeat.ONCE:
                    return None
""",
        """                return None
""",
        f"{_CALENDAR_RULES}::test_the_last_allowed_day_may_have_an_hour_twice",
    ),
    _one(
        "a job that cites a version which has changed",
        "store/enqueue.py",
        "        if present != cited:",
        "        if False:",
        f"{_CALENDAR_STORE}::test_a_job_is_not_written_with_days_that_have_changed",
    ),
    _one(
        "a calendar that changes while a job is written",
        f"{_SQL}/calendars.sql",
        "ORDER BY name\nFOR SHARE;",
        "ORDER BY name;",
        f"{_CALENDAR_STORE}::test_a_change_waits_for_a_job_that_is_being_written",
    ),
    _one(
        "a calendar that is deleted although a job uses it",
        "store/calendars.py",
        "            if rows:\n                raise _in_use",
        "            if False:\n                raise _in_use",
        f"{_CALENDAR_STORE}::test_a_calendar_in_use_is_not_deleted",
    ),
    _one(
        "a calendar that skips what is owed",
        "domain/job_changes.py",
        "or (is_owed and not job.is_paused)",
        "or False",
        f"{_CALENDARS}::test_what_is_owed_runs_before_a_job_follows_its_calendar",
    ),
    _one(
        "days that are kept by the number of their version alone",
        "store/db/rows.py",
        """CalendarKey(name, cited["version"], cited["days"])""",
        """CalendarKey(name, cited["version"], "")""",
        f"{_CALENDAR_STORE}::test_days_are_kept_by_what_a_job_cites",
    ),
    # promotions
    _one(
        "a promotion of another version",
        f"{_SQL}/promotion.sql",
        "          AND due.version = owed.version\n",
        "",
        f"{_PROMOTE}::test_a_row_of_another_version_is_not_moved",
    ),
    _one(
        "a promotion of another instant",
        f"{_SQL}/promotion.sql",
        "          AND due.run_at = owed.run_at\n          AND due.version",
        "          AND due.version",
        f"{_PROMOTE}::test_a_row_of_another_instant_is_not_moved",
        f"{_RACES}::test_a_parked_retry_is_not_promoted",
    ),
    _one(
        "a promotion beyond the window",
        f"{_SQL}/promotion.sql",
        "          AND due.run_at <= coalesce(:now, now()) + :promotion_window::interval\n",
        "",
        f"{_PROMOTE}::test_a_row_beyond_the_window_is_not_moved",
    ),
    # outgoing webhooks: nothing lost, nothing out of order, no secret shown twice
    _one(
        "a delivery that is added while its predecessor ends, and waits for ever",
        f"{_SQL}/webhooks.sql",
        "ORDER BY id\nFOR NO KEY UPDATE;\n\n-- name: any_webhook",
        "ORDER BY id;\n\n-- name: any_webhook",
        f"{_HOOKS_OUT}::test_a_delivery_that_ends_while_its_successor_is_recorded_releases_it",
    ),
    _one(
        "deliveries of one subject in any order",
        f"{_SQL}/webhooks.sql",
        "WHEN event.turn = 1\n            AND NOT EXISTS (",
        "WHEN event.turn = 1\n            OR NOT EXISTS (",
        f"{_HOOKS_OUT}::test_an_event_waits_for_one_that_was_recorded_before",
    ),
    _one(
        "an answer that came too late",
        f"{_SQL}/webhooks.sql",
        "      AND webhook_delivery.attempts = attempt.attempt\n",
        "",
        f"{_HOOKS_OUT}::test_what_a_sender_reports_that_was_given_up_changes_nothing",
    ),
    _one(
        "a secret that signs for ever",
        f"{_SQL}/webhooks.sql",
        "CASE WHEN webhook.previous_until > coalesce(:now, now()) THEN webhook.previous_secret END AS previous_secret",
        "webhook.previous_secret",
        f"{_HOOKS_OUT}::test_a_rotated_secret_signs_beside_the_old_one_for_a_while",
    ),
    _one(
        "events from before a webhook was there",
        "store/webhooks.py",
        "if not webhook.sees(recorded) and webhook.filter.matches(event)",
        "if webhook.filter.matches(event)",
        f"{_HOOKS_OUT}::test_a_webhook_gets_what_happens_after_it_was_created",
    ),
    _one(
        "events that are missed in silence",
        "store/webhooks.py",
        "if history_from is None or datetime.fromisoformat(history_from) <= seen_at:",
        "if True:",
        f"{_HOOKS_OUT}::test_a_webhook_is_told_that_events_were_deleted_before_it_got_them",
    ),
    _one(
        "an address that is gone and tried again",
        "domain/webhook.py",
        "    if answer.status == _GONE:\n",
        "    if answer.status == 0:\n",
        f"{_HOOKS_OUT}::test_410_disables_a_webhook_and_holds_back_what_waits_until_it_is_enabled",
    ),
    _one(
        "webhooks that cost something where there are none",
        "engine/scheduler/webhooks.py",
        "        if not self.may_send:\n            return LONGEST_REST\n",
        "",
        f"{_HOOKS_OUT}::test_without_a_webhook_nothing_is_asked",
    ),
    _one(
        "a secret in a stored response",
        "api/middleware.py",
        'return orjson.dumps(redact(orjson.loads(body))) if scope["state"].get("shows_secret") else body',
        "return body",
        "tests/api/test_webhooks.py::test_a_repetition_under_an_idempotency_key_creates_nothing_and_shows_no_secret",
    ),
    # channels: a message of an alert is neither lost, nor told after its end, nor given a secret of another
    _one(
        "a delivery that is sent after the end of its alert",
        "domain/alert_routes.py",
        "    if alert.resolved_at is not None:\n",
        "    if False:\n",
        f"{_ALERT_ROUTES}::test_what_calls_a_person_is_left_out_if_nothing_is_to_be_done",
    ),
    _one(
        "an end that is told where the alert was not heard of",
        "domain/alert_routes.py",
        "        if not line.was_heard:\n",
        "        if False:\n",
        f"{_DELIVERIES}::test_an_alert_that_is_resolved_before_its_opening_was_heard_is_not_told",
    ),
    _one(
        "an end that overtakes the opening",
        "domain/alert_routes.py",
        "        return SendLater(TURN) if line.must_wait else SendNow()",
        "        return SendNow()",
        f"{_DELIVERIES}::test_the_end_of_an_alert_waits_for_its_opening_that_is_being_sent",
    ),
    _one(
        "messages of one alert that do not see each other",
        "store/alert_deliveries.py",
        '            await self._database.fetch("lock_line_of_delivery", connection, id=delivery_id)\n',
        "",
        f"{_DELIVERIES}::test_two_messages_of_one_alert_that_begin_at_once_see_each_other",
    ),
    _one(
        "a reminder that is written again with every attempt",
        "store/alert_deliveries.py",
        'repeat_at is not None and row["begun_at"] is None and alert is not None',
        "repeat_at is not None and alert is not None",
        f"{_DELIVERIES}::test_a_reminder_is_written_once_however_often_its_delivery_begins",
    ),
    _one(
        "a message that may have arrived and is taken for unheard",
        "handlers/builtin/alert_delivery.py",
        "            if not order.may_have_arrived and not _may_have_arrived(error):\n",
        "            if True:\n",
        f"{_DELIVERIES}::test_the_end_is_told_if_the_opening_may_have_arrived",
    ),
    _one(
        "a job of a person that passes for a delivery",
        "handlers/builtin/alert_delivery.py",
        "        if delivery_id != RUNNING.get().claimed.job_id:\n",
        "        if False:\n",
        f"{_DELIVERIES}::test_a_job_that_a_person_has_written_is_no_delivery",
    ),
    _one(
        "an editor whose channel gets any secret",
        "application/commands/channels.py",
        "bool(channel.secrets) and not actor.is_administrator",
        "False",
        f"{_DELIVERIES}::test_a_channel_of_an_editor_gets_only_secrets_that_are_bound_to_its_host",
    ),
    _one(
        "secrets for settings that have changed since they were read",
        f"{_SQL}/channels.sql",
        "JOIN timeball.channel ON channel.name = delivery.channel AND channel.version = delivery.channel_version",
        "JOIN timeball.channel ON channel.name = delivery.channel",
        f"{_DELIVERIES}::test_settings_that_change_while_a_message_is_sent_get_no_secret",
    ),
    _one(
        "a channel that keeps a secret in plain",
        "domain/channels.py",
        "                elif is_secret(str(name)) or redact(one) != one:\n",
        "                elif False:\n",
        "tests/domain/test_channels.py::test_each_mistake_is_told_with_what_was_expected_and_without_a_secret",
    ),
    _one(
        "an editor who writes what a command runs",
        "application/commands/channels.py",
        "    if kind.is_for_administrators and not actor.is_administrator:\n",
        "    if False:\n",
        "tests/api/test_channels.py::test_only_administrators_write_channels_that_run_a_command",
    ),
    _one(
        "a secret address of which an answer repeats the path",
        "handlers/builtin/webhook.py",
        "        disclosure.hide(self.url.raw_path_qs)\n",
        "",
        "tests/handlers/builtin/test_webhook.py::test_an_address_may_be_a_secret_of_which_errors_tell_the_host_alone",
    ),
    # freezes
    _one(
        "a forecast that expects runs inside of a freeze",
        "domain/forecast/demand.py",
        "            if start < window.end and window.start < end:",
        "            if False:",
        "tests/domain/forecast/test_demand.py::test_what_falls_into_a_freeze_starts_after_it_as_far_as_it_may",
    ),
    _one(
        "a forecast that lets one-offs start inside of a freeze",
        "store/timeline.py",
        "return run if window is None else run._replace(started_at=window.end)",
        "return run",
        "tests/application/queries/test_forecast.py::test_what_falls_into_a_freeze_is_no_demand_before_it_is_over",
    ),
    _one(
        "a freeze that promotions planned before it do not notice",
        f"{_SQL}/promotion.sql",
        "SELECT coalesce(max(epoch), 0) = :freeze_epoch AND NOT EXISTS",
        "SELECT NOT EXISTS",
        f"{_RACES}::test_a_promotion_that_was_planned_before_a_freeze_is_refused",
    ),
    _one(
        "a freeze that lets promotions under way slip through",
        "store/freezes.py",
        '        await self._database.fetch("lock_out_promotions", connection)\n',
        "",
        f"{_RACES}::test_a_promotion_during_the_writing_of_a_freeze_waits_and_is_refused",
    ),
    _one(
        "a freeze that lets claims under way slip through",
        "store/freezes.py",
        '        await self._database.fetch("lock_out_claims", connection)\n',
        "",
        f"{_RACES}::test_a_claim_during_the_writing_of_a_freeze_waits_and_takes_nothing",
    ),
    _one(
        "a freeze that triggers forget",
        f"{_SQL}/claiming.sql",
        "CASE WHEN freezing.is_possible THEN timeball.put_back_frozen(locked.tids, coalesce(:now, now())) ELSE locked.tids END",
        "locked.tids",
        f"{_FREEZES}::test_triggers_and_schedules_in_scope_wait_and_others_go_on",
    ),
    _one(
        "a freeze that promotions forget",
        "domain/scheduling/occurrences.py",
        "    if window is not None:\n        return HeldByFreeze(row, window.end)\n",
        "",
        f"{_FREEZES}::test_occurrences_of_a_freeze_are_recorded_as_skipped_when_it_is_over",
    ),
    _one(
        "a pause that holds what a freeze has put back",
        "store/migrations/0001_initial.sql",
        "THEN 'retry' ELSE 'put_back' END, gone.origin",
        "THEN 'retry' ELSE 'snooze' END, gone.origin",
        f"{_FREEZES}::test_a_trigger_of_a_paused_job_that_a_freeze_puts_back_runs_when_the_freeze_is_over",
    ),
    _one(
        "a trigger that takes the place of an occurrence after a freeze",
        "domain/scheduling/occurrences.py",
        "is_replacing = row.origin is Origin.SCHEDULE and _replaces_waiting(job)",
        "is_replacing = _replaces_waiting(job)",
        f"{_FREEZES}::test_what_a_freeze_puts_back_takes_the_place_of_no_occurrence_unless_it_is_one",
    ),
    _one(
        "a freeze that holds on when it is ended early",
        "store/freezes.py",
        '            await self._database.fetch("thaw", connection, until=before["until_at"])\n',
        "",
        f"{_FREEZES}::test_a_freeze_that_is_ended_early_lets_go_of_what_waits",
    ),
    _one(
        "a pause of a queue that two nodes resume",
        f"{_SQL}/jobs.sql",
        "  AND paused_until <= coalesce(:now, now())\nFOR UPDATE;",
        "FOR UPDATE;",
        f"{_RACES}::test_two_nodes_resume_a_queue_whose_pause_is_over",
    ),
    _one(
        "a job that fails and is paused by two nodes",
        f"{_SQL}/finishing.sql",
        "WHERE job_id = :job_id\nFOR UPDATE;",
        "WHERE job_id = :job_id;",
        f"{_RACES}::test_two_nodes_pause_a_job_that_fails",
    ),
    _one(
        "a resumption that does not begin the count of failures anew",
        f"{_SQL}/finishing.sql",
        "             AND latest.finished_at > job.updated_at\n",
        "",
        f"{_REAPER}::test_a_resumption_begins_the_count_of_failures_anew",
    ),
    _one(
        "a promotion from a shard that is not ours",
        f"{_SQL}/promotion.sql",
        "    WHERE shard.owner = :incarnation\n",
        "",
        f"{_PROMOTE}::test_a_shard_that_another_owns_is_not_ours",
    ),
    _one(
        "a promotion of an earlier epoch",
        f"{_SQL}/promotion.sql",
        "    JOIN timeball.shard USING (id, epoch)\n",
        "    JOIN timeball.shard ON shard.id = mine.id\n",
        f"{_PROMOTE}::test_a_shard_of_an_older_epoch_is_not_ours",
    ),
    _one(
        "the next occurrence counted from now",
        "domain/scheduling/occurrences.py",
        "next_at=job.rule.next_after(scheduled_for))\n    return resolve_missed",
        "next_at=now + ((job.rule.next_after(scheduled_for) or now) - scheduled_for))\n    return resolve_missed",
        f"{_SCHEDULER}::test_an_interval_is_kept_to_the_microsecond_for_hours",
    ),
    # overlap
    _one(
        "overlap judged ahead of its instant",
        "domain/scheduling/occurrences.py",
        "    if overlaps and row.run_at > now:\n",
        "    if False:\n",
        f"{_OCCURRENCES}::test_overlap_is_not_judged_before_the_instant",
        f"{_SCHEDULER}::test_overlap_is_judged_at_the_instant_itself",
    ),
    _one(
        "a waiting retry is no overlap",
        f"{_SQL}/promotion.sql",
        "AND due.job_id <> due.id AND due.kind IN ('retry', 'snooze', 'put_back')\n",
        "AND false\n",
        f"{_SCHEDULER}::test_a_waiting_retry_is_an_overlap_too",
    ),
    _one(
        "what runs is not asked to stop for the next one",
        "store/executions.py",
        "            await self.stop_jobs(superseded, SUPERSEDED_REASON)\n",
        "            pass\n",
        f"{_SCHEDULER}::test_a_newer_occurrence_asks_the_running_one_to_stop",
    ),
    _one(
        "what waits is not replaced",
        f"{_SQL}/promotion.sql",
        "              WHERE locked_waiting.scheduled_for < judged.run_for\n",
        "              WHERE false\n",
        f"{_PROMOTE}::test_a_newer_occurrence_replaces_the_one_that_waits",
    ),
    _one(
        "what has begun is replaced",
        f"{_SQL}/promotion.sql",
        "          AND blocked.fence = 0\n",
        "",
        f"{_SCHEDULER}::test_a_retry_is_not_replaced_by_a_newer_occurrence",
    ),
    _one(
        "a retry replaces",
        f"{_SQL}/promotion.sql",
        "                AND judged.fence = 0\n",
        "",
        f"{_PROMOTE}::test_a_retry_replaces_nothing",
    ),
    _one(
        "an older one waits beside the newest",
        f"{_SQL}/promotion.sql",
        "    WHERE locked_waiting.scheduled_for > run.run_for\n",
        "    WHERE false\n",
        f"{_PROMOTE}::test_an_older_occurrence_gives_way_to_the_newer_one_that_waits",
    ),
    _one(
        "promoted while what it replaces is moved",
        f"{_SQL}/promotion.sql",
        "WHERE waiting.tid <> ALL (ARRAY(SELECT locked_waiting.tid FROM locked_waiting))",
        "WHERE false",
        f"{_RACES}::test_a_promotion_that_comes_while_what_it_would_replace_is_unblocked",
        f"{_RACES}::test_a_promotion_that_comes_while_what_it_would_replace_is_cancelled",
    ),
    _one(
        "a replaced one keeps its key",
        f"{_SQL}/promotion.sql",
        "        WHERE replaced.unique_key IS NOT NULL\n",
        "        WHERE false\n",
        f"{_PROMOTE}::test_a_replaced_occurrence_frees_its_key",
    ),
    _one(
        "two of a job in one statement",
        "engine/scheduler/scheduler.py",
        "                    replacing.add(row.job_id)\n",
        "                    pass\n",
        f"{_SCHEDULER}::test_after_a_freeze_only_the_newest_of_what_waited_and_what_came_waits",
    ),
    _one(
        "nor asked again",
        "engine/scheduler/housekeeping.py",
        "            await self._executions.stop_superseded_executions(keys)\n",
        "",
        f"{_REAPER}::test_what_was_to_stop_for_the_next_occurrence_is_asked_though_its_scheduler_died",
    ),
    _one(
        "an older one makes the newer stop",
        f"{_SQL}/limits.sql",
        "        AND blocked.scheduled_for > running.scheduled_for\n",
        "",
        f"{_REAPER}::test_nothing_else_that_waits_makes_what_runs_stop",
    ),
    # people
    _one(
        "a start that looks at no stop",
        "engine/worker/attempts.py",
        "        stop = self._stops.pop(claimed.id, None) if self._stops else None\n",
        "        stop = None\n",
        f"{_EXECUTOR}::test_what_waits_for_a_slot_is_called_off_when_it_would_start",
        f"{_EXECUTOR}::test_a_claim_that_comes_with_a_stop_is_not_started",
    ),
    _one(
        "a node without wake-ups polls seldom for stops",
        "engine/worker/executor.py",
        "        return _STOP_POLL if self._is_listening() else _STOP_POLL_WITHOUT_LISTENER\n",
        "        return _STOP_POLL\n",
        f"{_LIFE}::test_a_held_execution_is_cancelled_before_its_start_without_a_wakeup",
    ),
    _one(
        "a cancelled one-off comes back with the end of a pause",
        "domain/job_changes.py",
        "    if job.is_enqueued and snapshot.pending is None:\n",
        "    if False:\n",
        "tests/application/commands/test_jobs.py::test_a_one_off_that_was_cancelled_does_not_come_back_with_a_pause_and_its_end",
    ),
    _one(
        "a retry parked behind the resumption of its job",
        f"{_SQL}/promotion.sql",
        "          AND NOT EXISTS (SELECT 1 FROM looked_at WHERE looked_at.id = due.job_id AND looked_at.paused_at IS NULL)\n",
        "",
        f"{_SCHEDULER}::test_a_retry_that_was_read_during_a_pause_is_not_parked_after_it",
        f"{_RACES}::test_a_retry_is_not_parked_after_the_resumption_of_its_job",
    ),
    _one(
        "a held retry starts during a pause",
        "domain/lifecycle.py",
        "    if reason == SkipReason.PAUSED and facts.attempts > 1:\n",
        "    if False:\n",
        "tests/domain/test_lifecycle.py::test_a_retry_that_was_held_when_its_job_was_paused_waits",
    ),
    _one(
        "a retry that was held waits for no time of its own",
        f"{_SQL}/finishing.sql",
        "greatest(next_run_at, run_at)",
        "next_run_at",
        "tests/application/commands/test_jobs.py::test_a_held_retry_of_a_paused_job_waits_for_the_end_of_the_pause",
    ),
    _one(
        "a retry forgets its time over a pause",
        f"{_SQL}/jobs.sql",
        "scheduled_for, CASE WHEN kind <> 'occurrence' THEN watermark END),",
        "scheduled_for),",
        "tests/application/commands/test_jobs.py::test_a_retry_after_a_pause_waits_for_its_time",
    ),
    _one(
        "retries of a paused job go on",
        "engine/scheduler/scheduler.py",
        "        if paused:\n            await self._executions.park(paused)\n",
        "        paused = []\n        if paused:\n            await self._executions.park(paused)\n",
        f"{_SCHEDULER}::test_the_retries_of_a_paused_job_wait_until_it_is_resumed",
    ),
    _one(
        "a pause that was made longer ends as it was read",
        "engine/scheduler/scheduler.py",
        "    if until is None or until > snapshot.now:\n",
        "    if until is None:\n",
        f"{_SCHEDULER}::test_a_pause_that_was_made_longer_is_not_ended_by_what_was_read_before",
    ),
    _one(
        "what fell into a pause is not recorded",
        "domain/job_changes.py",
        "        skipped=_paused_skip(snapshot),\n        unpark=True,\n",
        "        unpark=True,\n",
        f"{_SCHEDULER}::test_the_scheduler_resumes_a_job_when_its_pause_is_over",
    ),
    _one(
        "an edit that takes the time away means now",
        "domain/job.py",
        "    if not spec.has_time:\n",
        "    if False:\n",
        "tests/domain/test_job.py::test_an_edit_that_takes_the_time_away_is_refused",
    ),
    _one(
        "a declared job without a time runs at every sync",
        "domain/job_changes.py",
        "    if not spec.has_time:\n",
        "    if False:\n",
        "tests/api/test_sync.py::test_a_manual_job_is_left_as_it_is_and_one_without_a_time_is_refused",
    ),
    # the dead
    _one(
        "a renewal after the lease has run out",
        f"{_SQL}/nodes.sql",
        "  AND lease_until > coalesce(:now, now())\nRETURNING draining",
        "RETURNING draining",
        f"{_HEARTBEAT}::test_a_renewal_that_finds_the_lease_run_out_is_refused",
    ),
    _one(
        "a lease that counts from its answer",
        "engine/lease.py",
        "        self._extend(sent)\n        self.peers",
        "        self._extend(self._env.clock.monotonic())\n        self.peers",
        f"{_HEARTBEAT}::test_a_lease_counts_from_the_moment_it_was_asked_for",
    ),
    _one(
        "rescued before the node is removed",
        "engine/scheduler/housekeeping.py",
        "        for incarnation, kind, name in await self._nodes.remove_expired():\n"
        "            self.emit(NodeExpired(incarnation, kind.value, name))\n"
        '        self.env.fault("reaper.expired")\n'
        "        orphans = await self._executions.orphans(_REAP_BATCH)\n",
        "        orphans = await self._executions.orphans(_REAP_BATCH)\n"
        "        for incarnation, kind, name in await self._nodes.remove_expired():\n"
        "            self.emit(NodeExpired(incarnation, kind.value, name))\n",
        f"{_REAPER}::test_an_expired_node_is_removed_and_its_executions_are_ready_again",
    ),
    _one(
        "no deadline",
        f"{_SQL}/finishing.sql",
        "   OR running.deadline < coalesce(:now, now())\n",
        "",
        f"{_REAPER}::test_an_attempt_past_its_deadline_times_out_although_its_worker_is_alive",
    ),
    _one(
        "at most once, and once more",
        "domain/lifecycle.py",
        '    if facts.delivery is Delivery.AT_MOST_ONCE:\n        reason = "its worker was lost',
        '    if False:\n        reason = "its worker was lost',
        f"{_LIFECYCLE}::test_at_most_once_never_runs_a_lost_attempt_again",
    ),
    _one(
        "lost once too often",
        "domain/lifecycle.py",
        "    if lost >= facts.retry.max_lost:\n",
        "    if lost > facts.retry.max_lost:\n",
        f"{_LIFECYCLE}::test_no_sequence_of_outcomes_exceeds_the_budgets",
        f"{_REAPER}::test_what_kills_its_worker_again_and_again_ends_dead",
    ),
    _one(
        "tried once too often",
        "domain/lifecycle.py",
        "    if failures > facts.retry.max_retries:\n",
        "    if failures > facts.retry.max_retries + 1:\n",
        f"{_LIFECYCLE}::test_no_sequence_of_outcomes_exceeds_the_budgets",
    ),
    _one(
        "what is given back counts",
        "domain/lifecycle.py",
        "    return Requeue(facts.attempts - 1, facts.lost)\n",
        "    return Requeue(facts.attempts, facts.lost)\n",
        f"{_LIFECYCLE}::test_released_and_snoozed_attempts_do_not_count",
    ),
    _one(
        "started without a lease",
        "engine/worker/executor.py",
        "        if not self.lease.is_held_at(self._queue.last_start):\n            return None\n",
        "",
        f"{_EXECUTOR}::test_without_a_lease_nothing_is_started",
    ),
    _one(
        "another database goes unnoticed",
        "engine/lease.py",
        "        if identity != self._identity:\n",
        "        if False:\n",
        f"{_HEARTBEAT}::test_another_database_in_its_place_ends_the_lease",
    ),
    _one(
        "and behind PgBouncer",
        "engine/lease.py",
        "                if is_new or self._store.database.behind_pgbouncer:\n",
        "                if is_new:\n",
        f"{_HEARTBEAT}::test_another_server_behind_pgbouncer_ends_the_lease_though_the_connection_stayed",
    ),
    # the drop
    _one(
        "a timer that is believed",
        "engine/worker/attempts.py",
        "        while self._held and self._held[0][0] <= now:\n",
        "        while self._held:\n",
        f"{_EXECUTOR}::test_a_timer_that_fires_early_starts_nothing",
    ),
    _one(
        "what cannot be ended gives its slot away",
        "engine/worker/attempts.py",
        "            busy += len(runner.overrunning)\n",
        "            pass\n",
        f"{_EXECUTOR}::test_what_cannot_be_ended_keeps_its_slot",
    ),
    # limits that are lowered
    _one(
        "a lower limit takes nothing back",
        "store/migrations/0001_initial.sql",
        "WHEN (NEW.max_running < OLD.max_running)\n",
        "WHEN (false)\n",
        "tests/store/test_jobs.py::test_a_new_job_with_a_lower_limit_blocks_the_excess",
    ),
    _one(
        "a lower limit does not wait for claims",
        "store/migrations/0001_initial.sql",
        "                         - NEW.max_running, 0)\n        FOR UPDATE\n",
        "                         - NEW.max_running, 0)\n",
        f"{_RACES}::test_a_new_job_lowers_a_shared_limit_while_a_claim_is_under_way",
    ),
    # zones
    _one(
        "older time-zone data overrule newer",
        f"{_SQL}/promotion.sql",
        "WHERE tzdata < :tzdata\n",
        "WHERE tzdata <> :tzdata\n",
        f"{_SCHEDULER}::test_occurrences_of_newer_zone_data_are_left_to_nodes_that_have_them",
    ),
    _one(
        "new time-zone data move nothing",
        "engine/scheduler/scheduler.py",
        "            await self._refresh_zones()\n",
        "            pass\n",
        f"{_SCHEDULER}::test_an_occurrence_that_older_time_zone_data_yielded_is_moved",
    ),
    _one(
        "what newer time-zone data move past the end is left as it is",
        "engine/scheduler/scheduler.py",
        "            elif await self._executions.end_occurrence(row, tzdata_version()):\n",
        "            elif False:\n",
        "tests/engine/test_zone_data.py::test_what_newer_data_move_past_the_end_is_settled_once",
    ),
    _one(
        "where a version left off is judged by the data of today",
        "domain/scheduling/ledger.py",
        "            self._hole(upcoming, until, self._left_off_by(period))\n",
        "            self._hole(upcoming, until, self._bounds.tzdata)\n",
        "tests/engine/test_zone_data.py::test_what_other_data_named_is_called_off_as_theirs",
    ),
    _one(
        "a version says that it left off by the data of whoever changed its job",
        "domain/job_changes.py",
        "        return pending.tzdata or None\n",
        "        return tzdata_version()\n",
        "tests/engine/test_zone_data.py::test_what_other_data_named_is_called_off_as_theirs",
    ),
    _one(
        "the end of a job is not noted with its version",
        f"{_SQL}/promotion.sql",
        "    SET tzdata = :tzdata\n    FROM taken\n",
        "    SET tzdata = CASE WHEN :tzdata = '' THEN '' END\n    FROM taken\n",
        "tests/engine/test_zone_data.py::test_the_end_of_a_job_is_judged_by_the_data_that_brought_it",
    ),
    # wake-ups
    _one(
        "a hint out of a caller's transaction",
        "store/enqueue.py",
        "            carried = self._notifier.take_pending(wakeup) if connection is None and wakeup else None\n",
        "            carried = self._notifier.take_pending(wakeup) if wakeup else None\n",
        "tests/store/db/test_notifier.py::test_the_transaction_of_a_caller_sends_no_wakeup",
    ),
    _one(
        "a listener that does not look behind itself",
        "engine/node.py",
        "        self._on_wakeup(Wakeup(nodes_changed=True, look_everywhere=True))\n",
        "",
        "tests/engine/test_listener.py::test_after_subscribing_the_node_looks_everywhere",
    ),
    _one(
        "a listener that does not probe",
        "engine/node.py",
        "                await self._probe()\n",
        "                pass\n",
        "tests/engine/test_listener.py::test_a_connection_that_was_cut_in_silence_is_found_out_and_replaced",
    ),
    _one(
        "a statement sent again on another connection",
        "store/db/database.py",
        "            except (*RETRYABLE, *on):\n",
        "            except (*RETRYABLE, StoreUnavailable, *on):\n",
        "tests/store/db/test_pool.py::test_a_transaction_whose_commit_may_be_lost_is_not_repeated",
    ),
    # brokers
    _one(
        "the same delay for every ticket",
        "engine/tickets.py",
        "min(2 * ticket.delay, _LONGEST_DELAY)",
        "min(ticket.delay, _LONGEST_DELAY)",
        f"{_DISPATCHER}::test_what_stays_unclaimed_gets_another_ticket_with_doubling_delay",
    ),
    _one(
        "any number of tickets",
        "engine/tickets.py",
        "        return await self._store.tickets.read(lanes, self._handlers, MAX_TICKETS)\n",
        "        return await self._store.tickets.read(lanes, self._handlers, 1_000_000)\n",
        f"{_DISPATCHER}::test_no_more_than_the_first_of_a_queue_have_a_ticket",
    ),
    _one(
        "no patience with tickets",
        "engine/tickets.py",
        "        return run_at > self.env.clock.now() - _UNCLAIMED_FOR\n",
        "        return False\n",
        f"{_RECEIVER}::test_while_tickets_arrive_wakeups_and_sweeps_leave_young_rows_alone",
    ),
    # leaving
    _one(
        "a leaving worker keeps what has not begun",
        "engine/worker/node.py",
        "        given_back = self.executor.give_back_all()\n",
        "        given_back = 0\n",
        f"{_LIFE}::test_a_leaving_worker_gives_back_what_has_not_begun_and_waits_for_the_rest",
    ),
    _one(
        "a leaving worker halts nothing",
        "engine/worker/node.py",
        "        self.executor.halt_all()\n",
        "",
        f"{_LIFE}::test_what_does_not_end_within_the_grace_is_halted_and_given_back_uncounted",
    ),
    _one(
        "a leaving scheduler keeps its shards",
        f"{_SQL}/nodes.sql",
        "    UPDATE timeball.shard\n    SET owner = NULL\n    WHERE owner = :incarnation\n)\nDELETE",
        "    SELECT 1\n)\nDELETE",
        f"{_LIFE}::test_a_leaving_scheduler_hands_its_shards_over_at_once",
        "tests/store/test_nodes.py::test_a_deregistered_node_releases_everything_at_once",
    ),
    # two versions of a handler
    _one(
        "an older worker goes on claiming what it has left to newer ones",
        "engine/worker/admission.py",
        "            self._leave(name, own, published)\n",
        "            pass\n",
        f"{_WATCH}::test_an_older_worker_gives_back_what_newer_code_takes_and_leaves_the_handler_to_it",
    ),
    _one(
        "an older worker takes a handler up again beside a newer one that lives",
        "engine/worker/admission.py",
        " if not has_newer_contract(versions.get(name, ()), fingerprints[name])\n",
        "\n",
        f"{_WATCH}::test_the_handler_is_claimed_again_when_no_newer_worker_is_alive",
    ),
    _one(
        "an older worker asks for newer ones in every round",
        "engine/worker/admission.py",
        "if self._held_back and self.is_time(self._checks_at):",
        "if self._held_back:",
        f"{_WATCH}::test_the_handler_is_claimed_again_when_no_newer_worker_is_alive",
    ),
    _one(
        "a handler that raises of itself is given back as a payload that does not fit",
        "engine/worker/admission.py",
        "isinstance(attempt.outcome, Failed) and attempt.outcome.is_payload_mismatch",
        "isinstance(attempt.outcome, Failed)",
        f"{_WATCH}::test_a_handler_that_raises_of_itself_has_failed_whatever_is_published",
    ),
    _one(
        "an older worker makes an execution dead",
        "domain/handler.py",
        "    if newest is None or newest.fingerprint == fingerprint:\n",
        "    if True:\n",
        f"{_WATCH}::test_what_only_newer_code_takes_waits_uncounted_until_a_worker_with_it_starts",
    ),
    _one(
        "an execution waits for a worker that is gone",
        "domain/handler.py",
        "version for version in versions if version.workers and version.fingerprint != fingerprint)",
        "version for version in versions if version.fingerprint != fingerprint)",
        f"{_WATCH}::test_the_newest_worker_waits_while_a_living_one_takes_the_payload_and_else_it_is_dead",
    ),
    _one(
        "what waits is checked with a payload that its job was given later",
        f"{_SQL}/handlers.sql",
        "timeball.payload_of(waiting.job_id, waiting.version)",
        "job.payload",
        "tests/api/test_handler_contracts.py::test_a_waiting_execution_is_checked_with_the_payload_of_its_job_version",
    ),
    # words
    _one(
        "the beginning of a secret where reading stopped",
        "handlers/builtin/webhook.py",
        "    return text[: -disclosure.longest]\n",
        "    return text\n",
        "tests/handlers/builtin/test_webhook.py::test_redaction_runs_before_truncation",
    ),
    # the caller's transaction
    _one(
        "a promotion that waits for who changes a job",
        f"{_SQL}/promotion.sql",
        "        OFFSET 0\n        FOR UPDATE SKIP LOCKED\n",
        "        OFFSET 0\n        FOR UPDATE\n",
        f"{_RACES}::test_a_promotion_that_comes_after_a_deletion",
    ),
    _one(
        "a scheduler that asks for a locked row again and again",
        "engine/scheduler/scheduler.py",
        "at_once=not refused <= self._refused",
        "at_once=True",
        f"{_SCHEDULER}::test_a_job_that_a_long_transaction_changes_holds_up_no_other",
    ),
    _one(
        "a taken name ends the caller's transaction",
        f"{_SQL}/jobs.sql",
        "    ON CONFLICT (name) WHERE name IS NOT NULL AND deleted_at IS NULL DO NOTHING\n",
        "",
        f"{_SCHEDULES}::test_a_caller_waits_for_a_transaction_that_creates_the_same_name",
    ),
    _one(
        "a change of a job outside of the caller's transaction",
        "store/jobs.py",
        "        if connection is not None:\n            return (await work(connection))[0]\n",
        "",
        f"{_SCHEDULES}::test_a_change_of_a_schedule_holds_exactly_if_the_transaction_commits",
    ),
    _one(
        "a schedule that takes the name of another handler's job",
        "application/commands/jobs.py",
        "                    _check_same_job(present, spec)\n",
        "                    pass\n",
        f"{_SCHEDULES}::test_the_name_of_another_handlers_job_is_refused",
    ),
    _one(
        "an expected error that hides an execution which is still to be retried",
        f"{_SQL}/finishing.sql",
        "    WHERE state = 'dead'\n      AND is_expected\n",
        "    WHERE is_expected\n",
        f"{_RECORDER}::test_an_expected_error_that_is_retried_settles_nothing",
    ),
    _one(
        "a failing backoff that changes the outcome",
        "engine/runners/outcome.py",
        '        text = f"the usual pause follows: backoff failed with',
        '        raise\n        text = f"the usual pause follows: backoff failed with',
        f"{_RUN_OUTCOME}::test_a_backoff_that_fails_is_told_in_the_log_and_the_usual_pause_follows",
    ),
    _one(
        "an error that is raised in our own code",
        "engine/runners/interrupt.py",
        "            return has_entered and filename.startswith(_CALLERS)",
        "            return has_entered",
        f"{_THREADS}::test_code_of_ours_that_a_handler_has_called_is_not_interrupted",
    ),
    _one(
        "an error that comes after the handler has returned",
        "engine/runners/interrupt.py",
        "                _take_back_error(thread)\n\n    def send",
        "                pass\n\n    def send",
        f"{_THREADS}::test_an_error_that_has_not_arrived_when_the_handler_returns_is_taken_back",
    ),
    _one(
        "an error that takes the place of what the handler has returned",
        "engine/runners/interrupt.py",
        "            if not returned:\n                raise",
        "            raise",
        f"{_THREADS}::test_a_return_stands_even_if_the_error_comes_while_it_is_taken_over",
    ),
    _one(
        "a child that goes on after its grace",
        "engine/runners/process.py",
        "        if is_running():\n            child.hang_up()",
        "        if not is_running():\n            child.hang_up()",
        f"{_PROCESSES}::test_a_handler_that_swallows_the_error_is_ended_after_its_grace",
    ),
    _one(
        "a child that is used for ever",
        "domain/handler.py",
        "        return runs < self.runs_per_child and (self.memory is None or memory <= self.memory)",
        "        return True",
        f"{_PROCESSES}::test_a_child_is_replaced_after_so_many_runs",
        f"{_PROCESSES}::test_a_child_is_replaced_after_the_run_that_left_it_with_too_much_memory",
    ),
    _one(
        "a used child for a handler that wants a fresh one",
        "engine/runners/process.py",
        "            if child.is_alive and limits.allows(child.runs, child.memory):",
        "            if child.is_alive:",
        f"{_PROCESSES}::test_a_handler_that_wants_a_fresh_child_gets_no_used_one",
    ),
    _one(
        "a child that is used again after an error out of nowhere",
        "engine/runners/child.py",
        "is_reusable = not self._was_interrupted and not _has_children()",
        "is_reusable = not _has_children()",
        f"{_PROCESSES}::test_the_code_of_a_handler_is_told_by_an_error_that_it_can_catch",
    ),
    _one(
        "an attempt that the reaper ends within its grace",
        "engine/worker/executor.py",
        "        if handler.grace > _GRACE_WITHIN_DEADLINE:",
        "        if False:",
        f"{_EXECUTOR}::test_the_reaper_leaves_an_attempt_alone_while_it_has_its_grace",
    ),
    _one(
        "an evaluation that comes late and opens what a newer one has resolved",
        "store/alerts.py",
        "            if latest > evaluation.at:",
        "            if False:",
        f"{_ALERT_STORE}::test_an_evaluation_that_comes_late_does_not_open_what_a_newer_one_has_resolved",
    ),
    _one(
        "two evaluators that both open the alert of a fact",
        f"{_SQL}/alerts.sql",
        "SELECT at\nFROM timeball.alert_evaluation\nFOR UPDATE;",
        "SELECT at\nFROM timeball.alert_evaluation;",
        f"{_ALERT_STORE}::test_evaluators_at_once_open_one_alert_and_tell_of_it_once",
    ),
    _one(
        "an acknowledgement that an evaluation beside it overwrites",
        f"{_SQL}/alerts.sql",
        "ORDER BY alert.fact\nFOR UPDATE OF alert;",
        "ORDER BY alert.fact;",
        f"{_ALERT_STORE}::test_an_acknowledgement_beside_an_evaluation_is_not_lost",
    ),
    _one(
        "a group that opens an alert for a fact which has one of its own",
        "domain/alerts.py",
        "fact.key not in keys and fact.plural is not None",
        "fact.plural is not None",
        f"{_ALERT_RULES}::test_facts_with_an_alert_keep_it_when_many_others_come",
    ),
    _one(
        "an acknowledgement that outlasts its instant",
        "domain/alerts.py",
        "if acknowledgement is not None and (is_news or not acknowledgement.holds(now)):",
        "if acknowledgement is not None and is_news:",
        f"{_ALERT_RULES}::test_an_acknowledgement_lasts_until_its_instant",
    ),
    _one(
        "deliveries of alerts that alert about themselves",
        "application/queries/alerts.py",
        "[queue for queue in queues if queue.name != DELIVERY_QUEUE]",
        "queues",
        f"{_ALERTS}::test_the_deliveries_of_alerts_are_no_facts",
    ),
    _one(
        "a watcher that takes what it cannot see for gone",
        "domain/watch.py",
        "[fact, *others]",
        "[fact]",
        f"{_WATCHED}::test_while_the_database_cannot_be_read_nothing_is_gone_and_nothing_else_opens",
    ),
    _one(
        "a watcher that tells what the installation tells",
        "domain/watch.py",
        "if fact.key in told or not observation.tells(fact)",
        "if fact.key",
        f"{_WATCHED}::test_what_the_installation_tells_the_watcher_does_not_tell",
    ),
    _one(
        "a watcher that gives unbound secrets to the channel of an editor",
        "engine/watcher.py",
        "(is_bound or not channel.bound_secrets_only)",
        "True",
        "tests/engine/test_watcher.py::test_a_channel_of_an_editor_uses_bound_secrets_alone_here_too",
    ),
    _one(
        "an expected error that counts as a failure in a row",
        f"{_SQL}/alerts.sql",
        "FILTER (WHERE state = 'dead' AND NOT is_expected AND goods = 0)",
        "FILTER (WHERE state = 'dead' AND goods = 0)",
        f"{_ALERTS}::test_an_expected_error_is_no_failure",
    ),
    _one(
        "a success that is forgotten behind many failures",
        "store/expectations.py",
        'last_success_at=row["last_success_at"] or hours.get(row["id"])',
        'last_success_at=row["last_success_at"]',
        f"{_ALERTS}::test_a_job_succeeds_in_time_however_many_executions_die_after_its_success",
    ),
    _one(
        "an evaluation by every scheduler",
        "engine/scheduler/housekeeping.py",
        "if not self._is_housekeeper() or not self.is_time(self._next_evaluation):",
        "if not self.is_time(self._next_evaluation):",
        f"{_ALERTS}::test_only_the_housekeeper_evaluates",
    ),
)


def main(wanted: list[str]) -> int:
    """Run them, or those whose name contains one of *wanted*; the number of those that live."""
    chosen = [mutant for mutant in MUTANTS if not wanted or any(word in mutant.name for word in wanted)]
    alive = []
    with tempfile.TemporaryDirectory(prefix="tb-mutants-") as folder:
        tree = Path(folder) / "tree"
        for part in ("src", "tests", "tools", "docs", "examples", "pyproject.toml"):
            _copy(ROOT / part, tree / part)
        for mutant in chosen:
            is_dead = _is_noticed(mutant, tree)
            print(f"{'caught' if is_dead else 'ALIVE '}  {mutant.name}", flush=True)
            if not is_dead:
                alive.append(mutant)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} were caught")
    return len(alive)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*", "node_modules", "*.png"))
    else:
        shutil.copy(source, target)


def _is_noticed(mutant: Mutant, tree: Path) -> bool:
    file = tree / "src" / "timeball" / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.old, mutant.new, 1))
    try:
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests)
        environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(whole)
    # Anything but failed tests is no answer: a name that is not found, a syntax error.
    if ended.returncode not in (0, 1):
        raise SystemExit(f"{mutant.name}: the tests could not be run\n{ended.stdout[-2000:]}")
    return ended.returncode == 1


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
