"""Create, change, delete and use job templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from timeball.application.commands.requests import LOCAL, Actor, JobRequest, check_version
from timeball.domain.payload_references import PayloadReference, check_references
from timeball.domain.template import (
    Template,
    TemplateId,
    Variable,
    fill_placeholders,
    placeholders,
    spec_from_template,
)
from timeball.domain.values.ids import IdempotentRequest, JobId
from timeball.domain.values.json_text import to_json
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.application.commands.jobs import JobCommands
    from timeball.application.commands.requests import ContractChecks
    from timeball.env import Env
    from timeball.store.store import Store
    from timeball.store.types import CreatedJob


class TemplateCommands:
    """Create, change, delete and use job templates."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks, jobs: JobCommands) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts
        self._jobs = jobs

    async def create(
        self,
        name: str,
        job: Mapping[str, Any],
        description: str | None = None,
        actor: Actor = LOCAL,
        *,
        is_unchecked: bool = False,
    ) -> Template:
        """Store the fields of a job under a name; they are checked as if the job were created.

        A payload that the handler's published contract refuses is stored only if *is_unchecked*.
        """
        self._check_template(name, description, job, actor)
        if not is_unchecked:
            await self._check_contract_of(job)
        return await self._store.templates.add(name, description, dict(job), actor.entry)

    async def update(
        self,
        template_id: TemplateId,
        fields: Mapping[str, Any],
        actor: Actor = LOCAL,
        expected_version: int | None = None,
        *,
        is_unchecked: bool = False,
    ) -> Template:
        """Change the name, the description or the job of a template; jobs that were created from it stay as they are."""

        def decide(present: Template) -> Template:
            check_version("template", present.version, expected_version)
            changed = replace(present, **fields)
            if "job" in fields:
                self._contracts.check_owner(str(present.job.get("handler")), actor)
            self._check_template(changed.name, changed.description, changed.job, actor)
            return changed

        if "job" in fields and not is_unchecked:
            await self._check_contract_of(fields["job"])
        return await self._store.templates.change(template_id, decide, actor.entry)

    async def _check_contract_of(self, job: Mapping[str, Any]) -> None:
        payload = job.get("payload", {})
        if "handler" in job and not any(placeholders(payload)):
            try:
                await self._contracts.check_contract(job["handler"], to_json(payload))
            except InvalidInput as error:
                raise error.below("job") from None

    async def delete(self, template_id: TemplateId, actor: Actor = LOCAL, expected_version: int | None = None) -> None:
        """Delete a template; jobs that were created from it stay."""
        await self._store.templates.delete(
            template_id, lambda present: check_version("template", present.version, expected_version), actor.entry
        )

    async def use(
        self,
        template: Template,
        overrides: Mapping[str, Any],
        variables: Mapping[str, Variable] | None = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        is_unchecked: bool = False,
    ) -> tuple[CreatedJob, list[str]]:
        """Create a job from a template, with other values for some fields and its variables filled in; returns warnings too."""
        spec = spec_from_template(template.job, overrides, variables)
        request = JobRequest(spec, {*template.job, *overrides}, is_unchecked)
        resolved = await self._contracts.resolve([request])
        created = await self._jobs.create(resolved.specs[0], actor=actor, idempotency=idempotency, is_shown=True)
        return created, resolved.warnings

    def _check_template(self, name: str, description: str | None, job: Mapping[str, Any], actor: Actor) -> None:
        check_label(name, "name")
        if description is not None:
            check_description(description, "description")
        try:
            spec, id_ = spec_from_template(job, {}), JobId(self._env.new_id())
            prepared, _ = self._jobs.prepare_one(spec, self._env.clock.now(), id_, actor)
            self._contracts.check_owner(prepared.handler, actor)
            # A payload with placeholders can only be checked when they are filled in, but for its references.
            names = set(placeholders(job.get("payload")))
            if names:
                filled = fill_placeholders(job["payload"], dict.fromkeys(names, PayloadReference.SCHEDULED_FOR.value))
                check_references(to_json(filled))
            else:
                self._contracts.check_payload(prepared.handler, prepared.payload, actor)
        except InvalidInput as error:
            raise error.below("job") from error
