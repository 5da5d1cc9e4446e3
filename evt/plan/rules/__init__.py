"""Rules: the conditions of a route; each says why a problem fails it, or what it found in one that does not."""
