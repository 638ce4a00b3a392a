"""The program that a command is told of, and its settings: it may name its own database."""

from __future__ import annotations

from timeball.app import Timeball
from timeball.loading import load_app
from timeball.settings import Settings, load_settings


def load_program(reference: str | None) -> Timeball | None:
    """The program behind `app:tb`, if one is named."""
    return None if reference is None else load_app(reference)


def settings_of(program: Timeball | None) -> Settings:
    """The settings of a program, or else those of the environment."""
    return load_settings() if program is None else program.settings
