"""What a script sees in an environment of its own, for tests/unit/test_environments.py."""

import importlib.util
import json
import os
import sys

found = {name: importlib.util.find_spec(name) is not None for name in ("onebert_server", "onebert_store", "pip")}
print(json.dumps({"arguments": sys.argv[1:], "found": found, "given": os.environ.get("GIVEN"), "prefix": sys.prefix}))
