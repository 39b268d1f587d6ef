"""The page at `/`: its files, as a browser runs them; no build makes them."""
