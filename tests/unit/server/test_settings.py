"""Settings: read from the environment, safe by default."""

import hashlib
import os

import pytest
import torch

from onebert_server.access.keys import KeyRing
from onebert_server.hosts import device_for
from onebert_server.loopback import is_loopback
from onebert_server.settings import load_settings
from onebert_store.errors import InvalidSettings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ONEBERT_")]:
        monkeypatch.delenv(name)


def test_environment_and_flags(monkeypatch):
    monkeypatch.setenv("ONEBERT_PORT", "9000")
    monkeypatch.setenv("ONEBERT_DTYPE", "bfloat16")
    settings = load_settings(port=9001, dtype=None)
    assert (settings.port, settings.dtype) == (9001, "bfloat16")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ONEBERT_MAX_BATCH_TOKEN", "is ONEBERT_MAX_BATCH_TOKENS meant"),
        ("ONEBERT_APIKEYS", "is ONEBERT_API_KEYS meant"),
        ("ONEBERT_XQZJW", "^ONEBERT_XQZJW is not a setting$"),
    ],
)
def test_a_misspelled_variable_is_no_default(monkeypatch, name, message):
    monkeypatch.setenv(name, "a-value-of-16-letters")
    with pytest.raises(InvalidSettings, match=message) as caught:
        load_settings()
    assert "a-value" not in caught.value.detail


@pytest.mark.parametrize(
    "name",
    [
        *("ONEBERT_URL", "ONEBERT_API_KEY", "_ONEBERT_COMPLETE", "onebert_port"),
        *("ONEBERT_SERVICE_HOST", "ONEBERT_SERVICE_PORT_HTTP", "ONEBERT_PORT_8000_TCP_ADDR", "ONEBERT_CANARY_PORT"),
    ],
)
def test_variables_that_others_read_are_let_alone(monkeypatch, name):
    monkeypatch.setenv(name, "9000")
    load_settings()


def test_a_variable_of_an_earlier_release_is_ignored_with_one_line(monkeypatch, caplog):
    monkeypatch.setenv("ONEBERT_ENGINE_TIMEOUT", "90")
    monkeypatch.setenv("ONEBERT_MAX_QUEUE_TOKENS", "many")
    assert load_settings().port == 8000
    names = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert names == ["ONEBERT_ENGINE_TIMEOUT", "ONEBERT_MAX_QUEUE_TOKENS"]


@pytest.mark.parametrize("key", ["é" * 16, "tab\tin\tthe\tmiddle", "\x7f" * 16])
def test_a_key_is_plain_ascii(monkeypatch, key):
    monkeypatch.setenv("ONEBERT_API_KEYS", key)
    with pytest.raises(InvalidSettings, match="ASCII") as caught:
        load_settings()
    assert key not in caught.value.detail


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSettings, match="no CUDA device"):
        device_for(load_settings(device="cuda:1").device)


def test_keys_are_kept_as_digests_and_never_shown(monkeypatch):
    digest = hashlib.sha256(b"beta").hexdigest()
    other = "ab" * 32
    monkeypatch.setenv("ONEBERT_API_KEYS", f" alpha-secret-0123 ,, sha256:{digest}, on.call=sha256:{other}")
    settings = load_settings()
    first = hashlib.sha256(b"alpha-secret-0123")
    assert settings.api_keys == {
        first.digest(): first.hexdigest()[:16],
        bytes.fromhex(digest): digest[:16],
        bytes.fromhex(other): "on.call",
    }
    with pytest.raises(InvalidSettings, match="ONEBERT_API_KEYS"):
        load_settings(api_keys=f"On Call=sha256:{other}")
    ring = KeyRing(settings.api_keys)
    assert ring.find(bytes.fromhex(other)).name == "key:on.call"
    assert "alpha-secret-0123" not in repr(settings)
    assert "api_keys" not in repr(settings)


@pytest.mark.parametrize(
    ("origins", "says"),
    [("*", "every web page"), ("https://example.org/page", "an origin is"), ("example.org", "an origin is")],
)
def test_origins_that_say_nothing_or_too_much_are_refused(origins, says):
    with pytest.raises(InvalidSettings, match=says):
        load_settings(cors_origins=origins)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_no_key(host):
    assert is_loopback(host)
    assert load_settings(host=host).api_keys == {}


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "", "10.0.0.1", "192.168.1.1", "localhost.example", "127.0.0.1.example", "::ffff:10.0.0.1", "0"],
)
def test_beyond_loopback_needs_a_key(host):
    for keys in ({}, {"api_keys": " , "}):
        with pytest.raises(InvalidSettings, match="API key"):
            load_settings(host=host, **keys)
    assert load_settings(host=host, api_keys="a key of 16 or more").host == host


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "-1"),
        ("max_body_bytes", "lots"),
        ("dtype", "float16"),
        ("device", "cuda:x"),
        ("max_upload_bytes", str(2**27)),
        ("request_timeout", "0"),
        ("api_keys", "sha256:canary7f3a"),
        ("api_keys", "only-15-letters"),
        ("api_keys", "long-enough-0123456789,short"),
    ],
)
def test_what_breaks_a_rule_is_named(monkeypatch, name, value):
    monkeypatch.setenv(f"ONEBERT_{name.upper()}", value)
    with pytest.raises(InvalidSettings, match=f"^ONEBERT_{name.upper()}: ") as caught:
        load_settings()
    assert "\n" not in caught.value.detail
    assert name != "api_keys" or value not in caught.value.detail, "a key is never repeated"
