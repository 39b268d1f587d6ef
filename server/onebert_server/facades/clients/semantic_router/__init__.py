"""The vLLM Semantic Router: the contract of its model runtime, and `/classify` as it asks services over HTTP."""
