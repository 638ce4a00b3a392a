"""`timeball up`, `api`, `scheduler` and `worker`: the commands that run until they are stopped."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from timeball.cli.tree import AppReference, DatabaseAppReference, command_without_session, ungrouped_commands

commands = ungrouped_commands()

Slots = Annotated[int | None, typer.Option(help="How many executions may run at once.", min=1, max=10_000)]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="A queue to serve; repeat for more. Default: all queues.")
]
Processes = Annotated[int, typer.Option(help="How many worker processes to run.", min=1, max=256)]
Demo = Annotated[bool, typer.Option("--demo", help="Create three jobs to look at, all named demo-...")]


@command_without_session(commands, "up", "timeball up", "timeball up app:tb", "timeball up --demo")
def up(reference: AppReference = None, slots: Slots = None, queue: Queues = None, demo: Demo = False) -> None:
    """Run everything on this machine. That is API, dashboard, scheduler, worker and, without a database of your own, the embedded
    PostgreSQL."""
    from timeball.cli.supervisor import ProcessSupervisor, is_supervised, up_children

    if not is_supervised():
        raise typer.Exit(ProcessSupervisor(up_children(sys.argv[1:], reference)).run())
    from timeball.cli.processes import run_nodes

    run_nodes(reference, slots=slots, queues=queue, with_scheduler=True, with_worker=True, with_demo=demo)


@command_without_session(commands, "api", "timeball api", "timeball api --port 0")
def api(
    reference: DatabaseAppReference = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; TIMEBALL_HOST, or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; TIMEBALL_PORT, or 8080.", min=0, max=65535)] = None,
) -> None:
    """Run the HTTP API and the dashboard alone. Any number may run."""
    from timeball.cli.processes import run_api

    run_api(reference, host, port)


@command_without_session(commands, "scheduler", "timeball scheduler")
def scheduler(reference: DatabaseAppReference = None) -> None:
    """Run a scheduler. Any number may run; they divide the schedule among themselves."""
    from timeball.cli.processes import run_nodes

    run_nodes(reference, with_scheduler=True)


@command_without_session(commands, "worker", "timeball worker app:tb", "timeball worker app:tb --slots 50 --queue mail")
def worker(reference: AppReference = None, slots: Slots = None, queue: Queues = None, processes: Processes = 1) -> None:
    """Run a worker. Any number may run, on any number of machines."""
    if processes > 1:
        from timeball.cli.supervisor import ProcessSupervisor, worker_children

        raise typer.Exit(ProcessSupervisor(worker_children(sys.argv[1:], processes)).run())
    from timeball.cli.processes import run_nodes

    run_nodes(reference, slots=slots, queues=queue, with_worker=True)
