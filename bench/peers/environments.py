"""An environment for each peer: a virtual environment or a folder of node modules, made on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.catalog import HERE, Peer

CACHE = HERE / ".environments"
DRIVER = HERE / "driver"


def environment_of(peer: Peer) -> dict[str, str]:
    """The environment variables in which the peer's programs are found; what is missing is installed."""
    match peer.language:
        case "python":
            return _python(peer)
        case "node":
            return _node(peer)
        case _:
            return _with_path(Path(sys.executable).parent) | {"PYTHONPATH": f"{DRIVER}:{peer.folder}"}


def _python(peer: Peer) -> dict[str, str]:
    folder = CACHE / peer.name
    pins = peer.folder / "requirements.txt"
    if _is_stale(folder, pins):
        _say(peer)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(pins)]
        _run([str(folder / "bin" / "python"), *install])
        _remember(folder, pins)
    return _with_path(folder / "bin") | {"PYTHONPATH": f"{DRIVER}:{peer.folder}"}


def _node(peer: Peer) -> dict[str, str]:
    if shutil.which("npm") is None:
        raise SystemExit(
            f"{peer.title} needs Node.js and npm; as root: apt-get install nodejs npm, or leave it out with PEERS="
        )
    folder = CACHE / peer.name
    pins = peer.folder / "package-lock.json"
    if _is_stale(folder, pins):
        _say(peer)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(peer.folder / name, folder / name)
        # Not `npm ci`: it refuses a lock that leaves out the optional packages of other platforms.
        _run(["npm", "install", "--loglevel=error", "--no-audit", "--no-fund"], folder)
        _remember(folder, pins)
    _link_sources(peer, folder)
    return _with_path(folder / "node_modules" / ".bin")


def _link_sources(peer: Peer, folder: Path) -> None:
    """Modules find what they import from where they lie: put ours beside the installed ones."""
    for source in (*peer.folder.glob("*.mjs"), *DRIVER.glob("*.mjs"), *peer.folder.glob("tasks")):
        target = folder / source.name
        if target.is_dir():
            shutil.rmtree(target)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def working_folder(peer: Peer) -> Path:
    """Where the peer's programs are started."""
    return CACHE / peer.name if peer.language == "node" else peer.folder


def _with_path(*folders: Path) -> dict[str, str]:
    path = [str(folder) for folder in folders]
    return {"PATH": ":".join([*path, os.environ.get("PATH", os.defpath)])}


def _is_stale(folder: Path, pins: Path) -> bool:
    stamp = folder / "installed"
    return not stamp.exists() or stamp.read_text() != pins.read_text()


def _remember(folder: Path, pins: Path) -> None:
    (folder / "installed").write_text(pins.read_text())


def _say(peer: Peer) -> None:
    print(f"Installing {peer.title} {peer.version}", flush=True)


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
