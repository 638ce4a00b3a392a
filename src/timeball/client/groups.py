"""All that a client can do, by what it is about."""

from __future__ import annotations

from typing import Generic

from timeball.client.executions import DeadLetters, Executions
from timeball.client.jobs import Jobs
from timeball.client.machinery import Handlers, Queues, Schedules, Workers
from timeball.client.operations import Operations
from timeball.client.outlook import Time
from timeball.client.system import System
from timeball.client.templates import Templates
from timeball.client.verbs import Face


class Groups(Generic[Face]):
    """The nouns of the API."""

    def __init__(self, face: Face) -> None:
        self.jobs: Jobs[Face] = Jobs(face)
        self.executions: Executions[Face] = Executions(face)
        self.dead_letters: DeadLetters[Face] = DeadLetters(face)
        self.operations: Operations[Face] = Operations(face)
        self.queues: Queues[Face] = Queues(face)
        self.workers: Workers[Face] = Workers(face)
        self.handlers: Handlers[Face] = Handlers(face)
        self.templates: Templates[Face] = Templates(face)
        self.schedules: Schedules[Face] = Schedules(face)
        self.time: Time[Face] = Time(face)
        self.system: System[Face] = System(face)
