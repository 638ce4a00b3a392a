"""A small model of claims and of firing, explored whole: all orders of its steps, with crashes, delays and a lossy failover.

Not the engine: the ideas behind its statements, each guard a word that can be left out. `explore` walks breadth first, so what it returns
is a shortest way to a broken promise, or None if there is no way at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass(frozen=True)
class Model(Generic[State]):
    """Where it begins, what can happen next, and what is broken about a state, if anything is."""

    start: State
    steps: Callable[[State], Iterator[tuple[str, State]]]
    broken: Callable[[State], str | None]


def explore(model: Model[State]) -> list[str] | None:
    """The steps of a shortest way to a broken promise, and which it is."""
    came_from: dict[State, tuple[State, str] | None] = {model.start: None}
    waiting = deque([model.start])
    while waiting:
        state = waiting.popleft()
        if (what := model.broken(state)) is not None:
            return [*_way_to(state, came_from), what]
        for name, following in model.steps(state):
            if following not in came_from:
                came_from[following] = state, name
                waiting.append(following)
    return None


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    at: tuple[State, str] | None = came_from[state]
    while at is not None:
        state, name = at
        way.append(name)
        at = came_from[state]
    return way[::-1]


# claims: one execution, two workers, a reaper


CLAIM_GUARDS = frozenset({"claim id", "fence", "fence grows", "from ready", "only the dead are reaped"})
_MOST_CLAIMS = 3
_MOST_LIVES = 2


@dataclass(frozen=True)
class Held:
    """What a worker believes to hold, and what its outcome will say."""

    fence: int
    claim: int


@dataclass(frozen=True)
class Worker:
    """A process, in one of its lives; frozen ones hold on to what they held when their lease ran out."""

    life: int = 1
    is_alive: bool = True
    held: Held | None = None


@dataclass(frozen=True)
class Row:
    """The execution, as the database has it; with the fences that were given, and the outcomes that were accepted."""

    room: str = "ready"
    fence: int = 0
    claim: int = 0
    # The worker and its life.
    holder: tuple[int, int] = (-1, -1)
    fences: tuple[int, ...] = ()
    # Each as (the claim it was for, the claim that the row named).
    accepted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Claims:
    row: Row = Row()
    workers: tuple[Worker, ...] = (Worker(), Worker())
    # Outcomes on their way: the network may keep them for long, and bring them twice.
    on_the_way: frozenset[Held] = frozenset()
    claims: int = 0
    replica: Row | None = None
    has_failed_over: bool = False
    # Whether an execution was taken away from somebody who lives.
    was_robbed: bool = False

    @property
    def holder_lives(self) -> bool:
        number, life = self.row.holder
        return number >= 0 and self.workers[number].is_alive and self.workers[number].life == life

    def with_worker(self, number: int, worker: Worker) -> Claims:
        return replace(self, workers=(*self.workers[:number], worker, *self.workers[number + 1 :]))


def claims(guards: frozenset[str]) -> Model[Claims]:
    """The life of one execution under these guards."""

    def steps(state: Claims) -> Iterator[tuple[str, Claims]]:
        for number, worker in enumerate(state.workers):
            yield from _worker_steps(state, number, worker, guards)
        for outcome in state.on_the_way:
            yield f"outcome {outcome.claim} arrives", _arrive(state, outcome, guards)
        if state.row.room == "running" and (not state.holder_lives or "only the dead are reaped" not in guards):
            ready = replace(state.row, room="ready", holder=(-1, -1))
            yield "reaped", replace(state, row=ready, was_robbed=state.was_robbed or state.holder_lives)
        if state.replica is None and not state.has_failed_over:
            yield "replicated", replace(state, replica=state.row)
        if state.replica is not None:
            yield "failed over", replace(state, row=state.replica, replica=None, has_failed_over=True)

    return Model(Claims(), steps, _broken_claims)


def _worker_steps(state: Claims, number: int, worker: Worker, guards: frozenset[str]) -> Iterator[tuple[str, Claims]]:
    row, held = state.row, worker.held
    executions = {"ready"} if "from ready" in guards else {"ready", "running"}
    if held is None and row.room in executions and state.claims < _MOST_CLAIMS:
        fence = row.fence + 1 if "fence grows" in guards else 1
        claim = state.claims + 1
        taken = replace(
            row, room="running", fence=fence, claim=claim, holder=(number, worker.life), fences=(*row.fences, fence)
        )
        robbed = state.was_robbed or (row.room == "running" and state.holder_lives)
        holding = state.with_worker(number, replace(worker, held=Held(fence, claim)))
        yield f"{number} claims", replace(holding, row=taken, claims=claim, was_robbed=robbed)
    if held is not None:
        idle = state.with_worker(number, replace(worker, held=None))
        yield f"{number} ends claim {held.claim}", replace(idle, on_the_way=state.on_the_way | {held})
    if worker.is_alive:
        yield f"the lease of {number} runs out", state.with_worker(number, replace(worker, is_alive=False))
    elif worker.life < _MOST_LIVES:
        yield f"{number} begins anew", state.with_worker(number, Worker(worker.life + 1))


def _arrive(state: Claims, outcome: Held, guards: frozenset[str]) -> Claims:
    row = state.row
    is_accepted = (
        row.room == "running"
        and ("fence" not in guards or row.fence == outcome.fence)
        and ("claim id" not in guards or row.claim == outcome.claim)
    )
    if not is_accepted:
        return state
    return replace(state, row=replace(row, room="finished", accepted=(*row.accepted, (outcome.claim, row.claim))))


def _broken_claims(state: Claims) -> str | None:
    row = state.row
    if len(row.accepted) > 1:
        return "S5: two outcomes were accepted"
    if any(claim != named for claim, named in row.accepted):
        return "S5: an outcome was accepted while the row named another claim"
    if any(later <= earlier for earlier, later in pairwise(row.fences)):
        return "S4: fences do not increase"
    return "S4: taken away from somebody who lives" if state.was_robbed else None


# firing: one job, two schedulers, somebody who edits it


FIRING_GUARDS = frozenset({"row", "version", "epoch", "one next", "edit takes the row"})
# What each version of the schedule names: the same first instant, and another after it.
_INSTANTS = {1: (0, 2, 4), 2: (0, 3, 6)}


@dataclass(frozen=True)
class Due:
    """The pending occurrence of a job."""

    at: int
    version: int


@dataclass(frozen=True)
class Plan:
    """What a scheduler has read, and computed from it, some time ago."""

    at: int
    version: int
    following: int | None
    epoch: int


@dataclass(frozen=True)
class Books:
    """What the database has: pending occurrences, and records as (instant, version)."""

    due: frozenset[Due] = frozenset({Due(0, 1)})
    records: tuple[tuple[int, int], ...] = ()
    version: int = 1
    # From which instant on the present version answers.
    answers_from: int = 0
    owner: int = 0
    epoch: int = 1


@dataclass(frozen=True)
class Firing:
    books: Books = Books()
    # A scheduler knows the epoch it was given, and at most one plan; it may forget either by dying.
    epochs: tuple[int, ...] = (1, 0)
    plans: tuple[Plan | None, ...] = (None, None)
    replica: Books | None = None
    has_failed_over: bool = False
    takeovers: int = 0


def firing(guards: frozenset[str]) -> Model[Firing]:
    """The occurrences of one job under these guards."""

    def steps(state: Firing) -> Iterator[tuple[str, Firing]]:
        books = state.books
        for number in range(len(state.plans)):
            yield from _scheduler_steps(state, number, guards)
        if books.version == 1:
            yield "edited", replace(state, books=_edited(books, guards))
        if state.replica is None and not state.has_failed_over:
            yield "replicated", replace(state, replica=books)
        if state.replica is not None:
            yield "failed over", replace(state, books=state.replica, replica=None, has_failed_over=True)

    return Model(Firing(), steps, _broken_firing)


def _scheduler_steps(state: Firing, number: int, guards: frozenset[str]) -> Iterator[tuple[str, Firing]]:
    books, plan = state.books, state.plans[number]
    if books.owner == number or "epoch" not in guards:
        for due in sorted(books.due, key=lambda due: (due.at, due.version)):
            planned = Plan(due.at, due.version, _next(due.version, due.at), state.epochs[number])
            yield f"{number} reads {due.at}", replace(state, plans=_put(state.plans, number, planned))
    if plan is not None:
        # It keeps the plan: when the reply is lost, the same promotion is sent again.
        yield f"{number} promotes {plan.at}", replace(state, books=_promoted(books, number, plan, guards))
    if books.owner != number and state.takeovers < 2:
        taken = replace(books, owner=number, epoch=books.epoch + 1)
        epochs = _put(state.epochs, number, taken.epoch)
        yield f"{number} takes over", replace(state, books=taken, epochs=epochs, takeovers=state.takeovers + 1)


def _promoted(books: Books, number: int, plan: Plan, guards: frozenset[str]) -> Books:
    if "epoch" in guards and (books.owner, books.epoch) != (number, plan.epoch):
        return books
    found = [
        due
        for due in books.due
        if ("row" not in guards or due.at == plan.at) and ("version" not in guards or due.version == plan.version)
    ]
    if not found:
        return books
    taken = min(found, key=lambda due: due.at)
    left = books.due - {taken}
    if plan.following is not None:
        if "one next" in guards and left:
            return books
        left = left | {Due(plan.following, taken.version)}
    return replace(books, due=left, records=(*books.records, (plan.at, taken.version)))


def _edited(books: Books, guards: frozenset[str]) -> Books:
    """The new version answers for what has not been recorded; it takes the old row away and puts its own."""
    last = max((at for at, _ in books.records), default=-1)
    upcoming = next((at for at in _INSTANTS[2] if at > last), None)
    due = frozenset() if upcoming is None else frozenset({Due(upcoming, 2)})
    kept = books.due if "edit takes the row" not in guards else frozenset()
    if "one next" in guards and len(due | kept) > 1:
        return books
    return replace(books, due=due | kept, version=2, answers_from=last + 1)


def _broken_firing(state: Firing) -> str | None:
    books = state.books
    instants = [at for at, _ in books.records]
    if len(set(instants)) != len(instants):
        return "S1: an occurrence is recorded twice"
    if len(books.due) > 1:
        return "S1: two next occurrences"
    for at, version in (*books.records, *((due.at, due.version) for due in books.due)):
        if at not in _INSTANTS[version]:
            return "S2: an instant that its version does not name"
    return "S3: an instant without a record" if _has_hole(books) else None


def _has_hole(books: Books) -> bool:
    recorded = {at for at, _ in books.records}
    watermark = min((due.at for due in books.due), default=max(recorded, default=-1) + 1)
    owed = {at for at in _INSTANTS[1] if at < (books.answers_from if books.version == 2 else watermark)}
    if books.version == 2:
        owed |= {at for at in _INSTANTS[2] if books.answers_from <= at < watermark}
    return not {at for at in owed if at < watermark} <= recorded


def _next(version: int, at: int) -> int | None:
    return next((each for each in _INSTANTS[version] if each > at), None)


def _put(values: tuple[State, ...], place: int, value: State) -> tuple[State, ...]:
    return (*values[:place], value, *values[place + 1 :])
