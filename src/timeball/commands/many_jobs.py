"""What an operation does to each of its jobs."""

from __future__ import annotations

from dataclasses import replace

from timeball.commands.actor import Actor
from timeball.commands.running import Running
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.operation import OperationAction, OperationItem
from timeball.errors import Conflict


class ManyJobs(Running):
    """Pause, resume, trigger or delete a job of many; cancel what is left of it, or retry what ended last."""

    async def _do_to_job(self, action: OperationAction, item: OperationItem, actor: Actor) -> OperationItem:
        """Returns the item, with the execution that was touched, if one was."""
        assert item.job_id is not None
        match action:
            case OperationAction.PAUSE:
                await self.pause(item.job_id, actor=actor)
            case OperationAction.RESUME:
                await self.resume(item.job_id, actor)
            case OperationAction.DELETE:
                await self.delete(item.job_id, actor)
            case OperationAction.TRIGGER:
                if not await self._is_made(item.made):
                    await self._trigger(item.job_id, None, actor, item.chosen)
            case OperationAction.RETRY:
                if not await self._is_made(item.made):
                    await self._retry(await self._last_ended(item.job_id), None, actor, item.chosen, audit=None)
            case OperationAction.CANCEL:
                return replace(item, made=await self._cancel_current(item.job_id, actor))
            case OperationAction.DISCARD:
                raise AssertionError("only executions are discarded")
        return item

    async def _last_ended(self, job_id: JobId) -> ExecutionId:
        await self._existing(job_id)
        found = await self._store.history.last_ended_of(job_id)
        if found is None:
            raise Conflict("no execution of this job has ended")
        return found

    async def _cancel_current(self, job_id: JobId, actor: Actor) -> ExecutionId:
        await self._existing(job_id)
        found = await self._store.history.current_of(job_id)
        if found is None:
            raise Conflict("nothing of this job waits or runs")
        if found not in await self._cancel([found], actor, audit=None):
            raise Conflict("its execution has ended, or is being stopped already")
        return found
