"""structlog without Rich and Pygments, which it imports wherever they are installed: for tracebacks, which a worker never prints.

They are five of the forty megabytes that an idle worker has for itself. Whoever has imported Rich already has paid for it.
"""

from __future__ import annotations

import sys

_WEIGHT = "rich"

if _WEIGHT in sys.modules:
    import structlog
else:
    # What stands for None in there cannot be imported, and structlog can do without.
    sys.modules[_WEIGHT] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        del sys.modules[_WEIGHT]

__all__ = ["structlog"]
