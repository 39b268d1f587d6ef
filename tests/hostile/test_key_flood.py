"""A flood of requests without a valid key: limited, and no harm to who has one."""

from collections import Counter

import httpx
import pytest

from servers import LAYOUTS, Server

KEY = "a-key-of-somebody-honest"


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_who_guesses_keys_is_told_to_go_slow(tmp_path, front_ends):
    with Server(tmp_path, front_ends=front_ends, api_keys=KEY) as server, httpx.Client(base_url=server.url) as web:
        seen, closed = Counter(), Counter()
        for number in range(300):
            answer = web.post("/v1/classify", headers={"Authorization": f"Bearer guess-{number}"})
            seen[answer.status_code, answer.json()["code"]] += 1
            closed[answer.status_code, answer.headers.get("connection"), answer.headers.get("retry-after")] += 1
        assert seen.keys() == {(401, "unauthorized"), (429, "too-many-attempts")}
        assert seen[401, "unauthorized"] >= 100
        assert closed.keys() == {(401, None, None), (429, "close", "1")}
        assert web.get("/v1/tasks", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
