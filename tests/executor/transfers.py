"""What a transfer plan says of a rank, in elements, added up as the product never needs it."""

from executor.weights.regions import volume


def conversion_elements(plan, rank):
    """Elements of the largest bucket that a rank holds besides its shards: a gather's, or sent and got at once."""
    gathers = plan.gathers.get(plan.group_of(rank), ())
    gathered = [bucket.elements_of_each * len(bucket.group) for bucket in gathers]
    exchanged = [
        sum(
            piece.num_elements * ((piece.source.rank == rank) + (piece.target.rank == rank))
            for piece in bucket.pieces
            if piece.source.rank != piece.target.rank
        )
        for bucket in plan.exchanges
    ]
    return max([*gathered, *exchanged], default=0)


def even_elements(plan):
    """Elements of the model in evenly sharded slots: Table 2's M."""
    gathered = [s for group in plan.gathers.values() for bucket in group for member in bucket.members for s in member]
    held = {(r.name, r.box) for s in gathered if s.slot in plan.even_slots for r in s.regions}
    return sum(volume(box) for _, box in held)
