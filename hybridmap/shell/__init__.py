"""Shell scripts read without running them: which commands bash would start, with which words."""
