"""The process of an isolated handler: a subreaper, and below it the child that runs the handler."""

import sys

from timeball.handlers.subreaper import split

if __name__ == "__main__":
    split()
    # Imported here: the subreaper has no use for what the child needs.
    from timeball.engine.runners.child import main

    main(sys.argv[1])
