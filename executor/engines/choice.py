"""Which engine a role gets: plain data that travels to the ranks, and is built there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from executor.engines.fake import FakeEngine, FakeSpec
from executor.engines.function import FunctionEngine, FunctionSpec

if TYPE_CHECKING:
    from executor.engines.hybrid_choice import HybridSpec
    from executor.engines.native.engine import ModelSpec
    from executor.records import Identity
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class EngineChoice:
    """The spec says which engine: ``ModelSpec`` torch-native, ``HybridSpec`` others, ``FunctionSpec`` a function,
    ``FakeSpec`` the fake."""  # noqa: D205, D209

    spec: ModelSpec | HybridSpec | FunctionSpec | FakeSpec

    def linked(self, address: str, senders: Degrees, receivers: Degrees) -> tuple[EngineChoice, EngineChoice]:
        """The two sides of a model that trains on one pool and generates on another, meeting at ``address``."""
        if isinstance(self.spec, FunctionSpec | FakeSpec):
            return self, self
        from executor.engines.hybrid_choice import HybridSpec
        from executor.weights.link import PoolLink

        sending, receiving = (PoolLink(address, senders, receivers, sends=sends) for sends in (True, False))
        if isinstance(self.spec, HybridSpec):
            return EngineChoice(replace(self.spec, link=sending)), EngineChoice(replace(self.spec, link=receiving))
        frozen = replace(self.spec, optimizer=None, scoring=None, offload=(), link=receiving)
        return EngineChoice(replace(self.spec, link=sending)), EngineChoice(frozen)

    def build(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        """The engine of one rank, not yet loaded."""
        if isinstance(self.spec, FakeSpec):
            return FakeEngine(identity.rank, self.spec)
        if isinstance(self.spec, FunctionSpec):
            return FunctionEngine(self.spec)
        from executor.engines.hybrid_choice import HybridSpec

        if isinstance(self.spec, HybridSpec):
            return self.spec.build(identity, address, degrees)
        from executor.engines.native.engine import TorchNativeEngine

        return TorchNativeEngine(identity, address, degrees, self.spec)
