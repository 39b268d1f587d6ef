"""Observes requests: phases, spans, the access log, metrics per task."""
