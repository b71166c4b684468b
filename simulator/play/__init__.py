"""Playing one plan: calls are priced, then an event queue says when each runs."""
