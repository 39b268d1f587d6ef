"""What all tests share: one compute thread, no Hub, and hypothesis without deadlines."""

import os

# The bases here are tiny, so a second compute thread only waits for the first; set before torch is imported, and
# inherited by the servers that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

from hypothesis import settings

# Shared machines stall; a property is not false because it was slow.
settings.register_profile("ci", deadline=None)
settings.load_profile("ci")
