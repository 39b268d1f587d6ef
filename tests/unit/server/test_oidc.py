"""OIDC tokens against a real server of keys: who is let in, everything that is not, and keys that come and go."""

import asyncio
import hashlib
import hmac
import json
import threading

import pytest

from issuer import AUDIENCE, ISSUER, Edwards, Elliptic, Rsa, b64, claims, jwks_server, token
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import Scope
from onebert_server.fairness.rates import Attempts
from onebert_server.http import oidc
from onebert_server.http.auth import ApiKeys
from onebert_server.http.head import Head
from onebert_server.http.oidc import LEEWAY, MAX_SUBJECT, Tokens
from onebert_store.errors import TooManyAttempts, Unauthorized
from onebert_store.registry.grants import Quotas

NOW = 1_800_000_000
ADDRESS = "192.0.2.7"
KEY, OTHER = Rsa("one"), Rsa("other")
KEYS = {"RS256": KEY, "ES256": Elliptic("curve"), "Ed25519": Edwards("edwards")}


@pytest.fixture(scope="module")
def source():
    with jwks_server(list(KEYS.values())) as (address, _):
        yield address


def tokens_of(source, now):
    return Tokens(ISSUER, AUDIENCE, source, clock=lambda: now[0])


def finding(tokens, text):
    return tokens.find(text, hashlib.sha256(text.encode()).digest(), ADDRESS)


def find(tokens, text):
    return asyncio.run(finding(tokens, text))


@pytest.mark.parametrize("alg", KEYS)
def test_a_token_is_its_claims(source, alg):
    content = claims(NOW, onebert_scopes="classify upload offline_access", onebert_default_task="acme-1@2")
    content |= {"nbf": NOW, "aud": ["else", AUDIENCE]}
    who = find(tokens_of(source, [NOW]), token(KEYS[alg], content))
    assert (who.name, who.scopes, who.tasks) == ("oidc:alice", {Scope.CLASSIFY, Scope.UPLOAD}, ("acme-*",))
    assert who.default_task == "acme-1@2"


def test_quotas_are_a_claim(source):
    given = {"tasks": 2, "bytes": 10**9, "requests": 50, "tokens": 0.5}
    tokens = tokens_of(source, [NOW])
    assert find(tokens, token(KEY, claims(NOW, onebert_quotas=given))).quotas == Quotas(**given)
    assert find(tokens, token(KEY, claims(NOW, onebert_quotas={"tasks": 1}))).quotas == Quotas(tasks=1)
    assert find(tokens, token(KEY, claims(NOW))).quotas == Quotas()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": "another"},
        {"aud": ["another"]},
        {"exp": None},
        {"exp": NOW - LEEWAY - 1},
        {"nbf": NOW + LEEWAY + 1},
        {"sub": None},
        {"sub": ""},
        {"sub": "a" * (MAX_SUBJECT + 1)},
        {"onebert_scopes": None},
        {"onebert_scopes": ["root"]},
        {"onebert_tasks": None},
        {"onebert_tasks": ["a b", "[a]"]},
        {"onebert_default_task": "blue-tone"},
        {"onebert_quotas": 7},
        {"onebert_quotas": {"token": 5}},
        {"onebert_quotas": {"tokens": True}},
        {"onebert_quotas": {"tokens": float("inf")}},
        {"onebert_quotas": {"tasks": 10**400}},
    ],
    ids=str,
)
def test_claims_that_are_not_right_are_refused(source, changes):
    assert find(tokens_of(source, [NOW]), token(KEY, claims(NOW, **changes))) is None


