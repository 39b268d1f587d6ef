"""Imports once what `onebert` commands import, then forks a process for each command that `forked.py` asks for.

Started as `python forking.py SOCKET FOLDER`; ends when its standard input does. On the socket at SOCKET a message is
a JSON object of arguments, environment and folder with three file descriptors; the answers are the process id and,
when the process has ended, its exit status as `subprocess` counts them.
"""

import array
import atexit
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import NoReturn

import onebert_server.run.app
import onebert_server.run.serve  # noqa: F401
from onebert_encoder.base.base import load_base
from onebert_server.facades.table import facades
from onebert_store.command import cli, console
from onebert_store.plugins import COMMANDS, installed

# What commands import when they come to need it; not pyarrow, which starts a thread.
LATER = ("httpcore", "numpy.random", "openpyxl", "scipy.stats", "stringprep")
LATER += ("sqlalchemy.dialects.sqlite", "uvicorn.loops.uvloop")
# The largest message: arguments, and an environment.
LARGEST = 1 << 20


def prepare(base: str) -> None:
    for command in installed(COMMANDS).values():
        command.load()
    facades()
    for name in LATER:
        importlib.import_module(name)
    # A model's code is imported when the first of its kind is loaded.
    load_base(base)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in those that are forked"
    # What is here now is never collected, so that its pages stay shared.
    gc.collect()
    gc.freeze()


def become(asked: dict, streams: list[int]) -> None:
    """Turns a forked process into the command's: only its imports are done already."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(asked["files"]))
    time.tzset()
    # Was looked up in the environment of the process that forks.
    tempfile.tempdir = None
    sys.argv = asked["arguments"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(number, "r" if number == 0 else "w", closefd=False, encoding="utf-8")  # noqa: SIM115
        setattr(sys, name, stream)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
    # Looks at the terminal and the environment when it is imported.
    importlib.reload(console)


def leave(status: int) -> NoReturn:
    """Ends as a program does, but frees nothing: that would take longer than most commands."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)


def reap(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as asker:
            try:
                asker.send(str(os.waitstatus_to_exitcode(status)).encode())
            except OSError:
                # Whoever asked for it is gone.
                continue


def take(asker: socket.socket) -> tuple[dict, list[int]]:
    message, ancillary, _, _ = asker.recvmsg(LARGEST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i")
    for level, kind, data in ancillary:
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        streams.frombytes(data)
    return json.loads(message), list(streams)


def fork_until_told(listener: socket.socket) -> bool:
    """Whether this process is one that was forked, and shall run its command."""
    running: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C ends the tests, which then end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    for source in (listener, woken, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            woken.recv(4096)
            reap(running)
        if sys.stdin in ready:
            return False
        if listener in ready:
            asker, _ = listener.accept()
            asked, streams = take(asker)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                selector.close()
                for mine in (listener, woken, wake, *running.values(), asker):
                    mine.close()
                become(asked, streams)
                return True
            for stream in streams:
                os.close(stream)
            running[pid] = asker
            asker.send(str(pid).encode())


if __name__ == "__main__":
    prepare(sys.argv[2])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(sys.argv[1])
        made.listen(128)
        print("ready", flush=True)
        forked = fork_until_told(made)
    if forked:
        try:
            cli.main()
        except SystemExit as ended:
            leave(ended.code or 0)
