"""structlog without what it imports wherever it is installed, and a worker has no use for.

Rich and Pygments are for tracebacks that nobody here prints: five of the forty megabytes that an idle worker has for itself.
greenlet is for `structlog.threadlocal`, which structlog itself advises against: one more, with the library of C++ behind it.
Whoever has imported one of them already has paid for it, and keeps it.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULES: dict[str, Any] = sys.modules
_SPARED = [name for name in ("rich", "greenlet") if name not in _MODULES]

try:
    # What stands for None in there cannot be imported, and structlog can do without.
    _MODULES.update(dict.fromkeys(_SPARED))
    import structlog
finally:
    for _name in _SPARED:
        del _MODULES[_name]

__all__ = ["structlog"]