def forged():
    good = token(KEY, claims(NOW))
    head, body, signature = good.split(".")
    yield "no signature", f"{head}.{body}."
    yield "another signature", f"{head}.{body}.{b64(OTHER.sign(f'{head}.{body}'.encode()))}"
    yield "other claims", f"{head}.{b64(claims(NOW, sub='root'))}.{signature}"
    yield "alg none", f"{b64({'alg': 'none', 'kid': 'one'})}.{body}."
    public = json.dumps(KEY.jwk()).encode()
    weak = f"{b64({'alg': 'HS256', 'kid': 'one'})}.{body}"
    yield "a public key as secret", f"{weak}.{b64(hmac.new(public, weak.encode(), 'sha256').digest())}"
    yield "a key of its own", token(OTHER, claims(NOW), kid="one", jwk=OTHER.jwk())
    yield "another kind of key", token(KEYS["ES256"], claims(NOW), kid="one")
    yield "no number of a key", token(KEY, claims(NOW), kid=None)
    yield "a critical extension", token(KEY, claims(NOW), crit=["new"], new=1)
    yield "critical extensions that are no names", token(OTHER, claims(NOW), kid="one", crit=[[]])
    yield "an end that is no number of seconds", token(KEY, claims(NOW, exp=10**400))
    yield "no object", token(KEY, [])
    yield "no token", "a.b.c"
    yield "no characters of a token", good + "é"
    yield "too long", token(KEY, claims(NOW, more="x" * 9000))


@pytest.mark.parametrize("text", [text for _, text in forged()], ids=[name for name, _ in forged()])
def test_what_is_forged_is_refused(source, text):
    assert find(tokens_of(source, [NOW]), text) is None


def test_no_token_says_where_the_keys_are():
    with jwks_server([KEY]) as (address, _), jwks_server([OTHER]) as (elsewhere, asked):
        text = token(OTHER, claims(NOW), jku=elsewhere, x5u=elsewhere)
        assert find(tokens_of(address, [NOW]), text) is None
        assert asked == []


def test_keys_are_not_fetched_from_where_the_address_leads_to():
    with jwks_server([KEY]) as (address, asked):
        assert find(tokens_of(address.replace("/jwks", "/moved"), [NOW]), token(KEY, claims(NOW))) is None
        assert asked == ["/moved"]


async def test_an_issuer_that_answers_in_drops_holds_nobody_up_for_long(monkeypatch):
    monkeypatch.setattr(oidc, "FETCH_TIMEOUT", 0.1)
    with jwks_server([KEY]) as (address, asked):
        tokens = tokens_of(address.replace("/jwks", "/drops"), [NOW])
        async with asyncio.timeout(60):
            several = await asyncio.gather(*(tokens.find(token(OTHER, claims(NOW)), b"", ADDRESS) for _ in range(3)))
        assert several == 3 * [None]
        assert asked == ["/drops"]


def test_a_token_is_valid_until_its_end(source):
    now = [NOW]
    tokens, text = tokens_of(source, now), token(KEY, claims(NOW, exp=NOW + 60))
    assert find(tokens, text) is find(tokens, text), "it is remembered"
    now[0] = NOW + 60 + LEEWAY
    assert find(tokens, text) is None


def test_a_new_key_of_the_issuer_is_found():
    keys, now = [KEY], [NOW]
    with jwks_server(keys) as (address, asked):
        tokens = tokens_of(address, now)
        assert find(tokens, token(KEY, claims(NOW)))
        keys.append(OTHER)
        for _ in range(20):
            assert find(tokens, token(OTHER, claims(NOW))) is None
        assert len(asked) == 1, "it was asked just now"
        now[0] += 11
        assert find(tokens, token(OTHER, claims(NOW)))
        assert len(asked) == 2


async def test_a_withdrawn_key_is_forgotten_but_not_while_the_issuer_is_away():
    keys, now = [KEY, OTHER], [NOW]
    with jwks_server(keys) as (address, asked):
        tokens, text = tokens_of(address, now), token(OTHER, claims(NOW, exp=NOW + 5000))

        async def later():
            """Some time later, when the keys have been read again."""
            now[0] += 301
            await tokens.find(text, b"", ADDRESS)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
            return await finding(tokens, text)

        assert await finding(tokens, text)
        keys.clear()  # the server answers 500
        assert await later()
        keys.append(KEY)
        assert await later() is None
        assert len(asked) >= 3


