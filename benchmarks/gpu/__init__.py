"""Scripts for hosts with a GPU."""
