"""structlog without what it imports wherever it is installed, and a worker has no use for.

Rich and Pygments are for tracebacks that nobody here prints: five of the forty megabytes that an idle worker has for itself.
greenlet is for `structlog.threadlocal`, which structlog itself advises against: one more, with the library of C++ behind it.
Of pickle it wants the name of one error, for who pickles a logger that writes into a file of its own: half a megabyte.
Whoever has imported one of them already has paid for it, and keeps it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class PicklingError(Exception):
    """What structlog raises if a logger cannot be pickled, in a process that had not imported pickle before."""


_nothing_but_its_error = ModuleType("pickle")
vars(_nothing_but_its_error)["PicklingError"] = PicklingError

_MODULES: dict[str, Any] = sys.modules
# What stands for None in there cannot be imported, and structlog can do without.
_STAND_INS = {"rich": None, "greenlet": None, "pickle": _nothing_but_its_error}
_SPARED = {name: stand_in for name, stand_in in _STAND_INS.items() if name not in _MODULES}

try:
    _MODULES.update(_SPARED)
    import structlog
finally:
    for _name in _SPARED:
        del _MODULES[_name]

__all__ = ["structlog"]
