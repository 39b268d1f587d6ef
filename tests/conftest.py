"""What all tests share: hypothesis without deadlines, because shared machines stall."""

from hypothesis import settings

settings.register_profile("ci", deadline=None)
settings.load_profile("ci")
