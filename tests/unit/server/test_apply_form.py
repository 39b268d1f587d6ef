"""Files of `onebert apply` that are wrong: each is refused in one line with the path of the key, before any server."""

import os
import tomllib

import pytest

from onebert_server.cli.apply.deltas import read_deltas, shared_files
from onebert_server.cli.apply.form import MAX_BYTES, Meaning, read_form
from onebert_server.cli.apply.part import parts
from onebert_server.cli.apply.written import _key, _value
from onebert_store.errors import InvalidInput
from onebert_store.file.format import dumps, loads
from tiny_delta import make_delta

DIGEST = "sha256:" + "0123456789abcdef" * 4
ONE_BYTES, TWO_BYTES = (dumps(make_delta(seed)) for seed in (1, 2))
ONE = 'versions = { 1 = "one.safetensors", 2 = "two.safetensors" }\n'


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "empty").mkdir(parents=True)
    (inside / "one.safetensors").write_bytes(ONE_BYTES)
    (inside / "copy.safetensors").write_bytes(ONE_BYTES)
    (inside / "two.safetensors").write_bytes(TWO_BYTES)
    (inside / "not.safetensors").write_bytes(b"\x00" * 100)
    (tmp_path / "outside.safetensors").write_bytes(ONE_BYTES)
    (inside / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (inside / "loop").symlink_to(inside / "loop")
    os.mkfifo(inside / "pipe")
    return inside


def read(folder, text):
    file = folder / "tasks.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    forms = read_form(file, parts())
    return forms, {name: read_deltas(form) for name, form in forms.items()}


WRONG = {
    "not TOML": ("[tasks.tone", "it is not TOML: "),
    "not text": (b"\xff\xfe[tasks.tone]", "it is not TOML: "),
    "deep": ("a = " + "[" * 100_000, "it is not TOML: its lists or tables are too deep"),
    "long number": ("[tasks.tone.kept]\nshare = " + "1" * 5000, "it is not TOML: "),
    "huge": (b"#" * (MAX_BYTES + 1), "it has more than 16,777,216 bytes"),
    "empty": ("", "it has no task: a task is a table [tasks.NAME]"),
    "key of the file": ("[task.tone]", "task: there is no such key; is tasks meant?"),
    "tasks as a list": ("tasks = []", "tasks: it must be a table, not a list"),
    "task as a text": ('tasks.tone = "one.safetensors"', "tasks.tone: it must be a table, not a text"),
    "name of a task": ('[tasks."../x"]', "tasks.\"../x\": '../x' is not a name"),
    "key of a task": ("[tasks.tone]\nalias.live = 1", "tasks.tone.alias: there is no such key; is aliases meant?"),
    "key unlike any": ("[tasks.tone]\nx = 1", "tasks.tone.x: there is no such key; known: versions, aliases, gate, "),
    "versions as a list": ("[tasks.tone]\nversions = []", "tasks.tone.versions: it must be a table, not a list"),
    "version as a number": ("[tasks.tone]\nversions.1 = 1", "tasks.tone.versions.1: it must be a table, not a whole"),
    "version as a time": ("[tasks.tone]\nversions.1 = 2026-01-01", "tasks.tone.versions.1: it must be a table, not a "),
    "version of nothing": ("[tasks.tone]\nversions.1 = {}", "tasks.tone.versions.1: it names neither a file nor a "),
    "short digest": ('[tasks.tone]\nversions.1 = "sha256:ab"', "tasks.tone.versions.1: a digest is sha256: and 64 of "),
    "missing file": ('[tasks.tone]\nversions.1 = "no.x"', "tasks.tone.versions.1: there is no no.x"),
    "folder above": (
        '[tasks.tone]\nversions.1 = "../outside.safetensors"',
        "tasks.tone.versions.1: ../outside.safetensors is outside the folder of the file",
    ),
    "absolute path": ('[tasks.tone]\nversions.1 = "/etc/passwd"', "tasks.tone.versions.1: /etc/passwd is outside"),
    "link to outside": ('[tasks.tone]\nversions.1 = "link.safetensors"', "tasks.tone.versions.1: link.safetensors is "),
    "link to itself": ('[tasks.tone]\nversions.1 = "loop"', "tasks.tone.versions.1: "),
    "NUL in a path": ('[tasks.tone]\nversions.1 = "a\\u0000b"', "tasks.tone.versions.1: "),
    "long path": (f'[tasks.tone]\nversions.1 = "{"a" * 5000}"', "tasks.tone.versions.1: 'aaaa"),
    "pipe": ('[tasks.tone]\nversions.1 = "pipe"', "tasks.tone.versions.1: pipe is neither a file nor a folder"),
    "folder as a delta": ('[tasks.tone]\nversions.1 = "empty"', "tasks.tone.versions.1: empty cannot be read"),
    "no delta": ('[tasks.tone]\nversions.1 = "not.safetensors"', "tasks.tone.versions.1: not.safetensors: "),
    "another digest": (
        f'[tasks.tone]\nversions.1 = {{ file = "one.safetensors", digest = "{DIGEST}" }}',
        "tasks.tone.versions.1: one.safetensors has another digest: sha256:",
    ),
    "one version twice": (
        '[tasks.tone]\nversions = { 1 = "one.safetensors", 2 = "copy.safetensors" }',
        "tasks.tone.versions.2: it is the same as 1",
    ),
    "version not in the file": (
        f"[tasks.tone]\n{ONE}aliases.live = 3",
        "tasks.tone.aliases.live: the file names no version '3' of this task",
    ),
    "misspelled version": (
        '[tasks.tone]\nversions.june = "one.safetensors"\naliases.live = "jun"',
        "tasks.tone.aliases.live: the file names no version 'jun' of this task; is june meant?",
    ),
    "alias is true": (
        f"[tasks.tone]\n{ONE}aliases.live = true",
        "tasks.tone.aliases.live: it must be a table, not true",
    ),
    "alias of digits": (f"[tasks.tone]\n{ONE}aliases.1 = 1", "tasks.tone.aliases.1: an alias is not all digits"),
    "shares of 99": (
        f"[tasks.tone]\n{ONE}aliases.live.split = {{ 1 = 90, 2 = 9 }}",
        "tasks.tone.aliases.live: the shares of a split are whole percentages above 0, and 100 together",
    ),
    "share of a half": (
        f"[tasks.tone]\n{ONE}aliases.live.split = {{ 1 = 0.5, 2 = 0.5 }}",
        "tasks.tone.aliases.live.split.1: it must be a whole number, not a number",
    ),
    "shadow that answers": (
        f"[tasks.tone]\n{ONE}aliases.live = {{ split = {{ 1 = 100 }}, shadow = {{ 1 = 10 }} }}",
        "tasks.tone.aliases.live: a version stands twice in the target",
    ),
    "no split": (
        f"[tasks.tone]\n{ONE}aliases.live = {{ shadow = {{ 1 = 10 }} }}",
        "tasks.tone.aliases.live: it has no split",
    ),
    "sticky by chance": (
        f'[tasks.tone]\n{ONE}aliases.live = {{ split = {{ 1 = 50, 2 = 50 }}, sticky = "user" }}',
        "tasks.tone.aliases.live: sticky is principal or header:NAME",
    ),
}


@pytest.mark.parametrize(("text", "error"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_in_one_line_with_the_path_of_the_key(folder, text, error):
    with pytest.raises(InvalidInput) as caught:
        read(folder, text)
    assert caught.value.detail.startswith(error)
    assert "\n" not in caught.value.detail


def test_a_right_file_is_read(folder):
    text = f'[tasks.tone]\n{ONE}aliases = {{ live = {{ split = {{ 2 = 5, 1 = 95 }} }}, old = "1", gone = false }}'
    forms, deltas = read(folder, text)
    assert forms["tone"].aliases == {
        "live": Meaning({"2": 5, "1": 95}, None, {}), "old": Meaning({"1": 100}), "gone": None,
    }  # fmt: skip
    assert deltas["tone"]["1"].digest == loads(ONE_BYTES).digest


def test_a_file_need_not_be_there_where_its_digest_stands(folder):
    _, deltas = read(folder, f'[tasks.tone.versions.1]\nfile = "no.safetensors"\ndigest = "{DIGEST}"')
    assert (deltas["tone"]["1"].digest, deltas["tone"]["1"].file) == (DIGEST, None)


def test_two_tasks_with_one_file_are_taken_and_said(folder):
    _, deltas = read(folder, "".join(f'[tasks.{name}]\nversions.1 = "one.safetensors"\n' for name in ("a", "b")))
    assert shared_files(deltas.values()) == ["tasks.a.versions.1 and tasks.b.versions.1 are one file, one.safetensors"]


HARD = ['a "b" \\ \n\t\r\x00\x1f\x7f ü 💛', 0.1, 1e-7, 1e22, 3, True, False, [], {}, [{"a.b c": ["ü", {"": 1}]}]]


@pytest.mark.parametrize("value", HARD, ids=map(repr, HARD))
def test_what_is_written_is_read_as_it_was(value):
    assert tomllib.loads(f"{_key('a b')} = {_value(value)}") == {"a b": value}
