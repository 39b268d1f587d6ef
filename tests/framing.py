"""Heads and bodies that readers of HTTP/1.1 understand differently, and those that all understand alike."""

HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
# As Java's client sends them with every request.
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"


def post(fields: bytes, body: bytes = b"hello", version: bytes = b"HTTP/1.1", host: bytes = HOST) -> bytes:
    return b"POST /v1/classify " + version + b"\r\n" + host + fields + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    return post(CHUNKED, body)


def get(target: bytes = b"/healthz", host: bytes = HOST, version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + host + b"\r\n"


# RFC 9112 lets a server refuse each of these, and close the connection: nothing behind one is a request.
REFUSED = {
    "coding after a comma": post(b"Transfer-Encoding: ,chunked\r\n", CHUNKS),
    "coding before a comma": post(b"Transfer-Encoding: chunked,\r\n", CHUNKS),
    "coding with spaces": post(b"Transfer-Encoding: chunked  \r\n", CHUNKS),
    "coding twice": post(CHUNKED * 2, CHUNKS),
    "coding twice in one field": post(b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS),
    "another coding inside": post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "another coding in its own field": post(b"Transfer-Encoding: identity\r\n" + CHUNKED, CHUNKS),
    "another coding alone": post(b"Transfer-Encoding: identity\r\n", CHUNKS),
    "no coding": post(b"Transfer-Encoding:\r\n", CHUNKS),
    "coding in quotes": post(b'Transfer-Encoding: "chunked"\r\n', CHUNKS),
    "coding with a parameter": post(b"Transfer-Encoding: chunked;q=1\r\n", CHUNKS),
    "coding behind a vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS),
    "coding before a space and a colon": post(b"Transfer-Encoding : chunked\r\n", CHUNKS),
    "coding of HTTP/1.0": post(CHUNKED, CHUNKS, b"HTTP/1.0"),
    "coding and length": post(CHUNKED + b"Content-Length: 5\r\n", CHUNKS),
    "length and coding": post(b"Content-Length: 5\r\n" + CHUNKED, CHUNKS),
    "coding of another protocol": post(
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: ,chunked\r\n", CHUNKS
    ),
    "another coding of another protocol": post(UPGRADE + b"Transfer-Encoding: gzip\r\n"),
    "length of another protocol": post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 05\r\n"),
    "two lengths of another protocol": post(UPGRADE + b"Content-Length: 5\r\nContent-Length: 6\r\n"),
    "no number for a length of another protocol": post(UPGRADE + b"Content-Length: x\r\n"),
    "length with a zero": post(b"Content-Length: 05\r\n"),
    "length with many zeros": post(b"Content-Length: " + b"0" * 300 + b"5\r\n"),
    "length with spaces": post(b"Content-Length:  5 \r\n"),
    "length with a sign": post(b"Content-Length: +5\r\n"),
    "length below zero": post(b"Content-Length: -5\r\n"),
    "length in hexadecimal": post(b"Content-Length: 0x5\r\n"),
    "length with an underscore": post(b"Content-Length: 0_5\r\n"),
    "length of two numbers": post(b"Content-Length: 1 5\r\n"),
    "length as a list": post(b"Content-Length: 5, 5\r\n"),
    "length twice": post(b"Content-Length: 5\r\nContent-Length: 5\r\n"),
    "no length": post(b"Content-Length:\r\n"),
    "length of 64 bits": post(b"Content-Length: 18446744073709551615\r\n"),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551621\r\n"),
    "length before a space and a colon": post(b"Content-Length : 5\r\n"),
    "length in the next line": post(b"Content-Length:\r\n 5\r\n"),
    "field in two lines": post(b"X: a\r\n b\r\nContent-Length: 5\r\n"),
    "first field in the second line": get(host=b" Host: localhost\r\n"),
    "lines without CR": get().replace(b"\r\n", b"\n"),
    "field without CR": post(b"X: a\n" + CHUNKED, CHUNKS),
    "CR in a value": post(b"X: a\rb\r\nContent-Length: 5\r\n"),
    "NUL in a value": post(b"X: a\0b\r\nContent-Length: 5\r\n"),
    "NUL in a name": post(b"X\0: a\r\nContent-Length: 5\r\n"),
    "space in a name": post(b"X Y: a\r\nContent-Length: 5\r\n"),
    "no name": post(b": a\r\nContent-Length: 5\r\n"),
    "two hosts": get(host=HOST * 2),
    "no host": get(host=b""),
    "host of two names": get(host=b"Host: localhost, evil.example\r\n"),
    "host with a path": get(host=b"Host: localhost/x\r\n"),
    "host with a user": get(host=b"Host: evil@localhost\r\n"),
    "target of another host": get(b"http://evil.example/healthz"),
    "target with a user": get(b"http://evil@localhost/healthz"),
    "target with a fragment": get(b"/healthz#x"),
    "target of another scheme": get(b"ftp://localhost/healthz"),
    "target that is a host": get(b"localhost:80"),
    "tunnel": get(b"localhost:80").replace(b"GET", b"CONNECT"),
    "tunnel to an address with a path": get(b"http://localhost/healthz").replace(b"GET", b"CONNECT"),
    "space in a target": get(b"/health z"),
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/1.2": get(version=b"HTTP/1.2"),
    "HTTP/2.0": get(version=b"HTTP/2.0"),
    "chunk in hexadecimal": chunked(b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk with a sign": chunked(b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk with a space": chunked(b"5 \r\nhello\r\n0\r\n\r\n"),
    "chunk without CR": chunked(b"5\nhello\r\n0\r\n\r\n"),
    "content without CR": chunked(b"5\r\nhello\n0\r\n\r\n"),
    "content without an end": chunked(b"5\r\nhello0\r\n\r\n"),
    "end without CR": chunked(b"5\r\nhello\r\n0\n\n"),
    "extension without CR": chunked(b"5;a\nhello\r\n0\r\n\r\n"),
    "line in an extension": chunked(b'5;a="b\r\n"\r\nhello\r\n0\r\n\r\n'),
    "chunk beyond 64 bits": chunked(b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "length in a trailer": chunked(b"5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n"),
}
# What follows one of these is the next request.
TAKEN = {
    "length": post(b"Content-Length: 5\r\n"),
    "length in lower case": post(b"content-length:5\r\n"),
    "chunks": chunked(CHUNKS),
    "chunks in upper case": post(b"TRANSFER-ENCODING: CHUNKED\r\n", CHUNKS),
    "chunks in odd case": post(b"Transfer-Encoding: ChUnKeD\r\n", CHUNKS),
    "extension": chunked(b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    "trailer": chunked(b"5\r\nhello\r\n0\r\nX: a\r\n\r\n"),
    "many trailers": chunked(b"5\r\nhello\r\n0\r\n" + b"X:\r\n" * 200 + b"\r\n"),
    "absolute target": post(b"Content-Length: 5\r\n").replace(b"/v1", b"http://localhost/v1"),
    "empty lines before": b"\r\n\r\n" + post(b"Content-Length: 5\r\n"),
}
