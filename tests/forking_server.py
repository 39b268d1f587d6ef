"""A process that has imported the server and forks one for each line of standard input: a start without the imports.

A line is a JSON object of environment variables. The answer is the new server's process id, and then what it prints.
"""

import json
import os
import sys

import onebert_server.app  # noqa: F401 - imported for those that are forked
from onebert_store.command.cli import main


def serve(environment):
    os.environ.update(environment)
    sys.argv = ["onebert", "serve"]
    main()


if __name__ == "__main__":
    server = None
    for line in sys.stdin:
        if server:
            os.waitpid(server, 0)
        server = os.fork()
        if not server:
            serve(json.loads(line))
        print(server, flush=True)
