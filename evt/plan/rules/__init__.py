"""Rules: the conditions of a route; each returns a match with its finding, or a refusal with its reason."""
