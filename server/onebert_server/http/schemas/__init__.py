"""Request and response bodies, with a bound for every list and string."""
