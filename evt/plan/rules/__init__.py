"""Rules: what a problem has to keep for a route; each says why one does not, or what it found in one that does."""
