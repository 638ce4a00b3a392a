"""structlog without Rich and Pygments, which it imports wherever they are installed: for tracebacks, which a worker never prints.

They are five of the forty megabytes that an idle worker has for itself. Whoever has imported Rich already has paid for it.
"""

from __future__ import annotations

import sys
from typing import Any

_WEIGHT = "rich"
_MODULES: dict[str, Any] = sys.modules

if _WEIGHT in _MODULES:
    import structlog
else:
    # What stands for None in there cannot be imported, and structlog can do without.
    _MODULES[_WEIGHT] = None
    try:
        import structlog
    finally:
        del _MODULES[_WEIGHT]

__all__ = ["structlog"]
