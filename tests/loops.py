"""An event loop whose clock a test puts forward, so that all that waits for a time has waited for it."""

import asyncio


class Clock(asyncio.SelectorEventLoop):
    moved = 0.0

    def time(self):
        return super().time() + self.moved
