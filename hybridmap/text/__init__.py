"""How answers read on a terminal: notation, tables, lines."""
