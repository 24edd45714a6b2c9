"""State on devices that answer late."""
