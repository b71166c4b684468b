"""AdamW in a flat order of parameters, its states whole on every data-parallel rank or cut over them (ZeRO-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.engines.layout_state import MOMENTS

if TYPE_CHECKING:
    from executor.collectives import Groups
    from executor.engines.model_spec import OptimizerConfig
    from executor.engines.native.flat import FlatParameters


class FlatAdamW:
    """Steps ``flat`` from its summed gradients. Master weights and states are fp32.

    With ``zero_stage`` 1 each data-parallel rank keeps the states of its slice, steps it, and gathers the others'.
    """

    def __init__(self, flat: FlatParameters, groups: Groups, config: OptimizerConfig, *, zero_stage: int) -> None:
        self.flat, self.groups, self.config = flat, groups, config
        self._parts = groups.dp.size if zero_stage >= 1 else 1
        size = flat.num_elements // self._parts
        self._start = groups.dp.index * size if self._parts > 1 else 0
        self._slice = slice(self._start, self._start + size)
        assert flat.gradient is not None, "only trained parameters have an optimizer"
        self.gradient = flat.gradient
        self.master = torch.nn.Parameter(torch.zeros_like(self.gradient[self._slice]))
        flat.copy_out(self._start, self.master.data)
        self._adam = torch.optim.AdamW(
            [self.master], lr=config.learning_rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
        )

    @property
    def held(self) -> slice:
        """The elements of the flat order whose states this rank holds."""
        return self._slice

    @property
    def num_steps(self) -> int:
        """Steps taken so far."""
        return int(self._adam.state.get(self.master, {}).get("step", 0))

    def states(self) -> list[torch.Tensor]:
        """Master weights and, after the first step, both moments."""
        return list(self.named_states().values())

    def named_states(self) -> dict[str, torch.Tensor]:
        """``states`` by what goes before a parameter's name in a checkpoint: nothing before that of its weights."""
        moments = self._adam.state.get(self.master, {})
        found = {f"optimizer.{name}.": moments[name] for name in MOMENTS if name in moments}
        return {"": self.master.data, **found}

    def expect(self, num_steps: int) -> None:
        """Have room for the states after ``num_steps`` steps; whoever calls this fills them, then calls ``publish``."""
        self._adam.state.clear()
        if num_steps:
            zeros = {name: torch.zeros_like(self.master.data) for name in MOMENTS}
            self._adam.state[self.master] = {"step": torch.tensor(float(num_steps)), **zeros}

    def step(self) -> float:
        """Reduce, clip, step, gather; clears the gradients and returns their global norm before clipping."""
        gradient = self._reduced()
        norm = self._norm(gradient)
        self.config.set_rate(self._adam.param_groups, self.num_steps)
        scale = min(1.0, self.config.max_grad_norm / (norm + 1e-6))
        self.master.grad = gradient * scale
        self._adam.step()
        self.master.grad = None
        self.publish()
        self.gradient.zero_()
        return norm

    def _reduced(self) -> torch.Tensor:
        """The gradient of this rank's slice, summed over data-parallel ranks."""
        self._sum_shared(self.gradient)
        if self._parts > 1:
            return self.groups.dp.reduce_scatter(self.gradient)
        return self.groups.dp.all_reduce(self.gradient)

    def _sum_shared(self, gradient: torch.Tensor) -> None:
        """Gradients that several model-parallel ranks see a share of: norms of heads, and a tied head."""
        for extent in self.flat.extents:
            view = self.flat.view(gradient, extent)
            if extent.parameter.partial_gradient:
                self.groups.tp.all_reduce(view)
            elif extent.parameter.name in self.flat.tied_names:
                self.groups.ends.all_reduce(view)

    def _norm(self, gradient: torch.Tensor) -> float:
        total = torch.zeros((), dtype=torch.float64, device=gradient.device)
        for start, stop in self.flat.counted(owns_copies=self.groups.tp.index == 0):
            first, last = max(start - self._start, 0), min(stop - self._start, gradient.numel())
            if first < last:
                total += gradient[first:last].double().square().sum()
        if self._parts > 1:
            self.groups.dp.all_reduce(total)
        return float(self.groups.model.all_reduce(total).sqrt())

    def publish(self) -> None:
        """Master weights into the parameters, everywhere; gathered in the memory of the gradients, which are done."""
        if self._parts == 1:
            self.flat.copy_in(self.master.detach())
            return
        with self.flat.scratch(self.flat.num_elements) as gathered:
            gathered[self._slice].copy_(self.master.detach())
            self.groups.dp.all_gather_in_place([gathered])
            self.flat.copy_in(gathered)
