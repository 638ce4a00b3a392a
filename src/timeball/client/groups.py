"""All that a client can do, by what it is about."""

from __future__ import annotations

from typing import Generic

from timeball.client.executions import DeadLetters, Executions
from timeball.client.jobs import Jobs
from timeball.client.machinery import Queues, Schedules, System, Workers
from timeball.client.templates import Templates
from timeball.client.verbs import Face


class Groups(Generic[Face]):
    """The nouns of the API."""

    def __init__(self, face: Face) -> None:
        self.jobs: Jobs[Face] = Jobs(face)
        self.executions: Executions[Face] = Executions(face)
        self.dead_letters: DeadLetters[Face] = DeadLetters(face)
        self.queues: Queues[Face] = Queues(face)
        self.workers: Workers[Face] = Workers(face)
        self.templates: Templates[Face] = Templates(face)
        self.schedules: Schedules[Face] = Schedules(face)
        self.system: System[Face] = System(face)
