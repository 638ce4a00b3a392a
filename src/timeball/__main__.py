"""`timeball` and `python -m timeball`."""

import sys

from timeball.config.environment import MissingExtra, explain_missing_extra


def main() -> None:
    """Run a command; one line says what to install if it needs an extra that is not there."""
    if sys.argv[1:2] == ["alive"]:
        _check_life(sys.argv[2:])
    try:
        with explain_missing_extra():
            from timeball.cli.app import main as run_command_line

            run_command_line()
    except MissingExtra as error:
        sys.exit(f"timeball: {error}")


def _check_life(words: list[str]) -> None:
    """`timeball alive` without the command line, whose start costs ten times as much. What is mistyped goes there."""
    from timeball.config.life_signs import KINDS, is_alive

    if not words or (len(words) == 1 and words[0] in KINDS):
        sys.exit(0 if is_alive(words[0] if words else None) else 1)


if __name__ == "__main__":
    main()
