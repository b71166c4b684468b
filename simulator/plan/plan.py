"""Plan, the intention: which roles share which GPUs, and how each role is parallelised in each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import pandas as pd

MOST = 10_000_000
"""No count of a plan is larger: GPUs, samples, sequences. Products of counts stay within 64 bits."""

MOST_BYTES = 2**60
Degree = Annotated[int, Field(ge=1, le=MOST)]
Recompute = Literal["none", "selective", "full"]
RECOMPUTE_LEVELS: tuple[Recompute, ...] = ("none", "selective", "full")
Resharding = Literal["hybridflow", "hybridflow-v", "ds-chat"]
Schedule = Literal["sync", "one-step-off", "async"]
Offload = Literal["parameters", "optimizer", "swap"]


GENERATOR = "generator"
"""Stands for a generating actor where its engines have a dedicated pool."""


class Record(BaseModel):
    """A frozen record that refuses unknown fields, NaN and infinity, and round-trips through JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TokenBudget(Record):
    """A micro-batch of so many tokens at most, over the ranks that share its sequences; a longer sample is one alone.

    A data-parallel rank deals its samples to as few micro-batches as hold its tokens, as evenly as it can.
    """

    tokens: Degree


class ParallelLayout(Record):
    """How one model is split for training or for forward passes.

    ``dp x tp x pp x cp`` ranks; expert parallelism ``ep`` overlays the data-parallel ranks. ``micro_batch`` is in
    samples per data-parallel rank, or a budget of tokens. ``zero_stage`` 0 keeps everything on each data-parallel rank,
    1 shards the optimizer, 2 the gradients too, 3 the parameters too (FSDP). ``vpp`` model chunks per pipeline stage
    (interleaved 1F1B).
    """

    dp: Degree
    tp: Degree = 1
    pp: Degree = 1
    cp: Degree = 1
    ep: Degree = 1
    vpp: Degree = 1
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    micro_batch: Degree | TokenBudget = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = True

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def token_budget(self) -> int | None:
        """Tokens of a micro-batch where they are counted, ``None`` where samples are."""
        return self.micro_batch.tokens if isinstance(self.micro_batch, TokenBudget) else None

    @property
    def micro_samples(self) -> int:
        """Samples of a micro-batch; ``ValueError`` where it is a budget of tokens."""
        if isinstance(self.micro_batch, TokenBudget):
            raise ValueError(f"micro-batches hold {self.micro_batch.tokens} tokens, not a number of samples")
        return self.micro_batch


class GenerationLayout(Record):
    """How the actor is split for generation: ``dp`` engine replicas of ``tp x pp`` GPUs each.

    ``max_num_seqs`` sequences of a replica run at once; ``kv_cache_bytes`` is the KV budget of one GPU for them.
    Inside the ``tp`` GPUs of a stage, experts may be spread whole over ``ep`` groups, and attention may run as
    ``attention_dp`` copies that share the sequences; both divide ``tp``.
    """

    dp: Degree
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    attention_dp: Degree = 1
    max_num_seqs: Degree
    kv_cache_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)]

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp * self.pp


class RolePlan(Record):
    """The layouts of one role on its pool's GPUs; a stage that the role does not run has no layout.

    ``generation_pool`` names the pool where the actor generates when that is not the pool it trains on. ``offload``
    lists what waits in host memory while another call has the GPUs; ``swap``: the parameters do, and take the place
    of the trained model's while they run.
    """

    role: str
    pool: str
    training: ParallelLayout | None = None
    inference: ParallelLayout | None = None
    generation: GenerationLayout | None = None
    generation_pool: str | None = None
    offload: tuple[Offload, ...] = ()

    @property
    def separate_generation(self) -> bool:
        """Whether the role generates on dedicated GPUs, from a weight copy there."""
        return self.generation_pool is not None and self.generation_pool != self.pool


class Pool(Record):
    """A set of GPUs ``[first_gpu, first_gpu + num_gpus)`` of one device type, and the roles that live there.

    A pool that only generates has no role of its own; the actor names it as its ``generation_pool``.
    """

    name: str
    device: str
    first_gpu: Annotated[int, Field(ge=0, le=MOST)]
    num_gpus: Degree
    roles: tuple[str, ...]


class Plan(Record):
    """A whole placement. ``placement`` is its printed name, ``{actor, reference} {critic, reward}``.

    ``schedule``: ``sync`` trains on what this iteration generated; ``one-step-off`` generates the next iteration's
    samples meanwhile, and ``async`` keeps ``steps_in_flight`` iterations of samples in the engines, which never
    drain. Both need a dedicated generation pool. ``in_flight_updates``: new weights reach engines while they
    generate, instead of between two generations. ``draft_tokens`` that engines draft in a step, 0 for none; ``None``
    as the job says.
    """

    schema_version: Literal[1] = 1
    algorithm: str
    placement: str
    pools: tuple[Pool, ...]
    roles: tuple[RolePlan, ...]
    schedule: Schedule = "sync"
    steps_in_flight: Degree = 1
    in_flight_updates: bool = False
    draft_tokens: Annotated[int, Field(ge=0, le=MOST)] | None = None
    resharding: Resharding = "hybridflow"

    def pool_of(self, role: str) -> Pool:
        """The pool that a role runs on; ``KeyError`` if the plan does not know the role."""
        return self.pool(self.role(role).pool)

    def generation_pool_of(self, role: str) -> Pool:
        """The pool that a role generates on: its own unless it names another."""
        entry = self.role(role)
        return self.pool(entry.generation_pool or entry.pool)

    def pool(self, name: str) -> Pool:
        """A pool by name; ``KeyError`` if there is none."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def members(self, pool: Pool) -> tuple[str, ...]:
        """Who is on a pool: its roles, and the generator where the actor generates apart from its training."""
        apart = any(e.separate_generation and e.generation_pool == pool.name for e in self.roles)
        return (*pool.roles, GENERATOR) if apart else pool.roles

    def role(self, role: str) -> RolePlan:
        """The layouts of a role; ``KeyError`` if the plan does not know it."""
        for entry in self.roles:
            if entry.role == role:
                return entry
        raise KeyError(role)

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs that the plan uses, by device type."""
        out: dict[str, int] = {}
        for pool in self.pools:
            out[pool.device] = out.get(pool.device, 0) + pool.num_gpus
        return out

    def to_pandas(self) -> pd.DataFrame:
        """One row a role and stage: pool, its device and GPUs, and the fields of the layout (empty where none)."""
        import pandas as pd

        rows = []
        for entry in self.roles:
            for stage in ("training", "inference", "generation"):
                layout = getattr(entry, stage)
                if layout is not None:
                    pool = self.generation_pool_of(entry.role) if stage == "generation" else self.pool_of(entry.role)
                    where = {"pool": pool.name, "device": pool.device, "gpus": pool.num_gpus}
                    rows.append({"role": entry.role, "stage": stage, **where, **layout.model_dump()})
        return pd.DataFrame(rows)


def placement_name(sets: tuple[tuple[str, ...], ...]) -> str:
    """The printed name of a set partition, roles in dataflow order: ``{actor, critic} {reward}``."""
    return " ".join("{" + ", ".join(roles) + "}" for roles in sets)
