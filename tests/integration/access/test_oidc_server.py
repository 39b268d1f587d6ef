"""A server that takes OIDC tokens beside its keys, in one process and with front ends; and rates of principals."""

import time

import pytest

from issuer import AUDIENCE, ISSUER, Rsa, claims, jwks_server, token
from onebert_store.errors import Forbidden, OverQuota, TaskNotFound, Unauthorized
from servers import LAYOUTS, Server, Task
from tenants import ROOT_KEY

TEXT = "please help my order is late"


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_tokens_of_the_issuer_are_principals(tmp_path, front_ends):
    key, other = Rsa("one"), Rsa("one")
    with jwks_server([key]) as (address, _):
        oidc = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": address}
        with Server(tmp_path, front_ends=front_ends, api_keys=ROOT_KEY, **oidc) as server:
            with server.client(api_key=ROOT_KEY) as root:
                for name in ("acme-tone", "blue-tone"):
                    root.push(name, Task().file)
            now = int(time.time())
            with server.client(api_key=token(key, claims(now))) as alice:
                assert alice.classify("acme-tone", TEXT)["task"] == "acme-tone"
                assert [task["name"] for task in alice.tasks()] == ["acme-tone"]
                with pytest.raises(TaskNotFound):
                    alice.classify("blue-tone", TEXT)
                with pytest.raises(Forbidden):
                    alice.push("acme-tone", Task(seed=2).file)
            # Quotas are the claim's, and counted by the subject: another token of the same one does not help.
            slow = {
                "sub": "slow",
                "onebert_scopes": ["classify", "upload"],
                "onebert_quotas": {"tokens": 0.01, "tasks": 1},
            }
            with server.client(api_key=token(key, claims(now, **slow))) as bob:
                bob.classify("acme-tone", TEXT)
                bob.push("acme-own", Task(seed=3).file)
            with server.client(api_key=token(key, claims(now, **slow, exp=now + 700))) as bob:
                for refused in (lambda: bob.classify("acme-tone", TEXT), lambda: bob.push("acme-2", Task(seed=4).file)):
                    with pytest.raises(OverQuota):
                        refused()
            strangers = [
                token(other, claims(now)),
                token(key, claims(now, exp=now - 100)),
                token(other, claims(now), crit=5),
                "no-token-at-all-0123",
            ]
            for text in strangers:
                with server.client(api_key=text) as stranger, pytest.raises(Unauthorized):
                    stranger.classify("acme-tone", TEXT)
