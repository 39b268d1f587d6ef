"""The lean path: questions in the wire formats that it knows are answered in front of FastAPI, all else behind it."""
