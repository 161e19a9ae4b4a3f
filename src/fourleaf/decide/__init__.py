"""Decisions: typed questions about a state, answered with probabilities, one by one or jointly on one canvas."""
