"""Prices: what a call costs in time and a role in memory. Pure functions on arrays; the only source of cost.

Shapes: ``C`` candidate layouts, ``S`` segments of a rollout. Times are ``Priced`` seconds, or a ``Cost`` of compute and
communication; memory is bytes of one GPU. A price whose operator was not measured raises ``NoBasisError``; sizes below
zero raise ``InputError``. Errors against published rows are in docs/accuracy.md, which ``make accuracy`` writes.
Functions explain the parameters below only where they mean something more.

Parameters
----------
facts
    What is known of job, device and engines.
shape
    The model.
head
    Its end: the vocabulary (``lm``), or a scalar a token.
layouts
    Candidates, ``[C]``.
precision
    Number format of weights and GEMMs.
"""
