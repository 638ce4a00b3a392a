"""The comparison with other job queues, as far as it can be tested without starting them."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from bench.peers.__main__ import choose
from bench.peers.catalog import DEFAULT, HERE, PARTS, QUESTIONS, all_peers, variants_of
from bench.peers.contest import size_of_run
from bench.peers.driver.marks import STARTED
from bench.peers.families import Member, family, kill
from bench.peers.marks import Mark, Marks
from bench.peers.page import BEGIN, END, PAGE, filled
from bench.peers.questions.recurring import count_up
from bench.peers.tables import for_terminal, in_columns, in_markdown, rows, show

from tests.servers import wait_until

PEERS = {"apscheduler", "arq", "bullmq", "celery", "dramatiq", "graphile", "pgqueuer", "procrastinate", "rq", "saq"}


def document(**changes: Any) -> dict[str, Any]:
    measures = [
        {"subject": "Timeball", "figure": "one process", "unit": "/s", "median": 15432.1},
        {"subject": "Timeball", "figure": "p99", "unit": "ms", "median": 4.256},
        {"subject": "Slow", "figure": "p99", "unit": "ms", "median": 1234.5},
    ]
    peer = {"version": "1.2", "store": "Redis", "settings": "none", "keeps": "nothing", "survives": "little"}
    return {
        "machine": {"at": "2026-11-16T08:00:00+00:00", "cores": 2, "load_before": 0.1},
        "size": "usual",
        "servers": {"Redis": "7, everysec"},
        "peers": [peer | {"subject": subject} for subject in ("Timeball", "Slow", "Absent")],
        "refusals": {"drain": {"Absent": "no such thing", "Slow, one process": "no such thing"}},
        "questions": [{"question": "drain", "title": "draining", "measures": measures}],
    } | changes


# peers


def test_all_peers_are_there_and_timeball_is_first() -> None:
    assert all_peers()[0] == "timeball"
    assert set(all_peers()[1:]) == PEERS


@pytest.mark.parametrize("name", all_peers())
def test_the_description_of_a_peer_is_complete(name: str) -> None:
    variants = variants_of(name)

    assert variants[0].name == DEFAULT
    assert variants[0].questions == QUESTIONS
    for variant in variants:
        assert variant.says
        assert set(variant.questions) <= set(QUESTIONS)
        assert "scheduler" in variant.commands or not variant.peer.scheduler_for
        assert all(re.fullmatch(r"[\w.+-]+", variant.commands[role][0]) for role in variant.commands)


@pytest.mark.parametrize("name", all_peers())
def test_a_peer_says_what_it_keeps_and_why_it_is_not_asked(name: str) -> None:
    peer = variants_of(name)[0].peer

    assert peer.keeps
    assert peer.survives
    assert set(peer.cannot) <= set(PARTS)
    assert all(peer.cannot.values())
    assert set(peer.scheduler_for) <= set(QUESTIONS)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_the_versions_of_a_peer_are_pinned(name: str) -> None:
    peer = variants_of(name)[0].peer

    assert re.fullmatch(r"[\d.]+\w*", peer.version)
    if peer.language == "python":
        assert all("==" in line for line in (peer.folder / "requirements.txt").read_text().splitlines())
    else:
        lock = (peer.folder / "package-lock.json").read_text()
        assert f'"version": "{peer.version}"' in lock
        assert '"resolved"' not in lock  # whoever installs it has an index of his own


@pytest.mark.parametrize("name", all_peers())
def test_every_program_a_peer_starts_is_in_its_folder(name: str) -> None:
    for variant in variants_of(name):
        named = [part for command in (variant.peer.client, *variant.commands.values()) for part in command]
        for program in (part for part in named if part.endswith((".py", ".mjs"))):
            assert (variant.peer.folder / program).exists()


def test_every_description_has_only_words_that_are_read() -> None:
    known = {
        *("title", "package", "language", "store", "client", "drain_jobs", "hears_others", "scheduler_for"),
        *("keeps", "survives", "commands", "settings", "cannot"),
    }
    for path in HERE.glob("*/peer.toml"):
        described = tomllib.loads(path.read_text())
        assert set(described) <= known, path
        for settings in described["settings"].values():
            assert set(settings) <= {"says", "questions", "drain_jobs", "environment", "commands"}, path


def test_what_is_unknown_is_refused_with_what_there_is() -> None:
    assert choose([], QUESTIONS, "question") == list(QUESTIONS)
    assert choose(["enqueue", "drain"], QUESTIONS, "question") == ["drain", "enqueue"]
    with pytest.raises(SystemExit, match=r"no such question: sing; there are drain, .*enqueue"):
        choose(["sing"], QUESTIONS, "question")


def test_a_run_is_usual_unless_it_is_asked_to_be_short_or_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FULL", raising=False)
    monkeypatch.delenv("SHORT", raising=False)
    assert size_of_run() == "usual"

    monkeypatch.setenv("FULL", "1")
    assert size_of_run() == "full"

    monkeypatch.setenv("SHORT", "1")
    with pytest.raises(SystemExit, match="choose one"):
        size_of_run()


# processes


def test_a_family_has_grandchildren_and_ends_with_them() -> None:
    shell = ["sh", "-c", "sh -c 'sleep 60; :' & echo started; wait; sleep 60; :"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        wait_until(lambda: len(family(parent.pid)) == 3, "the grandchild is there")
        members = family(parent.pid)

        for member in reversed(members):
            kill(member)

    assert parent.returncode == -signal.SIGKILL
    wait_until(lambda: not any(family(member.pid) for member in members[1:]), "its descendants are gone")


def test_a_process_that_took_over_a_number_is_spared() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        kill(Member(process.pid, "an earlier birth"))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)

        kill(family(process.pid)[0])
        assert process.wait() == -signal.SIGKILL


# marks


def marks_of(path: Path, *written: tuple[int, int, int]) -> Marks:
    path.write_bytes(b"".join(struct.pack("<qqq", *mark) for mark in written))
    return Marks(path)


def test_marks_are_counted_and_read(tmp_path: Path) -> None:
    marks = marks_of(tmp_path / "marks", (7, 0, 3_000_000_000), (6, 1_500_000, 2_000_000_000), (99, 0, 1))

    assert marks.count() == 3
    assert marks.of(0, 10) == [Mark(6, 1.5, 2.0), Mark(7, None, 3.0)]


def test_a_long_job_is_finished_once_it_has_marked_its_end(tmp_path: Path) -> None:
    marks = marks_of(tmp_path / "marks", (STARTED + 1, 0, 1), (STARTED + 2, 0, 2), (1, 0, 3), (1, 0, 4))

    assert marks.finished(0, 8) == 1


def test_waiting_for_marks_ends_when_they_are_there_or_none_come(tmp_path: Path) -> None:
    marks = marks_of(tmp_path / "marks", (1, 0, 1))

    assert marks.wait_for(1, patience=60)
    assert not marks.wait_for(2, patience=0.01)


# schedules


def test_runs_that_name_their_instant_are_told_apart() -> None:
    on_time, again, late = Mark(1, 100.0, 0.01), Mark(1, 100.0, 0.02), Mark(2, 100.0, 1.5)
    too_soon, too_late = Mark(1, 99.0, 0.0), Mark(1, 102.0, 2.0)

    tally = count_up([on_time, again, late, too_soon, too_late], begin=100, seconds=2, offset=100.0)

    assert (tally.happened, tally.twice) == (2, 1)
    assert tally.late == pytest.approx([10, 20, 1500])


@pytest.mark.parametrize(
    ("runs", "happened", "twice"), [(10, 10, 0), (9, 10, 0), (11, 10, 0), (8, 8, 0), (12, 10, 1), (20, 10, 9)]
)
def test_runs_that_do_not_are_counted_with_one_to_spare(runs: int, happened: int, twice: int) -> None:
    marks = [Mark(1, None, index * 10 / runs) for index in range(runs)]

    tally = count_up(marks, begin=100, seconds=10, offset=100.0)

    assert (tally.happened, tally.twice, tally.late) == (happened, twice, [])


# tables


@pytest.mark.parametrize(
    ("median", "unit", "text"),
    [
        (15432.1, "/s", "15,432/s"),
        (4.256, "ms", "4.26 ms"),
        (42.42, "s", "42.4 s"),
        (0.0, "", "0"),
        (100.0, "%", "100 %"),
    ],
)
def test_medians_are_shown_with_three_digits_or_whole(median: float, unit: str, text: str) -> None:
    assert show({"median": median, "unit": unit}) == text


def test_a_table_has_a_row_for_each_that_was_measured_and_a_dash_for_what_is_missing() -> None:
    table = rows(document()["questions"][0], ["Timeball", "Slow", "Absent"])

    assert table == [["", "one process", "p99"], ["Timeball", "15,432/s", "4.26 ms"], ["Slow", "-", "1,234 ms"]]
    assert in_columns(table).splitlines()[2] == "  Slow      -            1,234 ms"
    assert in_markdown(table).splitlines()[1:3] == ["| --- | --- | --- |", "| Timeball | 15,432/s | 4.26 ms |"]


def test_what_is_missing_has_its_reason_below_the_table() -> None:
    said = for_terminal(document(), document()["questions"][0])

    assert said.endswith("  - Absent; Slow, one process: no such thing")


# page


def test_the_page_takes_the_figures_between_its_markers() -> None:
    page = filled(f"before\n{BEGIN}\nold\n{END}\nafter\n", document())

    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "| Timeball | 15,432/s | 4.26 ms |" in page
    assert "old" not in page
    assert "the machine was quiet" in page


def test_the_page_says_when_the_machine_was_busy() -> None:
    busy = document(machine={"at": "2026-11-16T08:00:00+00:00", "cores": 2, "load_before": 9.5})

    assert "busy (load 9.5)" in filled(f"{BEGIN}{END}", busy)


def test_the_page_repeats_what_somebody_noted_about_a_run() -> None:
    assert "Taken on a train." in filled(f"{BEGIN}{END}", document(note="Taken on a train."))


def test_a_page_without_its_markers_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="lost its markers"):
        filled("nothing", document())
    assert BEGIN in PAGE.read_text()
    assert END in PAGE.read_text()
