"""Who updates which parameter, how, and at what rate."""
