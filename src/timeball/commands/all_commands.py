"""All commands together, as the fronts hold them."""

from __future__ import annotations

from timeball.commands.declaring import Declaring
from timeball.commands.operating import Operating
from timeball.commands.steering import Steering
from timeball.commands.templating import Templating


class Commands(Declaring, Operating, Steering, Templating):
    """What can be done to jobs, executions, queues and templates."""
