"""Files of `onebert apply` that are wrong: each is refused in one line with the path of the key, before any server."""

import os

import pytest

from onebert_server.cli.apply.form import MAX_BYTES, AliasForm, read_form, shared_files
from onebert_store.errors import InvalidInput
from onebert_store.file.format import dumps, loads
from tiny_delta import make_delta

DIGEST = "sha256:" + "0123456789abcdef" * 4
ONE_BYTES, TWO_BYTES = (dumps(make_delta(seed)) for seed in (1, 2))
ONE = 'versions = { 1 = "one.safetensors", 2 = "two.safetensors" }\n'


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
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
    forms, mistakes = read_form(file)
    if mistakes:
        raise InvalidInput("\n".join(mistakes))
    return forms


TONE = "[tasks.tone]\n"
WRONG = {
    "not TOML": ("[tasks.tone", "it is not TOML: "),
    "deep": ("a = " + "[" * 100_000, "it is not TOML: its lists or tables are too deep"),
    "huge": (b"#" * (MAX_BYTES + 1), "it has more than 16,777,216 bytes"),
    "task as a text": ('tasks.tone = "one.safetensors"', "tasks.tone: must be a table"),
    "key of a task": (f"{TONE}alias.live = 1", "tasks.tone.alias: there is no such key; is aliases meant?"),
    "version of nothing": (f"{TONE}versions.1 = {{}}", "tasks.tone.versions.1: names neither a file nor a digest"),
    "missing file": (f'{TONE}versions.1 = "no.x"', "tasks.tone.versions.1: no.x cannot be read"),
    "folder above": (f'{TONE}versions.1 = "../outside.safetensors"', "tasks.tone.versions.1.file: ../outside."),
    "link to outside": (f'{TONE}versions.1 = "link.safetensors"', "tasks.tone.versions.1.file: link.safetensors is o"),
    "pipe": (f'{TONE}versions.1 = "pipe"', "tasks.tone.versions.1.file: pipe is neither a file nor a folder"),
    "no delta": (f'{TONE}versions.1 = "not.safetensors"', "tasks.tone.versions.1: not.safetensors: "),
    "another digest": (
        f'{TONE}versions.1 = {{ file = "one.safetensors", digest = "{DIGEST}" }}',
        "tasks.tone.versions.1: one.safetensors has another digest: sha256:",
    ),
    "one version twice": (
        f'{TONE}versions = {{ 1 = "one.safetensors", 2 = "copy.safetensors" }}',
        "tasks.tone.versions: 2 is the same as 1",
    ),
    "misspelled version": (
        f'{TONE}versions.june = "one.safetensors"\naliases.live = "jun"',
        "tasks.tone.aliases.live: the file names no version 'jun' of this task; is june meant?",
    ),
    "alias of digits": (f"{TONE}{ONE}aliases.1 = 1", "tasks.tone.aliases.1: an alias is not all digits"),
    "shares of 99": (
        f"{TONE}{ONE}aliases.live.split = {{ 1 = 90, 2 = 9 }}",
        "tasks.tone.aliases.live: the shares of a split are whole percentages above 0, and 100 together",
    ),
    "kept without a share": (f"{TONE}kept.days = 3", "tasks.tone.kept.share: is missing"),
}


@pytest.mark.parametrize(("text", "error"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_by_the_path_of_its_key(folder, text, error):
    with pytest.raises(InvalidInput) as caught:
        read(folder, text)
    assert caught.value.detail.startswith(error)
    assert "\n" not in caught.value.detail


def test_a_right_file_is_read(folder):
    text = f'[tasks.tone]\n{ONE}aliases = {{ live = {{ split = {{ 2 = 5, 1 = 95 }} }}, old = "1", gone = false }}'
    form = read(folder, text)["tone"]
    assert form.aliases == {
        "live": AliasForm(split={"2": 5, "1": 95}),
        "old": AliasForm(split={"1": 100}),
        "gone": None,
    }
    assert form.versions["1"].digest == loads(ONE_BYTES).digest


def test_a_file_need_not_be_there_where_its_digest_stands(folder):
    form = read(folder, f'[tasks.tone.versions.1]\nfile = "no.safetensors"\ndigest = "{DIGEST}"')["tone"]
    assert (form.versions["1"].digest, form.versions["1"].file) == (DIGEST, None)


def test_two_tasks_with_one_file_are_taken_and_said(folder):
    forms = read(folder, "".join(f'[tasks.{name}]\nversions.1 = "one.safetensors"\n' for name in ("a", "b")))
    assert shared_files(forms) == ["tasks.a.versions.1 and tasks.b.versions.1 are one file, one.safetensors"]
