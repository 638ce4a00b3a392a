"""The comparison with other job queues, as far as it can be tested without starting them."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from bench.notebook import RATE
from bench.peers import __main__ as main_module
from bench.peers import contest as contest_module
from bench.peers import stage as stage_module
from bench.peers.__main__ import choose
from bench.peers.catalog import DEFAULT, HERE, PARTS, QUESTIONS, all_peers, variants_of
from bench.peers.chart import chart
from bench.peers.contest import Contest, FellShort, Note, size_of_run
from bench.peers.driver.marks import STARTED
from bench.peers.families import Member, family, kill
from bench.peers.marks import Mark, Marks
from bench.peers.page import BEGIN, END, PAGE, filled
from bench.peers.questions.recurring import count_up
from bench.peers.results import keep, left, path_of, read
from bench.peers.servers import Servers
from bench.peers.stage import Stage
from bench.peers.tables import ahead, for_terminal, in_columns, in_markdown, rows, show
from bench.report import RESULTS

from tests.support.broker_servers import free_port
from tests.support.servers import wait_until

PEERS = {"apscheduler", "arq", "bullmq", "celery", "dramatiq", "graphile", "pgqueuer", "procrastinate", "rq", "saq"}


def a_page(**changes: Any) -> dict[str, Any]:
    """What a run writes about a question."""
    measures = [
        {"subject": "Timeball", "figure": "one process", "unit": "/s", "median": 15432.1},
        {"subject": "Timeball", "figure": "p99", "unit": "ms", "median": 4.256},
        {"subject": "Slow", "figure": "p99", "unit": "ms", "median": 1234.5},
    ]
    peer = {"version": "1.2", "store": "Redis", "settings": "none", "keeps": "nothing", "survives": "little"}
    return {
        "question": "drain",
        "title": "draining",
        "measures": measures,
        "machine": {"at": "2026-11-16T08:15:00+00:00", "cores": 2, "load_before": 0.1},
        "size": "usual",
        "servers": {"Redis": "7, everysec"},
        "peers": [peer | {"subject": subject} for subject in ("Timeball", "Slow", "Absent")],
        "refusals": {"Absent": "no such thing", "Slow, one process": "no such thing"},
    } | changes


def shown(*pages: dict[str, Any]) -> str:
    return filled(f"{BEGIN}{END}", {"questions": pages})


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
        assert '"resolved"' not in lock  # each installation has its own package index


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


def test_a_run_begins_when_the_machine_is_quiet_or_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter((9.0, 3.0, 0.4))
    monkeypatch.setattr(main_module, "machine", lambda: {"cores": 2, "load_before": next(loads)})
    monkeypatch.setattr(main_module, "_GLANCE", 0.0)

    assert main_module.quiet_machine(60)["load_before"] == 0.4

    monkeypatch.setattr(main_module, "machine", lambda: {"cores": 2, "load_before": 9.0})
    assert main_module.quiet_machine(0)["load_before"] == 9.0


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


def test_a_client_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage_module, "_ANSWER_SECONDS", 0.1)
    variant = variants_of("timeball")[0]
    mute = replace(variant, peer=replace(variant.peer, client=["sleep", "60"]))

    with pytest.raises(RuntimeError, match="client of Timeball gave up"):
        Stage(mute, {"PATH": os.environ["PATH"], "REDIS_URL": ""}, tmp_path)


def test_an_interrupt_ends_the_run_though_it_has_ended_redis_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Servers, "_run", lambda *_: None)
    servers = Servers("postgresql://somebody@/database?host=/nowhere", free_port(), {})

    with pytest.raises(KeyboardInterrupt), servers.databases():
        raise KeyboardInterrupt


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
    assert marks.last_end(0, 8) == pytest.approx(3e-9)


def test_waiting_for_marks_ends_when_they_are_there_or_none_come(tmp_path: Path) -> None:
    marks = marks_of(tmp_path / "marks", (1, 0, 1))

    assert marks.wait_for(1, patience=60)
    assert not marks.wait_for(2, patience=0.01)
    assert marks.wait_until(1, deadline=0)
    assert not marks.wait_until(2, deadline=time.monotonic() + 0.01)


# schedules


def test_runs_that_name_their_instant_are_told_apart() -> None:
    on_time, again, late = Mark(1, 100.0, 0.01), Mark(1, 100.0, 0.02), Mark(2, 100.0, 1.5)
    too_soon, too_late = Mark(1, 99.0, 0.0), Mark(1, 102.0, 2.0)

    tally = count_up([on_time, again, late, too_soon, too_late], begin=100, seconds=2, offset=100.0)

    assert (tally.happened, tally.twice) == (2, 1)
    assert tally.late == pytest.approx([10, 20, 1500])


def test_who_is_behind_is_counted_by_what_it_began() -> None:
    owed = [Mark(number, 80.0 + number, 0.1 * number) for number in range(15)]
    again = Mark(0, 80.0, 0.05)

    tally = count_up([*owed, again], begin=100, seconds=1, offset=100.0)

    assert (tally.happened, tally.twice) == (10, 1)
    assert tally.late[:2] == pytest.approx([20_000, 19_100])


def test_who_is_a_little_late_is_counted_by_what_was_due() -> None:
    marks = [Mark(number, instant, instant - 100 + 0.9) for number in range(3) for instant in (99.0, 100.0, 101.0)]

    tally = count_up(marks[:-1], begin=100, seconds=2, offset=100.0)

    assert (tally.happened, tally.twice) == (5, 0)


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
    table = rows(a_page())

    assert table == [["", "one process", "p99"], ["Timeball", "15,432/s", "4.26 ms"], ["Slow", "-", "1,234 ms"]]
    assert in_columns(table).splitlines()[2] == "  Slow      -            1,234 ms"
    assert in_markdown(table).splitlines()[1:3] == ["| --- | --- | --- |", "| Timeball | 15,432/s | 4.26 ms |"]


def test_what_is_missing_has_its_reason_below_the_table() -> None:
    assert for_terminal(a_page()).endswith("  - Absent; Slow, one process: no such thing")


def measured(figure: str, unit: str, **medians: float) -> dict[str, Any]:
    subjects = {subject.replace("_", ", "): median for subject, median in medians.items()}
    measures = [
        {"subject": subject, "figure": figure, "unit": unit, "median": median} for subject, median in subjects.items()
    ]
    return a_page(measures=measures)


@pytest.mark.parametrize(
    ("figure", "unit", "better"),
    [
        ("one process", "/s", ["Quick (200/s)", "Near (105/s, level)"]),
        ("p99", "ms", ["Slow (50 ms)"]),
        ("twice, one", "", ["Slow (50)"]),
        ("of 8,000 runs happened", "", ["Quick (200)", "Near (105, level)"]),
    ],
)
def test_who_is_better_than_timeball_is_named(figure: str, unit: str, better: list[str]) -> None:
    page = measured(figure, unit, Near=105, Slow=50, Timeball=100, Quick=200, Timeball_fast=300)

    assert ahead(page, figure) == better


# results


def test_a_question_that_is_asked_again_replaces_its_page_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "results" / "peers.json"
    keep(path, a_page(question="enqueue", title="of the morning"))
    keep(path, a_page(question="drain", title="cut"))
    keep(path, a_page(question="drain", title="whole"))

    pages = read(path)["questions"]

    assert [(page["question"], page["title"]) for page in pages] == [("drain", "whole"), ("enqueue", "of the morning")]
    assert left(read(path)) == ["backlog", "latency", "lateness", "recurring", "recovery"]
    assert [file.name for file in path.parent.iterdir()] == ["peers.json"]


def test_a_run_of_few_jobs_or_few_peers_does_not_touch_the_result() -> None:
    everybody = path_of("usual", is_everybody=True)

    assert everybody.name == "peers.json"
    assert path_of("full", is_everybody=True) == everybody
    assert len({everybody, path_of("short", True), path_of("usual", False), path_of("short", False)}) == 4


def test_what_was_measured_before_a_peer_fell_short_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def falls_short(_stage: Stage) -> Iterator[Note]:
        yield "at 100/s", 7.0, RATE
        raise FellShort("at 500/s it does not keep up")

    def breaks(_stage: Stage) -> Iterator[Note]:
        raise RuntimeError("no such command")
        yield

    monkeypatch.setattr(contest_module, "staged", lambda *_: nullcontext())
    slow, broken = variants_of("rq")[0], variants_of("saq")[0]
    contest = Contest(Servers("", 0, {"PostgreSQL": "18", "Redis": "7"}), [slow, broken])
    contest.open("lateness", "late")
    contest.measure(slow, "lateness", falls_short)
    contest.measure(broken, "lateness", breaks)

    page = contest.page()

    assert [(measure["subject"], measure["median"]) for measure in page["measures"]] == [("RQ", 7.0)]
    assert page["refusals"] == {"RQ": "at 500/s it does not keep up", "SAQ": "failed: no such command"}
    assert [peer["subject"] for peer in page["peers"]] == ["RQ", "SAQ"]


# page


def test_the_page_takes_the_figures_between_its_markers() -> None:
    page = filled(f"before\n{BEGIN}\nold\n{END}\nafter\n", {"questions": [a_page()]})

    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "| Timeball | 15,432/s | 4.26 ms |" in page
    assert "old" not in page


def test_the_page_says_of_each_question_when_it_was_asked_and_whether_the_machine_was_busy() -> None:
    busy = {"at": "2026-11-17T09:30:00+00:00", "cores": 2, "load_before": 9.5}

    page = shown(a_page(), a_page(question="enqueue", title="enqueuing", machine=busy))

    assert "Asked on 2026-11-16 at 08:15 UTC; the machine was quiet." in page
    assert "Asked on 2026-11-17 at 09:30 UTC; the machine was busy (load 9.5)" in page
    assert "Not asked yet: backlog, latency, lateness, recurring, recovery." in page


def test_the_page_tells_the_versions_of_two_runs_apart() -> None:
    old, new = a_page(), a_page(question="enqueue")
    new["peers"] = [peer | {"version": "2.0"} for peer in new["peers"]]

    page = shown(old, new)

    assert "| Slow | 1.2 | drain | none |" in page
    assert "| Slow | 2.0 | enqueue | none |" in page


def test_the_page_names_the_peers_that_are_better_than_timeball_or_says_none() -> None:
    assert "Better than Timeball: none." in shown(a_page())
    assert "- p99: Quick (1 ms)" in shown(measured("p99", "ms", Timeball=4, Quick=1, Slow=9))


def test_the_page_repeats_what_somebody_noted_about_a_question() -> None:
    assert "Taken on a train." in shown(a_page(note="Taken on a train."))


def test_a_page_without_its_markers_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="lost its markers"):
        filled("nothing", {"questions": [a_page()]})
    assert BEGIN in PAGE.read_text()
    assert END in PAGE.read_text()


def test_the_page_shows_the_results_that_are_kept_with_it() -> None:
    page = PAGE.read_text()

    assert filled(page, read(RESULTS / "peers.json")) == page


# picture


def test_the_picture_has_a_panel_for_each_figure_that_matters_with_the_best_above() -> None:
    picture = chart(
        {"questions": [measured("p99 at 100/s", "ms", Slow=900, Timeball=3, None_=0) | {"question": "lateness"}]}
    )

    texts = [element.text for element in fromstring(picture).iter() if element.tag.endswith("text")]

    assert texts[0] == "lateness: p99 at 100/s (less is better)"
    assert [text for text in texts if text in ("Slow", "Timeball", "None, ")] == ["Timeball", "Slow"]
    assert {"3 ms", "900 ms", "1", "10", "100", "1,000"} <= set(texts)


def test_every_question_has_a_figure_that_is_drawn() -> None:
    drawn = chart(read(RESULTS / "peers.json"))

    assert all(f">{page['question']}: " in drawn for page in read(RESULTS / "peers.json")["questions"])
