"""Work on a whole store beside its servers: checks, sweeps, copies."""
