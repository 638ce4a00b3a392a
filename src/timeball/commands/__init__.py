"""Every write a front needs, a file for each kind of deed.

API, command line, dashboard and SDK all come through here, so a rule that holds here holds everywhere.
"""

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.all_commands import Commands
from timeball.commands.contracts import Completed, Told
from timeball.store.interface import Created

__all__ = ["LOCAL", "Actor", "Commands", "Completed", "Created", "Told"]
