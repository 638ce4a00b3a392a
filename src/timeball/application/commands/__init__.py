"""Every write that API, command line, dashboard and SDK need; a rule that holds here holds everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeball.application.commands.bulk import OperationCommands
from timeball.application.commands.executions import ExecutionCommands
from timeball.application.commands.jobs import JobCommands
from timeball.application.commands.queues import NodeCommands, QueueCommands
from timeball.application.commands.requests import ContractChecks
from timeball.application.commands.templates import TemplateCommands

if TYPE_CHECKING:
    from timeball.domain.handler import PayloadRules
    from timeball.env import Env
    from timeball.store.store import Store


class Commands:
    """All commands over one store, by what they act upon."""

    def __init__(self, store: Store, env: Env, handlers: PayloadRules | None = None) -> None:
        self.contracts = ContractChecks(store, handlers)
        self.jobs = JobCommands(store, env, self.contracts)
        self.executions = ExecutionCommands(store, env, self.contracts, self.jobs)
        self.operations = OperationCommands(store, env, self.jobs, self.executions)
        self.templates = TemplateCommands(store, env, self.contracts, self.jobs)
        self.queues = QueueCommands(store)
        self.nodes = NodeCommands(store)
