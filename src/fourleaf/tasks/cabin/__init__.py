"""What a driver says, and the tool calls that it means: examples, their check, training stream and test sets."""
