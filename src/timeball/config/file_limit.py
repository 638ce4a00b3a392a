"""The limit of open files of this process: raise it, read it, and recognise an error that says it is reached."""

from __future__ import annotations

import errno

# More would only make programs slow that close every number they could have.
_MAX_FILE_LIMIT = 65_536


def raise_file_limit() -> None:
    """Let this process, and those it starts, open as many files as the system allows.

    The soft limit is mostly 1,024, for programs that cannot do with more. Each connection and each pipe is a file.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_limit() -> int:
    """How many files this process may have open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft


def is_out_of_files(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that no more files can be opened, by this process or by all."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        # By its class: what an error of a handler says of its class may be anything.
        if issubclass(type(found), OSError) and getattr(found, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return True
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return False
