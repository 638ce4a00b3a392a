"""`timeball` and `python -m timeball`."""

import sys

from timeball.config.environment import MissingExtra, explain_missing_extra


def main() -> None:
    """Run a command; one line says what to install if it needs an extra that is not there."""
    try:
        with explain_missing_extra():
            from timeball.cli.app import main as run_command_line

            run_command_line()
    except MissingExtra as error:
        sys.exit(f"timeball: {error}")


if __name__ == "__main__":
    main()
