"""Answers to a user's questions that take more than one search: does it fit, what if, compared with what."""
