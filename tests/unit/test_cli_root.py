"""The `onebert` command as a user meets it: help, one-line errors, exit codes, plugged-in commands, `inspect`."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

from onebert_store.command import cli, console
from onebert_store.file.format import dumps, save
from plugin_packages import write_package
from tiny_delta import OUTPUT, make_delta, manifest_dict, tensors_for

RUN = "from onebert_store.command.cli import main; main()"

BROKEN = "error: 'broken' is unavailable: ModuleNotFoundError: No module named 'no_such_module'\n"

TRAINING = {"seed": 7, "data": "[bold]\x1b[31mred"}

PLUGIN = '''
import sys
from onebert_store.errors import StorageFull

def works(times: int = 1) -> None:
    """Say hello.

    The second paragraph is written
    on two lines.
    """
    print("hello " * times)

def full() -> None:
    """Fail as our own code fails."""
    raise StorageFull("the disk has no\\nroom for this")

def disk() -> None:
    """Fail as the system fails."""
    raise PermissionError(13, "Permission denied")

def file() -> None:
    """Fail as the system fails with a file."""
    open("no/such\\nfile")

def saves() -> None:
    """Fail to write a file whole."""
    from pathlib import Path
    from onebert_store.disk import write_whole
    write_whole(Path("no/such/delta"), b"")

def waits() -> None:
    """Wait for an interrupt."""
    print("waiting", flush=True)
    sys.stdin.read()
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package with commands: one cannot be imported, one has the name of another package's."""
    monkeypatch.setenv("COLUMNS", "100")
    names = {name: f"plugged_in:{name}" for name in ("works", "full", "disk", "file", "saves", "waits")}
    names |= {"broken": "no_such_module:command", "download": "plugged_in:works"}
    folder = write_package(tmp_path, "plugin", {"onebert.commands": names}, plugged_in=PLUGIN)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def delta_file(tmp_path):
    path = tmp_path / "spam.safetensors"
    save(path, make_delta(training=TRAINING))
    return path


