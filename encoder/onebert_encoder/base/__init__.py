"""The frozen base: its family, its configuration, its weights, its digest."""
