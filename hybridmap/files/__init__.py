"""Files that a step leaves for the next one: plans, timelines, frontiers, traces. Written whole or not at all."""
