"""Fuzzing: changed files and command lines for everything of ours that reads what others wrote."""
