"""All commands together, as the fronts hold them."""

from __future__ import annotations

from timeball.commands.declaring import Declaring
from timeball.commands.running import Running
from timeball.commands.steering import Steering


class Commands(Declaring, Running, Steering):
    """What can be done to jobs, executions and queues."""
