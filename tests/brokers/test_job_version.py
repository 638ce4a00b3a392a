"""What a ticket names runs the handler and the payload of one version, though its job was edited while the ticket was under way."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.support.factories import OPERATOR, make_job, make_node
from timeball.brokers.base import Broker, Ticket
from timeball.domain import job_changes
from timeball.domain.execution import Origin
from timeball.domain.values.ids import ClaimId, ExecutionId
from timeball.store.store import Store
from timeball.store.types import ClaimRequest, ExecutionRequest

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


async def test_a_ticket_that_was_published_before_an_edit_is_claimed_as_it_was(broker: Broker, store: Store) -> None:
    job = await make_job(store, handler="app:old", payload={"of": "old"})
    wanted = ExecutionRequest(id=ExecutionId(store.env.new_id()), job_id=job.id, origin=Origin.TRIGGER)
    await store.jobs.request([wanted], OPERATOR, "job.trigger")
    await broker.publish("a", [Ticket(wanted.id, "default", store.env.clock.now())])
    fields = {"handler": "app:new", "payload": {"of": "new"}}

    await store.jobs.change(job.id, lambda seen: job_changes.edit_job(seen, fields, store.shards), OPERATOR)
    (ticket,) = await broker.receive("a", 1, timedelta(seconds=30))
    request = ClaimRequest(await make_node(store), ["app:old", "app:new"], 1, 0)
    claims = await store.tickets.claim(request, [ticket.id], None, ClaimId(store.env.new_id()))

    (claimed,) = claims.executions
    assert (claimed.handler, json.loads(claimed.payload)) == ("app:old", {"of": "old"})
