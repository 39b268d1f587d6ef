"""A browser's questions from pages of other origins: as the Fetch standard asks, with keys, problems and façades."""

import pytest

from servers import Task, layouts

pytestmark = layouts

OURS, THEIRS = "https://app.example.org", "https://evil.example"
KEY = "a-key-for-the-browser"
SETTINGS = {"cors_origins": f"{OURS}, http://localhost:3000", "api_keys": KEY}
STORED = {"tone": Task()}
PATHS = ["/v1/tasks/tone/classify", "/t/tone", "/t/tone/predict", "/v1/tasks"]
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def preflight(web, path, origin):
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    headers["Access-Control-Request-Headers"] = "authorization,content-type,x-request-timeout"
    return web.options(path, headers=headers)


def allowed(answer):
    return answer.headers.get_list("access-control-allow-origin")


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_may_ask_before_it_has_shown_a_key(web, path):
    answer = preflight(web, path, OURS)
    assert (answer.status_code, allowed(answer)) == (200, [OURS])
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(answer.headers["access-control-allow-headers"].split(","))
    assert "access-control-allow-credentials" not in answer.headers
    assert allowed(preflight(web, path, THEIRS)) == []


@pytest.mark.parametrize("path", PATHS[:-1])
def test_answers_and_errors_may_be_read_by_the_named_origins_alone(web, path):
    def asked(origin, headers, body):
        return web.post(path, json=body, headers=headers | {"Origin": origin})

    for headers, body, status in [
        (AUTHORIZED, {"inputs": "a text"}, 200),
        (AUTHORIZED, {"inputs": 3}, 422),
        ({}, {"inputs": "a text"}, 401),
    ]:
        ours, theirs = asked(OURS, headers, body), asked(THEIRS, headers, body)
        assert (ours.status_code, allowed(ours)) == (status, [OURS])
        assert "X-Request-Id" in ours.headers["access-control-expose-headers"]
        assert (theirs.status_code, allowed(theirs)) == (status, [])


def test_what_is_forwarded_has_one_field_of_each(web):
    answer = web.get("/v1/tasks", headers=AUTHORIZED | {"Origin": OURS})
    assert (answer.status_code, allowed(answer)) == (200, [OURS])
