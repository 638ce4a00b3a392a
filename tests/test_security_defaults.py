"""The security defaults, point by point: which tests show each, including the attack it stops.

A point without a test, or a test that was renamed or deleted, fails here. What can be seen without running is looked at below.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from timeball.api.auth import Role

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "timeball"
TESTS = ROOT / "tests"
BUILTIN = "handlers/builtin"

# The points are those of SECURITY.md.
POINTS: dict[int, dict[str, list[str]]] = {
    1: {
        "api/test_access.py": [
            "test_security_1_loopback_is_open_in_development",
            "test_security_1_only_loopback_is_served_without_keys",
            "test_security_1_the_first_key_ends_open_mode_for_good",
        ],
        "api/test_open_mode.py": [
            "test_security_1_a_program_of_the_own_account_needs_no_key",
            "test_security_1_another_account_of_the_machine_is_not_served_without_a_key",
            "test_security_1_a_request_through_a_proxy_needs_a_key",
            "test_a_socket_that_its_process_has_closed_has_no_owner",
            "test_a_request_without_a_peer_is_not_served",
            "test_a_server_that_cannot_ask_the_kernel_requires_its_local_key",
        ],
        "api/test_up.py": ["test_security_1_another_address_refuses_to_start_without_keys"],
    },
    2: {
        "api/test_access.py": [
            "test_security_2_every_route_requires_its_role",
            "test_security_2_keys_are_hashed_expire_and_are_revoked",
            "test_security_2_a_foreign_host_is_refused_in_open_mode",
            "test_security_2_another_site_cannot_use_the_open_mode",
        ],
        "api/test_events.py": [
            "test_a_revoked_key_ends_its_streams_even_while_events_flow",
            "test_an_expired_key_ends_its_open_stream",
        ],
        "dashboard/test_stream.py": ["test_a_revoked_key_ends_its_streams"],
        "dashboard/test_login.py": ["test_pages_of_other_sites_get_nothing_in_open_mode"],
    },
    3: {
        "api/test_conventions.py": ["test_security_3_unknown_fields_are_refused"],
        "api/test_access.py": ["test_security_3_another_payload_requires_the_role_editor"],
        "api/test_request_cost.py": [
            "test_security_3_no_byte_of_a_body_is_read_before_the_role_is_checked",
            "test_security_3_no_form_is_read_before_the_role_is_checked",
        ],
        "api/test_handlers.py": [
            "test_security_3_commands_are_written_by_administrators_only",
            "test_security_3_retrying_a_command_with_another_payload_needs_an_administrator",
            "test_security_3_an_editor_cannot_put_a_payload_under_a_queued_command",
            "test_security_3_a_retry_is_judged_by_the_handler_that_runs_it",
            "test_security_3_a_planted_payload_is_not_carried_over_to_a_command",
        ],
        "api/test_templates.py": ["test_security_3_templates_of_commands_are_for_administrators"],
        "api/test_sync.py": ["test_security_3_commands_are_declared_by_administrators_only"],
        "handlers/builtin/test_shell.py": ["test_a_payload_cannot_choose_a_user_or_limits"],
        "handlers/builtin/test_files.py": ["test_a_payload_cannot_choose_rights"],
    },
    4: {
        "test_security_defaults.py": ["test_security_4_nothing_stored_is_ever_run_as_code"],
        "domain/test_template.py": ["test_names_are_replaced_once_and_as_they_are"],
    },
    5: {
        "test_security_defaults.py": ["test_security_5_only_the_api_and_the_embedded_server_listen"],
        "engine/worker/test_claimer.py": ["test_a_worker_claims_only_what_its_handlers_can_run"],
    },
    6: {
        "handlers/builtin/test_shell.py": [
            "test_the_shell_is_off_until_it_is_enabled",
            "test_a_worker_that_is_not_enabled_runs_nothing_even_if_it_is_asked",
            "test_only_listed_programs_are_started",
            "test_a_program_of_the_folder_it_runs_in_is_not_mistaken_for_a_listed_one",
            "test_arguments_never_meet_a_shell",
            "test_the_environment_is_clean",
            "test_only_variables_of_the_administrators_list_can_be_set",
            "test_a_worker_run_by_root_runs_commands_as_nobody_without_a_way_back",
            "test_a_command_is_killed_whole_though_it_ignores_term_and_forks_away",
            "test_a_fork_bomb_ends_with_its_command",
            "test_a_command_that_uses_up_its_cpu_time_is_ended",
            "test_a_command_that_takes_too_much_memory_fails",
            "test_a_command_cannot_write_a_file_larger_than_allowed",
            "test_a_command_that_says_too_much_is_ended",
        ],
    },
    7: {
        "handlers/builtin/test_egress.py": [
            "test_webhooks_do_not_reach_private_addresses",
            "test_webhooks_do_not_reach_private_addresses_in_disguise",
            "test_metadata_services_are_never_reached_not_even_by_the_allow_list",
            "test_https_is_the_default_and_http_needs_a_word_of_the_administrator",
            "test_urls_with_user_names_other_schemes_or_odd_addresses_are_refused",
        ],
        "handlers/builtin/test_webhook.py": [
            "test_dns_rebinding_between_check_and_connection_is_stopped",
            "test_one_private_address_among_public_ones_is_enough_to_refuse",
            "test_redirects_are_refused_and_not_followed",
            "test_proxy_variables_are_ignored",
            "test_a_line_break_in_a_url_does_not_become_a_second_request",
            "test_a_huge_answer_is_cut_at_64_kib_and_not_read_to_its_end",
            "test_a_slow_server_is_given_up_after_the_timeout",
            "test_a_request_is_signed_by_standard_webhooks_with_old_and_new_secret",
        ],
    },
    8: {
        "handlers/builtin/test_email.py": [
            "test_header_and_envelope_injection_is_refused_when_the_job_is_created",
            "test_recipients_are_checked_against_the_policy",
        ],
    },
    9: {
        "handlers/builtin/test_files.py": [
            "test_a_path_cannot_lead_out_of_the_root",
            "test_what_merely_looks_like_the_way_up_is_a_name_like_any_other",
            "test_a_file_is_not_written_through_a_link",
            "test_a_link_put_in_place_between_check_and_use_does_not_lead_out",
            "test_a_reader_never_sees_half_a_file",
            "test_what_is_written_is_never_executable",
        ],
    },
    10: {
        "handlers/builtin/test_worker.py": [
            "test_a_worker_runs_what_comes_in_the_box_and_keeps_no_secret",
            "test_an_editors_webhook_gets_no_secret_that_is_not_bound_to_its_host",
        ],
        "api/test_secret_rights.py": ["test_security_10_the_first_use_of_a_secret_is_audited"],
        "handlers/builtin/test_webhook.py": ["test_redaction_runs_before_truncation"],
        "handlers/builtin/test_shell.py": ["test_secrets_reach_the_command_and_not_its_log"],
        "domain/values/test_redaction.py": [
            "test_values_under_keys_that_sound_like_secrets_are_hidden_but_references_may_be_seen",
            "test_a_secret_query_parameter_is_hidden",
        ],
    },
    11: {
        "dashboard/test_app.py": [
            "test_every_answer_bears_the_strict_policy",
            "test_no_template_has_a_script_or_a_style_of_its_own",
            "test_the_session_cookie_is_out_of_reach",
            "test_a_change_from_another_site_is_refused",
            "test_a_form_without_its_token_is_refused",
        ],
        "dashboard/test_login.py": [
            "test_a_toast_that_we_did_not_sign_is_ignored",
            "test_a_session_that_is_not_used_ends",
            "test_a_second_login_ends_the_first_session_of_the_browser",
            "test_a_logout_ends_the_session_for_good",
        ],
    },
    12: {
        "api/test_conventions.py": [
            "test_security_12_exports_are_harmless_in_a_spreadsheet",
            "test_a_label_with_control_or_bidi_characters_is_refused_everywhere",
        ],
        "cli/test_tail.py": [
            "test_tail_top_and_why_are_harmless_in_a_pipe",
            "test_an_export_on_a_terminal_moves_no_cursor",
        ],
    },
    13: {
        "api/test_limits.py": [
            "test_security_13_a_429_says_when_to_try_again",
            "test_security_13_one_key_does_not_use_up_the_limits_of_another",
            "test_security_13_trying_keys_is_limited_by_address",
            "test_security_13_the_largest_body_is_a_setting",
        ],
        "dashboard/test_login.py": [
            "test_security_13_logins_are_limited_by_address",
            "test_trying_keys_and_sessions_on_pages_is_limited_too",
        ],
        "dashboard/test_stream.py": ["test_one_key_does_not_take_the_streams_of_all"],
    },
    14: {
        "test_security_defaults.py": ["test_security_14_the_audit_is_only_ever_added_to"],
        "api/test_created_by.py": ["test_security_14_a_one_off_of_an_administrators_handler_is_audited"],
        "api/test_handlers.py": ["test_security_14_creating_and_draining_is_audited_with_who_and_where"],
        "api/test_operations.py": ["test_security_14_a_small_operation_has_one_audit_record"],
        "dashboard/test_login.py": [
            "test_security_14_logins_are_audited_counted_and_logged_with_their_place",
            "test_security_14_what_is_done_in_the_dashboard_is_audited_with_its_place",
            "test_tries_of_one_address_are_told_once_a_minute_with_their_number",
        ],
    },
    15: {
        "test_security_defaults.py": [
            "test_security_15_every_package_is_locked_by_its_hash",
            "test_security_15_the_locks_are_checked_for_known_vulnerabilities",
            "test_security_15_a_new_installation_has_no_jobs_of_its_own",
        ],
    },
}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("point", range(1, 16))
def test_every_security_default_has_its_tests(point: int) -> None:
    for path, names in POINTS[point].items():
        assert set(names) <= names_in(path), path


def test_tests_that_are_named_after_a_point_are_in_the_table() -> None:
    for path in TESTS.rglob("test_*.py"):
        name = path.relative_to(TESTS).as_posix()
        for test in names_in(name):
            found = re.match(r"test_security_(\d+)_", test)
            if found is not None:
                assert test in POINTS[int(found[1])].get(name, []), f"{name}: {test}"


def test_security_md_has_every_point() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

    assert [int(number) for number in re.findall(r"(?m)^(\d+)\. ", text)] == list(POINTS)


def test_every_attack_of_security_md_has_its_numbers_and_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("## What was attacked")[2].splitlines()
        if line.startswith("| ") and not line.startswith("| attack")
    ]

    assert len(rows) == 20
    for attack, tried, holes, repeated in rows:
        assert int(tried) > 0, attack
        assert holes == "0", attack
        named = re.findall(r"`([^`]+)::([^`]+)`", repeated)
        assert named or repeated == "by hand", attack
        for path, name in named:
            assert name in names_in(path), f"{path}::{name}"


def test_security_md_says_what_each_kind_of_person_reaches() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    told = re.findall(r"(?m)^\| \*\*([^*]+)\*\* \|", text)

    assert told == [
        "stranger",
        *("administrator" if role == "admin" else role for role in Role),
        "account on the machine",
        "author of handlers",
        "owner of the database",
    ]


# what can be seen without running

CODE_FROM_DATA = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
MAY_IMPORT_BY_NAME = {
    "__init__.py": "the public names, from a list of its own",
    "testing/__init__.py": "the public names for tests, from a list of its own",
    "domain/scheduling/civil_time.py": "the tzdata package, by its own name",
    "domain/calendar.py": "the packages of two extras, by names of its own",
    "cli/tree.py": "the commands, from a list of its own",
    "contrib/django/app.py": "the modules of tasks that the settings of a Django project name",
    "sdk/app_loader.py": "the program that is named on the command line",
    "engine/runners/child.py": "the program of the worker that started this child",
}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_security_4_nothing_stored_is_ever_run_as_code() -> None:
    for path in sources():
        name = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not {module.split(".")[0] for module in modules} & CODE_FROM_DATA, name
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "__import__"}, f"{name}:{node.lineno}"
                if called.endswith("import_module"):
                    assert name in MAY_IMPORT_BY_NAME, f"{name}:{node.lineno}"


MAY_LISTEN = {
    "api/server.py",
    "store/embedded/server.py",
    "store/embedded/cluster.py",
    "store/embedded/data_directory.py",
}


def test_security_5_only_the_api_and_the_embedded_server_listen() -> None:
    listens = re.compile(r"\.listen\([0-9]*\)|\.bind\(\(|start_server\(|create_server\(|start_unix_server\(|TCPServer")

    found = {path.relative_to(SOURCE).as_posix() for path in sources() if listens.search(path.read_text())}

    assert found <= MAY_LISTEN


def test_security_14_the_audit_is_only_ever_added_to() -> None:
    statements = "\n".join(path.read_text() for path in (SOURCE / "store").rglob("*.sql"))
    # What has outlived its retention is forgotten, by its age alone.
    trim = re.compile(
        r"DELETE FROM timeball\.audit\nWHERE id IN \(SELECT id FROM timeball\.audit WHERE at < :before LIMIT :limit\)"
    )
    statements = trim.sub("", statements, count=1)
    code = "\n".join(path.read_text() for path in sources())

    assert "INSERT INTO timeball.audit" in statements
    for text in (statements, code):
        assert not re.search(r"(DELETE\s+FROM|TRUNCATE)\s+timeball\.audit\b", text)
        # `recorded` says in which order rows were committed, and nothing about what somebody did.
        changed = re.findall(r"UPDATE\s+timeball\.audit\s+SET\s+(\w+) = [^,]*?\s+WHERE", text)
        assert set(changed) <= {"recorded"}
        assert len(changed) == len(re.findall(r"UPDATE\s+timeball\.audit\b", text))


@pytest.mark.parametrize("lock", ["run.lock", "dev.lock"])
def test_security_15_every_package_is_locked_by_its_hash(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")

    packages = re.split(r"(?m)^(?=[a-zA-Z0-9])", text)[1:]

    assert len(packages) > 10
    for package in packages:
        assert re.match(r"[a-zA-Z0-9._-]+(\[[^\]]+\])?==", package), package.splitlines()[0]
        assert "--hash=sha256:" in package, package.splitlines()[0]


def test_security_15_the_locks_are_checked_for_known_vulnerabilities() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    script = (ROOT / "scripts" / "audit-packages").read_text(encoding="utf-8")

    assert re.search(r"(?m)^check:.*\baudit\b", makefile)
    assert "scripts/audit-packages requirements/run.lock" in makefile
    assert re.search(r"for step in .*\baudit\b", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert "pip-audit" in script
    assert "--require-hashes" in script


def audit(folder: Path, probe: str, verdict: int) -> subprocess.CompletedProcess[str]:
    """The audit, by a program that says *probe* of the release that is known to be bad, and ends with *verdict* for the lock."""
    auditor = folder / "auditor"
    auditor.write_text(f'#!/bin/sh\ncase "$*" in *--strict*) exit {verdict} ;; *) {probe} ;; esac\n')
    auditor.chmod(0o755)
    command = ["sh", "scripts/audit-packages", "requirements/run.lock"]
    environment = os.environ | {"TIMEBALL_AUDITOR": str(auditor)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_an_audit_that_finds_something_fails(tmp_path: Path) -> None:
    knows = "echo Found 5 known vulnerabilities in 1 package >&2; exit 1"

    assert audit(tmp_path, knows, verdict=1).returncode == 1
    assert audit(tmp_path, knows, verdict=0).returncode == 0


@pytest.mark.parametrize(
    "probe",
    ["echo No known vulnerabilities found >&2", "echo ConnectionError: cannot be reached >&2; exit 1"],
    ids=["a mirror without advisories", "no connection"],
)
def test_an_audit_without_advisories_says_so_in_one_line_and_does_not_fail(tmp_path: Path, probe: str) -> None:
    done = audit(tmp_path, probe, verdict=1)

    assert done.returncode == 0
    assert done.stdout.splitlines() == ["audit: skipped, the advisory database cannot be reached"]
    assert done.stderr == ""


def test_security_15_a_new_installation_has_no_jobs_of_its_own() -> None:
    migrations = "\n".join(path.read_text() for path in (SOURCE / "store" / "migrations").glob("*.sql"))
    # What a function inserts is inserted when it is called.
    migrations = re.sub(r"\$\$.*?\$\$", "", migrations, flags=re.DOTALL)

    assert not re.search(r"INSERT\s+INTO\s+timeball\.(job|due|ready|template|api_key)\b", migrations)
