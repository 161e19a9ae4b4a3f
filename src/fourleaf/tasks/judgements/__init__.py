"""Groups of related judgements about a short text, each with exactly one consistent set of answers."""
