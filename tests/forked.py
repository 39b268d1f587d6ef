"""`onebert` commands as processes of their own, without the seconds of their imports: for tests that start many.

A process forks a child for each command (`forking.py`), which has its own arguments, environment, folder, standard
streams and exit status, and takes signals, as one that was started from the shell has. Tests of a start itself
(`test_http_start.py`, of the wheel and the README) run the installed program.
"""

import array
import atexit
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from bases import tiny_base


class Forked:
    """An `onebert` command that runs, with what tests use of `subprocess.Popen`; its streams are text in UTF-8."""

    def __init__(self, *arguments, env, cwd=None, stdin=subprocess.DEVNULL, stdout=None, stderr=None) -> None:
        self.args = ["onebert", *map(str, arguments)]
        self.returncode: int | None = None
        self._asking = threading.Lock()
        theirs, ours = zip(*(_ends(given, number) for number, given in enumerate((stdin, stdout, stderr))), strict=True)
        self.stdin, self.stdout, self.stderr = (
            None if end is None else os.fdopen(end, "w" if number == 0 else "r", encoding="utf-8")
            for number, end in enumerate(ours)
        )
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        asked = {"arguments": self.args, "env": env, "folder": str(cwd or Path.cwd()), "files": files}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(_parent())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))]
        self._socket.sendmsg([json.dumps(asked).encode()], rights)
        for end in theirs:
            os.close(end)
        self.pid = int(self._socket.recv(64))

    def poll(self) -> int | None:
        """The exit status where the command has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; raises subprocess.TimeoutExpired after so many seconds."""
        with self._asking:
            if self.returncode is None:
                self._socket.settimeout(timeout)
                try:
                    status = self._socket.recv(64)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
                self.returncode = int(status)
                self._socket.close()
        return self.returncode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes to its standard input, reads the streams that are pipes to their ends, and waits."""
        output = {}
        readers = [
            threading.Thread(target=lambda stream=stream: output.update({stream: stream.read()}), daemon=True)
            for stream in (self.stdout, self.stderr)
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            # A command may end before it has read everything.
            with suppress(BrokenPipeError):
                self.stdin.write(given)
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return output.get(self.stdout, ""), output.get(self.stderr, "")

    def send_signal(self, number: int) -> None:
        """To the command where it runs; another thread may be waiting for its end."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def run(*arguments, given="", env, timeout=300.0, **options) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Forked(*arguments, env=env, **pipes | options) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _ends(given, number: int) -> tuple[int, int | None]:
    """The child's end of a stream, and ours where it is a pipe."""
    if given is None:
        return os.dup(number), None
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if given != subprocess.PIPE:
        return os.dup(given if isinstance(given, int) else given.fileno()), None
    reading, writing = os.pipe()
    return (reading, writing) if number == 0 else (writing, reading)


@cache
def _parent() -> str:
    """The socket of the process that forks, which ends with this one."""
    folder = tempfile.mkdtemp(prefix="onebert-forking-")
    place = Path(folder) / "socket"
    command = [sys.executable, Path(__file__).with_name("forking.py"), place, tiny_base()]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        # It ends when its standard input does.
        started.communicate()
        shutil.rmtree(folder)

    atexit.register(end)
    assert started.stdout.readline() == "ready\n"
    return str(place)
