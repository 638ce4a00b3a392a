"""What holds for every page: who may come in, where changes come from, what a browser is told, where files come from."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha384
from pathlib import Path

import httpx
import pytest

import timeball.dashboard
from tests.dashboard.conftest import Browser, open_browser, token_of
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings
from timeball.dashboard.app import CONTENT_POLICY, Assets, every_page, make_web_app
from timeball.runtime import ServerRuntime
from timeball.store.types import AuditEntry

ROOT = Path(timeball.dashboard.__file__).parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static").glob("*.js"))
AUDIT = AuditEntry("test")
Entering = Callable[[str], Awaitable[Browser]]


# what a browser is told


async def test_every_answer_bears_the_strict_policy(browser: Browser) -> None:
    for path in ("/", "/login", "/nowhere", f"/static/{Assets()['timeball.css'].address}"):
        answer = await browser.get(path)

        assert answer.headers["content-security-policy"] == CONTENT_POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "unsafe" not in CONTENT_POLICY


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_a_script_or_a_style_of_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|hx-vals=.js:", text)
    assert "| safe" not in text
    assert "|safe" not in text


@pytest.mark.parametrize("path", [*TEMPLATES, *SCRIPTS], ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    assert not re.search(r"https?://", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_what_is_asked_while_an_answer_is_awaited_is_the_last_that_was_meant(path: Path) -> None:
    asking = [tag for tag in path.read_text(encoding="utf-8").splitlines() if "hx-trigger=" in tag]

    # Otherwise the first one to come would wait for its turn, and all later ones be dropped.
    assert all('hx-sync="queue last"' in tag for tag in asking)


async def test_an_address_without_a_page_says_so(browser: Browser) -> None:
    answer = await browser.get("/nowhere/<b>")

    assert answer.status_code == 404
    assert "&lt;b&gt;" in answer.text
    assert "/<b>" not in answer.text


async def test_what_belongs_to_the_api_stays_with_it(browser: Browser) -> None:
    assert (await browser.get("/api/v1/health/live")).json() == {"status": "ok"}
    assert (await browser.get("/api/v1/nothing")).headers["content-type"] == "application/problem+json"
    assert (await browser.get("/docs")).status_code == 200


# files


async def test_files_may_be_kept_for_ever_because_their_address_changes_with_them(browser: Browser) -> None:
    page = (await browser.get("/")).text

    addresses = re.findall(r'(?:href|src)="(/static/[^"#]+)', page)
    assert len(addresses) >= 4
    for address in addresses:
        answer = await browser.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
        assert re.search(r"\.[0-9a-f]{12}\.\w+$", address)


async def test_a_file_that_does_not_exist_is_not_found(browser: Browser) -> None:
    for path in ("/static/none.js", "/static/../app.py", "/static/%2e%2e/app.py", "/static/timeball.css"):
        assert (await browser.get(path)).status_code == 404


def test_modules_import_one_another_under_their_addresses() -> None:
    assets = Assets()

    main = assets["main.js"].body.decode()

    assert f'"./{assets["live.js"].address}"' in main
    for name in assets.names:
        for found in re.findall(r'from "\./([^"]+)"', assets[name].body.decode(errors="replace")):
            assert found in {assets[other].address for other in assets.names}


def test_files_of_others_are_the_ones_written_down() -> None:
    listed = tomllib.loads((ROOT / "vendor.toml").read_text(encoding="utf-8"))["file"]

    assert {f"static/vendor/{path.name}" for path in (ROOT / "static/vendor").glob("*.js")} == {
        file["path"] for file in listed
    }
    for file in listed:
        body = (ROOT / file["path"]).read_bytes()
        assert b64encode(sha384(body).digest()).decode() == file["sha384"]
        assert file["version"] in file["path"]
        assert file["package_sha512"]


def test_the_wheel_contains_every_page_and_file(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT.parents[2],
        check=True,
        capture_output=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    here = {path.relative_to(ROOT.parents[1]).as_posix() for path in ROOT.rglob("*.*") if path.suffix != ".pyc"}
    assert {name for name in here if not name.endswith("/")} <= inside


async def test_a_first_view_is_small(browser: Browser) -> None:
    page = await browser.get("/")
    assets = Assets()

    addresses = {address.removeprefix("/static/") for address in re.findall(r'"(/static/[^"#]+)', page.text)}
    modules = ("live.js", "time.js", "keys.js", "page.js")
    loaded = [asset for name in assets.names if (asset := assets[name]).address in addresses or name in modules]
    assert len(page.content) + sum(len(asset.body) for asset in loaded) <= 130_000


@pytest.mark.parametrize(("kind", "kilobytes"), [("js", 25), ("css", 30)])
def test_what_is_ours_stays_small(kind: str, kilobytes: int) -> None:
    ours = {path.name: path.stat().st_size for path in (ROOT / "static").glob(f"*.{kind}")}

    assert ours
    assert sum(ours.values()) <= kilobytes * 1024, ours


def test_every_icon_that_is_named_exists() -> None:
    sprite = (ROOT / "static/icons.svg").read_text(encoding="utf-8")
    known = set(re.findall(r'id="([a-z]+)"', sprite))

    text = "".join(path.read_text(encoding="utf-8") for path in TEMPLATES)

    assert set(re.findall(r'icon\("([a-z]+)"\)', text)) <= known


# who may come in


async def test_without_a_key_every_browser_on_this_machine_is_an_admin_and_told_so(browser: Browser) -> None:
    page = await browser.get("/")

    assert page.status_code == 200
    assert "Open mode" in page.text


async def test_a_foreign_host_name_is_refused_while_the_door_is_open(parts: ServerRuntime) -> None:
    async with open_browser(parts, "http://evil.example:8080") as browser:
        assert (await browser.get("/")).status_code == 403


async def test_once_there_is_a_key_one_has_to_log_in(parts: ServerRuntime, log_in: Entering) -> None:
    await log_in("admin")
    async with open_browser(parts) as stranger:
        page = await stranger.get("/?a=b")

        assert page.url.path == "/login"
        assert page.url.params["next"] == "/?a=b"
        assert (await stranger.get("/parts/ping", headers={"HX-Request": "true"})).status_code == 401


async def test_a_wrong_key_opens_nothing(parts: ServerRuntime, log_in: Entering) -> None:
    await log_in("admin")
    async with open_browser(parts) as stranger:
        answer = await stranger.submit("/login", seen_on="/login", key="tb_000000000000_wrong")

        assert answer.status_code == 401
        assert "unknown, expired or revoked" in answer.text
        assert (await stranger.get("/")).url.path == "/login"


async def test_the_session_cookie_is_out_of_reach(
    parts: ServerRuntime, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    key = (await make_key("viewer"))["Authorization"].removeprefix("Bearer ")
    async with open_browser(parts, "https://timeball.example") as browser:
        form = await browser.get("/login")
        answer = await browser.post("/login", data={"token": token_of(form.text), "key": key}, follow_redirects=False)

        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "Secure" in cookie
        assert "SameSite=lax" in cookie
        assert key not in cookie


async def test_a_revoked_key_ends_its_sessions(parts: ServerRuntime, log_in: Entering) -> None:
    browser = await log_in("viewer")
    key = (await parts.keys.list())[0]
    assert (await browser.get("/")).url.path == "/"

    await parts.keys.revoke(key.id, AUDIT)

    assert (await browser.get("/")).url.path == "/login"


async def test_a_logout_ends_the_session(log_in: Entering) -> None:
    browser = await log_in("viewer")
    cookie = browser.cookies["timeball_session"]

    await browser.submit("/logout")

    browser.cookies.set("timeball_session", cookie, domain="localhost.local", path="/")
    assert (await browser.get("/")).url.path == "/login"


@pytest.mark.parametrize(
    "wanted", ["//evil.example/", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_a_login_leads_to_no_other_site(parts: ServerRuntime, log_in: Entering, wanted: str) -> None:
    browser = await log_in("viewer")

    answer = await browser.get("/login/done", params={"next": wanted}, follow_redirects=False)

    assert answer.headers["location"] == "/"


async def test_a_browser_that_keeps_no_cookie_is_told_so(
    parts: ServerRuntime, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    await make_key("viewer")
    async with open_browser(parts) as browser:
        assert "did not keep the session" in (await browser.get("/login/done")).text


# where changes come from


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:8080"}, 200),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_change_from_another_site_is_refused(log_in: Entering, headers: dict[str, str], status: int) -> None:
    browser = await log_in("admin")
    token = token_of((await browser.get("/")).text)

    answer = await browser.post("/logout", data={"token": token}, headers=headers)

    assert answer.status_code == status


@pytest.mark.parametrize("token", ["", "0" * 64, "ä"])
async def test_a_form_without_its_token_is_refused(log_in: Entering, token: str) -> None:
    browser = await log_in("admin")

    answer = await browser.post("/logout", data={"token": token})

    assert answer.status_code == 403
    assert "our own pages" in answer.text


async def test_no_form_at_all_is_taken_from_another_site_or_without_its_token(browser: Browser) -> None:
    token = token_of((await browser.get("/")).text)
    paths = [re.sub(r"{\w+}", "x", route.path) for route in every_page() if "POST" in (route.methods or ())]

    for path in paths:
        foreign = await browser.post(path, data={"token": token}, headers={"Sec-Fetch-Site": "cross-site"})
        forged = await browser.post(path, data={"token": "0" * 64})

        assert [answer.status_code for answer in (foreign, forged)] == [403, 403], path
    assert len(paths) > 25


async def test_the_token_of_another_browser_is_refused(log_in: Entering) -> None:
    one, other = await log_in("admin"), await log_in("admin")
    token = token_of((await other.get("/")).text)

    assert (await one.post("/logout", data={"token": token})).status_code == 403


# under a prefix


@pytest.mark.parametrize("arrives_as", ["/tools/timeball", ""], ids=["proxy keeps the prefix", "proxy takes it off"])
async def test_under_a_prefix_every_address_bears_it(parts: ServerRuntime, arrives_as: str) -> None:
    prefixed = replace(parts, settings=Settings(url_prefix="/tools/timeball"))
    async with httpx.AsyncClient(
        transport=InProcessTransport(make_web_app(prefixed)), base_url=f"http://localhost:8080{arrives_as}"
    ) as client:
        page = (await client.get("/")).text

        addresses = re.findall(r'(?:href|src|action|hx-get|data-ping|data-stream)="([^"]+)"', page)
        assert len(addresses) > 20
        assert [one for one in addresses if not one.startswith(("/tools/timeball/", "#"))] == []
        css = next(one for one in addresses if one.endswith(".css")).removeprefix("/tools/timeball")
        assert (await client.get(css)).status_code == 200
        assert (await client.get("/api/v1/health/live")).status_code == 200