def test_keys_come_from_a_file_too(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [KEY.jwk(), {"kty": "a new kind"}]}))
    assert find(tokens_of(str(path), [NOW]), token(KEY, claims(NOW)))


@pytest.fixture
def verified(monkeypatch):
    """The tokens that were verified, each with its thread."""
    verified, decode = [], oidc.jwt.decode

    def counted(text, *what, **more):
        verified.append((text, threading.get_ident()))
        return decode(text, *what, **more)

    monkeypatch.setattr(oidc.jwt, "decode", counted)
    return verified


def asking(source):
    """Asks a server with keys and tokens for the principal of a key that comes from an address."""
    keys = ApiKeys(KeyRing({}, closed=True), tokens_of(source, [NOW]))

    def check(text, address=ADDRESS, scheme="Bearer"):
        return keys.principal_of(Head([(b"authorization", f"{scheme} {text}".encode())]), address)

    return check


def forgeries(count, kid="one"):
    return [token(OTHER, claims(NOW, sub=str(number)), kid=kid) for number in range(count)]


@pytest.mark.parametrize("kid", ["one", "unknown"])
async def test_unknown_tokens_are_verified_within_the_limit(source, verified, kid):
    check = asking(source)
    good = [token(KEYS["Ed25519"], claims(NOW, sub=str(number))) for number in range(105)]
    for text in good:
        assert await check(text)
    with pytest.raises(Unauthorized):
        await check(forgeries(1)[0], scheme="Basic")
    assert len(verified) == 105, "each valid token once, none against the limit"
    verified.clear()
    errors = await asyncio.gather(*map(check, forgeries(200, kid)), return_exceptions=True)
    assert {type(error) for error in errors} == {Unauthorized, TooManyAttempts}
    # A token of an unknown key is verified once more, by the issuer's new keys. Some of the limit comes back meanwhile.
    tried = len(verified) // (1 if kid == "one" else 2)
    assert Attempts.AT_ONCE <= tried < len(errors)
    assert await check(good[0]), "it is remembered"
    assert len(verified) // (1 if kid == "one" else 2) == tried
    assert threading.get_ident() not in {thread for _, thread in verified}


@pytest.mark.parametrize("over", [token(KEY, claims(NOW, exp=NOW - 60)), "a-key-that-was-revoked"], ids=len)
async def test_who_sends_what_is_over_again_and_again_locks_nobody_out(source, verified, over):
    """As behind a proxy, which all clients' requests come from."""
    check = asking(source)
    errors = await asyncio.gather(*(check(over) for _ in range(150)), return_exceptions=True)
    assert {type(error) for error in errors} == {Unauthorized, TooManyAttempts}
    for _ in range(150):
        with pytest.raises((Unauthorized, TooManyAttempts)):
            await check(over)
    assert (await check(token(KEY, claims(NOW)))).name == "oidc:alice"
    assert [text for text, _ in verified].count(over) <= 1


async def test_addresses_have_their_tokens_verified_in_turns(source, verified):
    check, flood, good = asking(source), forgeries(90), token(KEY, claims(NOW))
    await check(token(KEY, claims(NOW, sub="first")))
    waiting = [asyncio.ensure_future(check(text)) for text in flood]
    await asyncio.sleep(0)
    assert (await check(good, "192.0.2.8")).name == "oidc:alice"
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [text for text, _ in verified].index(good) <= 3


async def test_of_many_tokens_those_stay_remembered_that_are_used(source, verified, monkeypatch):
    monkeypatch.setattr(oidc, "MAX_REMEMBERED", 2)
    check, used = asking(source), token(KEY, claims(NOW))
    for number in range(3):
        assert await check(used)
        assert await check(token(KEY, claims(NOW, sub=str(number))))
    assert [text for text, _ in verified].count(used) == 1
