"""A job file: its schema, how it becomes facts and a request, and how it is edited."""
