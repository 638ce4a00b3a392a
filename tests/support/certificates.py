"""A certificate authority of the tests' own, and certificates by it for servers on loopback."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates for `localhost` and 127.0.0.1; everything is in one folder."""

    folder: Path

    @property
    def file(self) -> Path:
        """The certificate of the authority: what clients have to be given."""
        return self.folder / "ca.crt"

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir(exist_ok=True)
        authority = cls(folder)
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"),
            *("-subj", "/CN=Authority of the tests", "-keyout", folder / "ca.key", "-out", authority.file),
        )
        return authority

    def certificate(self, name: str) -> tuple[Path, Path]:
        """A certificate for servers of this machine, and its key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        names = self.folder / f"{name}.names"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"),
            *("-keyout", key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.folder / "ca.key", "-CAcreateserial"),
            *("-days", "30", "-extfile", names, "-out", certificate),
        )
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
