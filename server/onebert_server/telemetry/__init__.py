"""A request seen from outside: its phases, spans, the access log, metrics of tasks."""
