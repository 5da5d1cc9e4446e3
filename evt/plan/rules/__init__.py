"""Rules: what a problem must fulfil for a route; each says why one fails it."""
