"""The objects that servers send and clients read, each declared once; imports neither torch nor FastAPI."""
