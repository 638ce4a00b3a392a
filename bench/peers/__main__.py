"""`python -m bench.peers [question ...]`: the same work on all peers, in `bench/results/peers.json`.

PEERS="procrastinate bullmq" asks these beside Timeball; FULL=1 asks the long versions, SHORT=1 only whether it works.
A run that was cut goes on with the questions it is given: those that were answered stay in the file.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bench.peers.catalog import QUESTIONS, Variant, all_peers, variants_of
from bench.peers.contest import Contest, size_of_run
from bench.peers.environments import environment_of
from bench.peers.results import is_quiet, keep, left, path_of, read
from bench.peers.servers import running_servers
from bench.peers.tables import for_terminal, settings
from bench.report import machine

_PATIENCE = 90.0
_GLANCE = 10.0


def choose(asked: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """What was asked for, in the usual order; everything if nothing was."""
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise SystemExit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if not asked or name in asked]


def chosen_variants() -> list[Variant]:
    """The peers of PEERS and Timeball, with all their settings."""
    asked = os.environ.get("PEERS", "").split()
    names = choose([*asked, "timeball"] if asked else [], all_peers(), "peer")
    return [variant for name in names for variant in variants_of(name)]


def _ask(contest: Contest, question: str) -> None:
    module = importlib.import_module(f"bench.peers.questions.{question}")
    begun = time.monotonic()
    contest.open(question, module.TITLE)
    print(f"\n{question}", flush=True)
    module.ask(contest)
    print(for_terminal(contest.page()))
    print(f"  asked in {time.monotonic() - begun:.0f} s", flush=True)


def quiet_machine(patience: float) -> dict[str, Any]:
    """What is measured on, once what ran before has ended and is no longer in its load; not later than after so many seconds."""
    deadline = time.monotonic() + patience
    while not is_quiet(found := machine()) and time.monotonic() < deadline:
        print(f"waiting for the machine to become quiet (load {found['load_before']:.1f})", flush=True)
        time.sleep(min(_GLANCE, patience))
    return found


def main() -> None:
    # SIGTERM ends servers and workers too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    questions = choose(sys.argv[1:], QUESTIONS, "question")
    variants = chosen_variants()
    for peer in {variant.peer.name: variant.peer for variant in variants}.values():
        environment_of(peer)
    # Once: the second question would take the load of the first for that of another program.
    before = quiet_machine(0 if size_of_run() == "short" else _PATIENCE)
    with running_servers() as servers:
        contest = Contest(servers, variants)
        path = path_of(contest.size, is_everybody=not os.environ.get("PEERS"))
        print(settings(variants, servers))
        for question in questions:
            asked_at = datetime.now(UTC).isoformat(timespec="seconds")
            _ask(contest, question)
            # After each question: a run that is cut short keeps what it has found.
            keep(path, contest.page() | {"machine": before | {"at": asked_at}})
    owed = left(read(path))
    print(f"\n{path.name}: " + (f"still to be asked: {' '.join(owed)}" if owed else "all questions asked"), flush=True)


if __name__ == "__main__":
    main()
