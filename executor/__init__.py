"""Executor, the room that says what happened when a plan ran. Importing it loads no torch and no Ray."""
