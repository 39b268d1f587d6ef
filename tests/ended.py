"""What a command that has ended has left: its output where it succeeded, its one line where it was refused."""

import json


def succeeded(done):
    """Standard output and standard error of a command that the fixture `onebert` has run."""
    status, printed, error = done
    assert status == 0, error
    return printed, error


def refused(done):
    """The one line of a command that printed nothing else."""
    status, printed, error = done
    assert (status, printed) == (1, ""), error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def recorded(done):
    """The JSON that a command printed, and its standard error."""
    printed, error = succeeded(done)
    return json.loads(printed), error
