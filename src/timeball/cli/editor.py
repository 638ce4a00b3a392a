"""A job in the editor of whoever is at the keyboard."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from timeball.cli.fields import FIELDS_OF_A_JOB
from timeball.errors import InvalidInput


def edited_fields(document: dict[str, Any]) -> dict[str, Any]:
    """The fields that somebody changed, looking at them in their editor."""
    import orjson

    shown = {name: document[name] for name in FIELDS_OF_A_JOB if name in document}
    text = _edited(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
    try:
        changed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"what you left in the editor is not JSON: {error}", hint="nothing was changed") from None
    if not isinstance(changed, dict):
        raise InvalidInput("what you left in the editor is no object", hint="nothing was changed")
    return {name: value for name, value in changed.items() if name not in shown or shown[name] != value}


def _edited(text: str) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise InvalidInput(
            "nothing to change is given, and no editor is named", hint="give options, or set EDITOR; see --help"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(text, encoding="utf-8")
        if subprocess.run([*shlex.split(editor), str(file)], check=False).returncode != 0:
            raise InvalidInput(f"{editor} ended with an error", hint="nothing was changed")
        return file.read_text(encoding="utf-8")
