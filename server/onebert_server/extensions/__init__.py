"""Extensions of the server, one folder each: `installed.py` lists them, and no core module imports them."""