def test_version(onebert):
    assert onebert("--version") == (0, f"onebert {version('onebert')}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_every_command_by_what_it_is_for(onebert, plugin, arguments):
    """One under the other: head, then its commands, in the order in which they are needed."""
    status, text, error = onebert(*arguments)
    assert (status, error) == (0 if arguments else 2, "")
    for part in ("inspect", "Show what a delta file holds", "works", "Say hello.", "broken", "Unavailable"):
        assert part in text
    words = [line.strip("│╭─ ").split(" ")[0] for line in text.splitlines()]
    heads = "Every check train push status promote serve Training methods Serving keys Files store".split()
    heads += "Research bench report sweep More works".split()
    places = [words.index(word) for word in heads]
    assert places == sorted(places)


def test_a_shell_completes_commands(plugin):
    """What the script of `onebert --show-completion` asks the command when a user presses tab."""
    asked = {"_ONEBERT_COMPLETE": "complete_bash", "COMP_WORDS": "onebert wor", "COMP_CWORD": "1"}
    code = f"import sys; sys.argv[0] = 'onebert'; {RUN}"
    environment = os.environ | asked | {"PYTHONPATH": str(plugin)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["works"]


def test_a_plugged_in_command_runs(onebert, plugin):
    assert onebert("works", "--times", "2")[1].split() == ["hello", "hello"]
    assert "The second paragraph is written on two lines." in onebert("works", "--help")[1]
    for text in ("FILE", "The delta file.", "--json", "Print one JSON object instead of tables."):
        assert text in onebert("inspect", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        *((["broken", *more], 1, BROKEN) for more in ([], ["--help"], ["a", "--b", "c"])),
        (["download", "a"], 1, "error: 'download' is unavailable: onebert and plugin both have it; uninstall one\n"),
        (["full"], 1, "error: the disk has no room for this"),
        (["disk"], 1, "error: Permission denied"),
        (["file"], 1, "error: no/such file: No such file or directory\n"),
        (["saves"], 1, "error: no/such/delta: No such file or directory\n"),
        (["nonsense"], 2, "error: No such command 'nonsense'. (see --help)"),
        (["chek"], 2, "error: No such command 'chek'. Did you mean 'check'? (see --help)"),
        (["works", "--times", "x"], 2, "error: "),
        (["works", "--nonsense"], 2, "error: No such option: --nonsense (see --help)"),
        (["works", "--time", "2"], 2, "error: No such option: --time (Possible options: --times) (see --help)"),
        (["inspect"], 2, "error: Missing argument 'FILE'. (see --help)"),
        (["inspect", "/no/such/file"], 1, "error: file cannot be read: No such file or directory"),
        (["inspect", "/"], 1, "error: / cannot be read: Is a directory"),
        (["inspect", __file__], 1, "error: test_cli_root.py: this is no delta file, or it was cut short\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(onebert, plugin, arguments, status, line):
    code, printed, error = onebert(*arguments)
    assert (code, printed, error.count("\n")) == (status, "", 1)
    assert error.startswith(line)


def test_an_interrupt_is_130_without_a_traceback(plugin):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "waits"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(plugin)},
        # What a shell starts in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")
    assert process.returncode == 130


def test_commands_import_nothing_heavy_before_they_run():
    code = "import sys; from onebert_store.plugins import COMMANDS, installed; "
    code += "[one.load() for one in installed(COMMANDS).values()]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "sklearn", "fastapi", "sqlalchemy"} & set(done.stdout.split()) == set()


def test_the_help_imports_no_command(plugin):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    command = [sys.executable, "-c", code + RUN, "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(plugin)}
    )
    assert "Say hello." in done.stdout
    modules = set(done.stderr.split())
    assert {"plugged_in", "pydantic", "numpy", "httpx"} & modules == set()
    assert "onebert_store.command.cli" in modules


def test_inspect_shows_the_facts(onebert, delta_file):
    status, printed, error = onebert("inspect", delta_file)
    assert (status, error) == (0, "")
    # A narrow terminal folds long values.
    unfolded = "".join(printed.split())
    data = delta_file.read_bytes()
    for line in (
        "base tiny (bert)",
        "labels 2: no, yes",
        "method bitfit",
        "pooling mean",
        f"digest {make_delta(training=TRAINING).digest}",
        f"file {len(data):,} bytes, 6 tensors (float32)",
        "parameters 32 in the delta, 10 in the head",
        "seed 7",
        "data [bold]?[31mred",
    ):
        assert "".join(line.split()) in unfolded
    assert "\x1b" not in printed


def test_inspect_names_every_part_of_a_calibration(onebert, tmp_path):
    rates = {name: {"here": 0.95078, "low": 0.8643, "high": 1.0} for name in ("fpr", "precision", "recall")}
    calibration = {"thresholds": {"target": "precision=0.95", "all": rates}, "temperature": {"nll": {"before": 0.35}}}
    save(tmp_path / "x", make_delta(training={"calibration": calibration}))
    printed = onebert("inspect", tmp_path / "x")[1]
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    for line in (
        "calibration thresholds target precision=0.95",
        "calibration thresholds all precision 0.9508 (new rows: 0.8643 to 1)",
        "calibration temperature nll before 0.35",
    ):
        assert line in lines
    assert "…" not in printed


def test_inspect_as_json(onebert, tmp_path):
    """No index counts as a parameter."""
    module = OUTPUT.format(0)
    indices = np.array([1, 5, 30], np.int32)
    sparse = {f"sparse_value.{module}": np.ones(3, np.float32), f"sparse_index.{module}": indices}
    delta = make_delta(tensors=tensors_for() | sparse, training=TRAINING)
    save(tmp_path / "x", delta)
    facts = json.loads(onebert("inspect", "--json", tmp_path / "x")[1])
    assert facts == manifest_dict(training=TRAINING) | {
        "digest": delta.digest,
        "bytes": len(dumps(delta)),
        "tensors": 6 + 2,
        "dtypes": ["float32", "int32"],
        "parameters": {"delta": 32 + 3, "head": 10},
        "golden": 0,
        "fingerprint": False,
        "reference": None,
    }


def test_inspect_shortens_many_labels(onebert, tmp_path):
    save(tmp_path / "x", make_delta(labels=[f"label-{i}" for i in range(77)]))
    printed = onebert("inspect", tmp_path / "x")[1]
    assert "77: label-0, label-1," in printed
    assert "and 65 more" in " ".join(printed.split())


@pytest.mark.parametrize(("command", "usual", "seldom"), [("train", 13, "--patience"), ("score", 11, "--part-rows")])
def test_a_long_help_shows_the_usual_options_first(onebert, command, usual, seldom):
    shown, every = (
        set(re.findall(r"^│[ *]+(--[\w-]+)", onebert(command, flag)[1], re.MULTILINE)) - {"--help", "--help-all"}
        for flag in ("--help", "--help-all")
    )
    assert (len(shown), seldom in shown, seldom in every, shown < every) == (usual, False, True, True)
    assert "--help-all" not in onebert("promote", "--help")[1]


def test_half_of_a_surrogate_pair_is_printed_as_json_escapes_it(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["onebert", "inspect", "nowhere.safetensors"])
    with pytest.raises(SystemExit):
        cli.main()
    console.print_json({"id": "a\ud83d"})
    out.flush()
    assert b'"id": "a\\ud83d"' in out.buffer.getvalue()
