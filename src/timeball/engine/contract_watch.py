"""What becomes of executions whose payload does not fit the code of this worker.

During a deploy, workers of two versions serve the same queues. A payload of the new signature that an old worker claims is not wrong: it is
given back, uncounted, and from then on the old worker leaves this handler to the newer ones, as long as one of them lives. Only a worker
with the newest contract ends such an execution dead, and not while another living worker would take it (`domain/contract.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from timeball.domain.contract import ContractVersion, Refusal, has_newer, judge, short
from timeball.domain.events import Emit, HandlerLeftToNewer, HandlerTakenUp
from timeball.domain.execution import Failed, Finding, Outcome, Released, Snoozed
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env

if TYPE_CHECKING:
    from timeball.store.interface import HandlerStore

# How often a worker looks whether the newer ones that it left a handler to are still there.
_LOOK_SECONDS = 2.0

Takes = Callable[[Mapping[str, Any], str], bool]


class ContractWatch(Service):
    """Judges mismatches, and keeps this worker from claiming what it has left to newer ones."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        handlers: HandlerStore,
        fingerprints: Mapping[str, str],
        takes: Takes,
        hold_back: Callable[[frozenset[str]], None],
    ) -> None:
        super().__init__(env, emit)
        self._handlers = handlers
        self._fingerprints = fingerprints
        self._takes = takes
        self._hold_back = hold_back
        self._held_back: frozenset[str] = frozenset()
        self._looks_at = 0.0

    async def judge(self, findings: Sequence[Finding]) -> list[Finding]:
        """The same findings; those of payloads that do not fit with what becomes of them."""
        misfits = [finding for finding in findings if is_misfit(finding)]
        versions = await self._handlers.versions({finding.claimed.handler for finding in misfits})
        schemas = await self._handlers.schemas(
            version for found in versions.values() for version in found if version.workers
        )
        return [self._judged(f, versions, schemas) if is_misfit(f) else f for f in findings]

    def _judged(
        self,
        finding: Finding,
        versions: Mapping[str, Sequence[ContractVersion]],
        schemas: Mapping[str, Mapping[str, Any]],
    ) -> Finding:
        name, payload = finding.claimed.handler, finding.claimed.payload
        known, own = versions.get(name, ()), self._fingerprints.get(name, "")
        refusal, pause = judge(known, own, lambda other: self._takes(schemas.get(other, {}), payload))
        if refusal is Refusal.DEAD:
            return finding
        if refusal is Refusal.LEAVE_TO_NEWER:
            self._leave(name, own, known)
        outcome: Outcome = Released() if refusal is Refusal.LEAVE_TO_NEWER else Snoozed(pause)
        return finding._replace(outcome=outcome, started_at=None)

    def _leave(self, name: str, own: str, versions: Sequence[ContractVersion]) -> None:
        if name in self._held_back:
            return
        self._change(self._held_back | {name})
        self._looks_at = self.env.clock.monotonic() + _LOOK_SECONDS
        self.emit(HandlerLeftToNewer(name, short(own), short(versions[0].fingerprint)))

    async def tick(self) -> timedelta:
        if self._held_back and self.is_time(self._looks_at):
            self._looks_at = self.env.clock.monotonic() + _LOOK_SECONDS
            await self._look()
        return LONGEST_REST

    async def _look(self) -> None:
        """Take up again what no living worker has a newer contract for."""
        versions = await self._handlers.versions(self._held_back)
        back = [name for name in self._held_back if not has_newer(versions.get(name, ()), self._fingerprints[name])]
        if back:
            self._change(self._held_back.difference(back))
            for name in back:
                self.emit(HandlerTakenUp(name, short(self._fingerprints[name])))

    def _change(self, held_back: frozenset[str]) -> None:
        self._held_back = held_back
        self._hold_back(held_back)


def is_misfit(finding: Finding) -> bool:
    """Whether an attempt ended because the payload did not fit, before the handler was entered."""
    return isinstance(finding.outcome, Failed) and finding.outcome.is_misfit
