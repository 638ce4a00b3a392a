"""`/docs`: the description of the API for people, made here from the OpenAPI document; no script, no outside file."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any

import orjson

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff }
h2 { margin-top: 2.5rem; text-transform: capitalize }
details { border: 1px solid #d5dae0; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { background: #f3f5f7; padding: .7rem; overflow: auto; border-radius: 4px; max-height: 26rem }
.method { display: inline-block; width: 4.5rem; font-weight: 700 }
.role { float: right; color: #57606a }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #dfe3e8 }
  pre { background: #1e2328 }
  details { border-color: #3a424b }
  .role { color: #9aa4af }
}
""".strip()
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
CONTENT_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"


def render_docs(schema: dict[str, Any]) -> str:
    """The page."""
    groups: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    sections = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Timeball API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Timeball API</h1><p>{_prose(schema['info']['description'])}</p>"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>{sections}</body></html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(_parameter(parameter) for parameter in operation.get("parameters", ()))
    request = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
    answers = "".join(_answer(code, response) for code, response in operation["responses"].items() if code < "300")
    fails = ", ".join(code for code in operation["responses"] if code >= "300")
    return (
        f'<details><summary><code><span class="method">{method.upper()}</span>{escape(path)}</code>'
        f'<span class="role">{escape(operation["x-role"])}</span></summary>'
        f"<p>{_prose(operation['description'])}</p>"
        + (f"<ul>{parameters}</ul>" if parameters else "")
        + (f"<p>Body</p>{_example(request)}" if request is not None else "")
        + f"{answers}<p>Problems: {escape(fails)}</p></details>"
    )


def _prose(text: str) -> str:
    """Words with the little Markdown that descriptions have: `code` and **weight**."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked)


def _parameter(parameter: dict[str, Any]) -> str:
    note = parameter.get("description", "")
    return f"<li><code>{escape(parameter['name'])}</code> ({escape(parameter['in'])}) {_prose(note)}</li>"


def _answer(code: str, response: dict[str, Any]) -> str:
    content: dict[str, Any] = next(iter(response.get("content", {}).values()), {})
    return f"<p>{escape(code)}</p>{_example(content['example']) if 'example' in content else ''}"


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f"<pre>{escape(text)}</pre>"
