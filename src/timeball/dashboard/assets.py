"""Static files: the address of each contains a hash of its content, so that browsers may cache it for ever."""

from __future__ import annotations

import mimetypes
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256, sha384
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMPORT = re.compile(r'(from\s+|import\s+)"\./([a-z_]+\.js)"')
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file with its address."""

    address: str
    body: bytes
    media_type: str

    @property
    def integrity(self) -> str:
        """The hash that a page states, so that a browser accepts no other file."""
        return f"sha384-{b64encode(sha384(self.body).digest()).decode()}"


class Assets:
    """All static files, by their names in the source."""

    def __init__(self) -> None:
        raw = _read(files("timeball.dashboard") / "static", "")
        self._by_name = _addressed(raw)
        self._by_address = {asset.address: asset for asset in self._by_name.values()}

    def __getitem__(self, name: str) -> Asset:
        return self._by_name[name]

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    async def serve(self, request: Request) -> Response:
        """Serve a file by its address; needs no login."""
        asset = self._by_address.get(request.path_params["address"])
        if asset is None:
            return Response("no such file", 404, media_type="text/plain")
        return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _FOR_EVER})


def _read(folder: Any, prefix: str) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            contents |= _read(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _KINDS:
            contents[prefix + entry.name] = entry.read_bytes()
    return contents


def _addressed(raw: Mapping[str, bytes]) -> dict[str, Asset]:
    """The files with their addresses. An imported module gets its address first, because its importers contain it."""
    assets: dict[str, Asset] = {}

    def make(name: str) -> Asset:
        if name not in assets:
            text = _IMPORT.sub(lambda match: f'{match[1]}"./{make(match[2]).address}"', raw[name].decode())
            assets[name] = _asset(name, text.encode())
        return assets[name]

    for name in raw:
        make(name)
    return assets


def _asset(name: str, body: bytes) -> Asset:
    path = PurePosixPath(name)
    address = str(path.with_suffix(f".{sha256(body).hexdigest()[:12]}{path.suffix}"))
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(address, body, kind)
