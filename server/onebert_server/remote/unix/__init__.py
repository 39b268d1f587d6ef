"""Front ends on the engine's machine: child processes that speak to it over a Unix socket."""
