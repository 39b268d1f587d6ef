"""The lean path: answers plain questions in front of FastAPI and leaves every other request to it."""
