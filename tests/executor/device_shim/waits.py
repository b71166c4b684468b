"""How often the host may wait for its GPU in one call of an engine, pretended or real."""

NUM_TOKENS = 6
"""That a response of ``calls`` has."""
WAITS = {
    "log_probs": 1,  # its result
    "values": 1,
    "scores": 1,
    "update": 3,  # the number of targets goes there; the norm, which clips, and the metrics come back
    "check_replicas": 4,  # a sum of every copy, on two groups of two
    "saved_state": 0,  # all copies are under way at once; CUDA is waited for once
    "to_generation": 3,  # the vote, and the sums of both sides
    "generate": 3 + 3 + NUM_TOKENS,  # prompts, mask and numbers go there, columns come back; has every row ended?
}
"""How often the host may wait in one call. Loading copies every tensor there."""
