"""The vLLM Semantic Router: its model runtime's contract, and its `/classify` service call over HTTP."""
