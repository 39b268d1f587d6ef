"""The files of the page at `/`: whole, without a key, from this server alone, and kept by who has them."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from onebert_server.page import files
from servers import layouts

KEY = "first-key-0123456789"
SETTINGS = {"api_keys": KEY}
ROOT = Path(__file__).parents[3]


def named_in(path, text):
    """Addresses of other files that a file names."""
    if path == "/":
        return re.findall(r'(?:src|href)="([^"]+)"', text)
    return re.findall(r'(?:from|import) ?"([^"]+)"', text) if path.endswith(".js") else []


@layouts
def test_the_page_is_whole_without_a_network_and_without_a_key(web):
    paths, left = set(), ["/"]
    while left:
        path = left.pop()
        if path in paths or path == "/docs":
            continue
        paths.add(path)
        part = web.get(path)
        assert part.status_code == 200, path
        assert part.headers["content-type"].startswith(("text/html", "text/css", "text/javascript", "image/svg+xml"))
        left += [urlsplit(urljoin(f"http://server{path}", address)).path for address in named_in(path, part.text)]
        if "/vendor/" not in path:
            assert set(re.findall(r"https?://[^\s\"'`<>]+", part.text)) <= {"http://www.w3.org/2000/svg"}
    assert paths == files.PATHS.keys(), "a file that is served is not used"


def test_the_policy_lets_nothing_in_and_nothing_out(web):
    for path in files.PATHS:
        policy = dict(rule.split(maxsplit=1) for rule in web.get(path).headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert {source for value in policy.values() for source in value.split()} == {"'self'", "'none'", "'script'"}


@layouts
def test_what_a_browser_has_is_not_sent_again(web):
    for path in files.PATHS:
        first = web.get(path)
        again = web.get(path, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert web.get(path, headers={"If-None-Match": '"other"'}).content == first.content
        assert first.headers["cache-control"] == "no-cache"


@layouts
def test_who_asks_for_the_head_gets_the_head(web):
    for path in ("/", "/page/app.js"):
        head, whole = web.head(path), web.get(path)
        assert head.status_code == 200
        assert head.content == b""
        for name in ("content-length", "content-type", "etag", "content-security-policy"):
            assert head.headers[name] == whole.headers[name]


@layouts
@pytest.mark.parametrize(
    "path", ["/page/files.py", "/page/", "/page/nothing.js", "/page/%2e%2e/files.py", "/page/..%2ffiles.py", "/page//"]
)
def test_nothing_else_is_served(web, path):
    assert web.get(path).status_code == 401
    assert web.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 404


@pytest.mark.slow
def test_the_libraries_are_those_of_npm(tmp_path):
    """Fetched again, in the versions and with the digests that the script names."""
    code = "import sys, pathlib, page_libraries; page_libraries.renew(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, tmp_path]
    subprocess.run([*map(str, command)], check=True, cwd=ROOT / "server", capture_output=True, text=True)
    vendor = files.FOLDER / "vendor"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in vendor.iterdir()
    }
