"""The choice as an integer program. The only files that know OR-Tools."""
