"""Templates: kept, changed, deleted, and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.contracts import Told
from timeball.commands.creating import Creating
from timeball.domain.deed import Deed
from timeball.domain.template import Template, TemplateId, Variable, placeholders, wish_of
from timeball.domain.text import check_description, check_label, to_json
from timeball.errors import Conflict, InvalidInput
from timeball.store.interface import Created


class Templating(Creating):
    """Keep templates, and make jobs of them."""

    async def create_template(
        self,
        name: str,
        job: Mapping[str, Any],
        description: str | None = None,
        actor: Actor = LOCAL,
        *,
        is_unchecked: bool = False,
    ) -> Template:
        """Keep the fields of a job under a name; they are checked as if the job were made.

        A payload that the handler's published contract refuses is kept only if *is_unchecked*.
        """
        self._check_template(name, description, job, actor)
        if not is_unchecked:
            await self._check_contract_of(job)
        return await self._store.templates.add(name, description, dict(job), actor.entry)

    async def update_template(
        self,
        template_id: TemplateId,
        fields: Mapping[str, Any],
        actor: Actor = LOCAL,
        expected_version: int | None = None,
        *,
        is_unchecked: bool = False,
    ) -> Template:
        """Change the name, the description or the job of a template, whichever is given; jobs that were made of it stay."""

        def decide(present: Template) -> Template:
            _check_version(present, expected_version)
            wanted = replace(present, **fields)
            if "job" in fields:
                self._check_owner(str(present.job.get("handler")), actor)
            self._check_template(wanted.name, wanted.description, wanted.job, actor)
            return wanted

        if "job" in fields and not is_unchecked:
            await self._check_contract_of(fields["job"])
        return await self._store.templates.change(template_id, decide, actor.entry)

    async def _check_contract_of(self, job: Mapping[str, Any]) -> None:
        payload = job.get("payload", {})
        if "handler" in job and not any(placeholders(payload)):
            try:
                await self._check_contract(job["handler"], to_json(payload))
            except InvalidInput as error:
                raise error.below("job") from None

    async def delete_template(
        self, template_id: TemplateId, actor: Actor = LOCAL, expected_version: int | None = None
    ) -> None:
        """Forget a template; the jobs that were made of it stay."""
        await self._store.templates.delete(
            template_id, lambda present: _check_version(present, expected_version), actor.entry
        )

    async def use_template(
        self,
        template: Template,
        overrides: Mapping[str, Any],
        variables: Mapping[str, Variable] | None = None,
        actor: Actor = LOCAL,
        deed: Deed | None = None,
        *,
        is_unchecked: bool = False,
    ) -> tuple[Created, list[str]]:
        """Make a job of a template, with other values for some fields and its variables filled in; and what its caller should know."""
        told = {*template.job, *overrides}
        done = await self.complete([Told(wish_of(template.job, overrides, variables), told, is_unchecked)])
        return await self.create(done.specs[0], actor=actor, deed=deed), done.warnings

    def _check_template(self, name: str, description: str | None, job: Mapping[str, Any], actor: Actor) -> None:
        check_label(name, "name")
        if description is not None:
            check_description(description, "description")
        try:
            made, _ = self._prepare_one(wish_of(job, {}), self._env.clock.now(), self._new_job_id(), actor)
            self._check_owner(made.handler, actor)
            # What is left open can only be judged when it is filled in.
            if not any(placeholders(job.get("payload"))):
                self._check_payload(made.handler, made.payload, actor)
        except InvalidInput as error:
            raise error.below("job") from error


def _check_version(template: Template, expected: int | None) -> None:
    if expected is not None and template.version != expected:
        raise Conflict(
            f"the template has version {template.version}, the change was made for version {expected}",
            hint="read it again, and repeat the change on what is there",
            version=template.version,
        )
