"""An OIDC issuer of this machine: keys, tokens that are signed with primitives alone, and a server of its JWKS."""

import base64
import json
from contextlib import contextmanager, suppress
from threading import Event

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fake_servers import FakeServer, Handler

ISSUER, AUDIENCE = "https://issuer.example", "onebert"


def b64(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value):
    return b64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class Rsa:
    """RS256."""

    alg = "RS256"

    def __init__(self, kid):
        self.kid, self._key = kid, rsa.generate_private_key(65537, 2048)

    def jwk(self):
        public = self._key.public_key().public_numbers()
        return {"kty": "RSA", "kid": self.kid, "use": "sig", "n": number(public.n), "e": number(public.e)}

    def sign(self, data):
        return self._key.sign(data, padding.PKCS1v15(), hashes.SHA256())


class Elliptic:
    """ES256."""

    alg = "ES256"

    def __init__(self, kid):
        self.kid, self._key = kid, ec.generate_private_key(ec.SECP256R1())

    def jwk(self):
        public = self._key.public_key().public_numbers()
        x, y = (b64(value.to_bytes(32, "big")) for value in (public.x, public.y))
        return {"kty": "EC", "crv": "P-256", "kid": self.kid, "x": x, "y": y}

    def sign(self, data):
        return b"".join(
            part.to_bytes(32, "big") for part in decode_dss_signature(self._key.sign(data, ec.ECDSA(hashes.SHA256())))
        )


class Edwards:
    """Ed25519, by the name that RFC 9864 gives it."""

    alg = "Ed25519"

    def __init__(self, kid):
        self.kid, self._key = kid, ed25519.Ed25519PrivateKey.generate()

    def jwk(self):
        return {"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": b64(self._key.public_key().public_bytes_raw())}

    def sign(self, data):
        return self._key.sign(data)


def claims(now, **changes):
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 600, "iat": now}
    made |= {"onebert_scopes": ["classify"], "onebert_tasks": ["acme-*"]} | changes
    return {name: value for name, value in made.items() if value is not None}


def token(key, content, **header):
    header = {"alg": key.alg, "kid": key.kid, "typ": "JWT"} | header
    signed = f"{b64({name: value for name, value in header.items() if value is not None})}.{b64(content)}"
    return f"{signed}.{b64(key.sign(signed.encode()))}"


@contextmanager
def jwks_server(keys):
    """Serves the keys that are in the list now; yields the address, and a list of who asked.

    Beside `/jwks` there is `/moved`, which leads there, and `/drops`, whose answer comes byte by byte.
    """
    asked, ended = [], Event()

    class Jwks(Handler):
        def answer(self):
            asked.append(self.path)
            if self.path == "/moved":
                self.reply(302, headers={"Location": "/jwks"})
                return
            if self.path == "/drops":
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):  # until whoever asked has left, or half a minute
                    for _ in range(3000):
                        if ended.wait(0.01):
                            break
                        self.wfile.write(b" ")
                return
            self.reply(200 if keys else 500, json.dumps({"keys": [key.jwk() for key in keys]}).encode())

        do_GET = answer

    with FakeServer(Jwks) as server:
        yield f"{server.url}/jwks", asked
        ended.set()
