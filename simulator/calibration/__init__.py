"""What a run's measurements say about the prices: a few factors, each with its uncertainty."""
