"""Orders the work that waits for the engine: fair turns, due times, bounds; pure logic on arrays."""
