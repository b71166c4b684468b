"""The arithmetic of RL: small pure functions on tensors, B rows of R response tokens."""
