"""`timeball up`, `api`, `scheduler` and `worker`: the commands that run until they are stopped."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from timeball.cli.tree import AppReference, DatabaseAppReference, command_without_session, ungrouped_commands
from timeball.domain.handler import check_memory
from timeball.errors import InvalidInput

commands = ungrouped_commands()

Slots = Annotated[int | None, typer.Option(help="How many executions may run at once.", min=1, max=10_000)]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", help="A queue to serve; repeat for more. Default: all queues.")
]
IsolateFlag = Annotated[
    bool | None, typer.Option("--isolate", help="Run all handlers of the program in child processes.")
]
RunsPerChild = Annotated[
    int | None, typer.Option(help="Replace a child process after so many executions; 1000 if nothing is said.", min=1)
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Replace a process that keeps more memory than this, such as 1GB: children, and the worker itself."
    ),
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


@command_without_session(
    commands,
    "worker",
    "timeball worker app:tb",
    "timeball worker app:tb --slots 50 --queue mail",
    "timeball worker app:tb --isolate --runs-per-child 50 --max-memory 1GB",
)
def worker(
    reference: AppReference = None,
    slots: Slots = None,
    queue: Queues = None,
    processes: Processes = 1,
    isolate: IsolateFlag = None,
    runs_per_child: RunsPerChild = None,
    max_memory: MaxMemory = None,
) -> None:
    """Run a worker. Any number may run, on any number of machines."""
    from timeball.cli.supervisor import is_supervised

    memory = None if max_memory is None else check_memory(max_memory, "--max-memory")
    if isolate and reference is None:
        raise InvalidInput(
            "--isolate is given without a program", field="isolate", hint="name it: timeball worker app:tb --isolate"
        )
    if processes > 1 or (memory is not None and not is_supervised()):
        from timeball.cli.supervisor import ProcessSupervisor, worker_children

        raise typer.Exit(ProcessSupervisor(worker_children(sys.argv[1:], processes)).run())
    from timeball.cli.processes import run_nodes

    flags = {"isolate": isolate, "runs_per_child": runs_per_child, "max_memory": memory}
    code = run_nodes(reference, slots=slots, queues=queue, with_worker=True, worker_flags=flags)
    if code:
        raise typer.Exit(code)
