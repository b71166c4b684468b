"""The actor as scripts see it: it learns on one group of ranks and generates on the same ones or on others.

Scripts do not write out the transition, nor which iteration's prompts are in the engines: both follow from the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from executor.controller.worker_group import WorkerGroup
    from executor.worker.futures import Future


class PromptStream:
    """The prompts of a run from iteration ``first`` on, a batch for each, made when it is first asked for.

    ``num_drawn`` batches were drawn before: as many as iterations, unless some took more than one.
    """

    def __init__(
        self, batch: Callable[[int], Future], num_iterations: int, first: int = 0, num_drawn: int | None = None
    ) -> None:
        self._batch, self.num_iterations, self._first = batch, num_iterations, first
        self.num_drawn = first if num_drawn is None else num_drawn
        self._made: dict[int, Future] = {}

    def __getitem__(self, iteration: int) -> Future:
        if iteration not in self._made:
            self._made[iteration] = self.another()
        return self._made[iteration]

    def another(self) -> Future:
        """The next batch of the run's prompts, whichever iteration takes it."""
        self.num_drawn += 1
        return self._batch(self.num_drawn - 1)

    def __iter__(self) -> Iterator[Future]:
        """One after another; those behind are forgotten."""
        for iteration in range(self._first, self.num_iterations):
            yield self[iteration]
            del self._made[iteration]


class ActorGroup:
    """Two groups under one name.

    Parameters
    ----------
    trainer
        The ranks that learn and score.
    generator
        The ranks that generate; ``trainer`` itself where the plan has them on one pool.
    ahead
        How many iterations generation is ahead of training: 0 in a synchronous schedule. In iteration ``i`` weights
        are brought over once, then the engines get the prompts of iteration ``i + ahead``, and the script gets
        responses to its own that were generated ``ahead`` iterations before.
    """

    def __init__(self, trainer: WorkerGroup, generator: WorkerGroup, ahead: int = 0) -> None:
        self.trainer, self.generator, self.ahead = trainer, generator, ahead
        self.prompts: PromptStream | None = None
        self._num_updates = 0
        self.num_drawn = 0
        self._first = 0
        self._asked: dict[str, int] = {}
        self._generated: dict[tuple[str, int], Future] = {}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return getattr(self.trainer, method)  # type: ignore[no-any-return]

    def init_model(self) -> list[Any]:
        """Load the model on both groups."""
        return [future for group in self._groups() for future in group.init_model()]

    def generate_sequences(self, prompts: Future, *, suffix: str = "", **options: Any) -> Future:
        """Responses to ``prompts``. The first pass of an iteration brings the weights over before."""
        if not suffix:
            self._transition()
        if self.ahead == 0:
            return self.generator.generate_sequences(prompts, suffix=suffix, **options)  # type: ignore[no-any-return]
        return self._generate_ahead(prompts, suffix, options)

    def generate_more(self, prompts: Future, **options: Any) -> Future:
        """Responses to further prompts of an iteration, by the weights that its first pass brought over."""
        return self.generator.generate_sequences(prompts, **options)  # type: ignore[no-any-return]

    def generate_held_out(self, prompts: Future, *, do_sample: bool) -> Future:
        """Responses to prompts that are not learned from, by the newest weights."""
        self._transition()
        return self.generator.generate_sequences(prompts, suffix="held-out", do_sample=do_sample)  # type: ignore[no-any-return]

    def update_actor(self, batch: Future) -> Future:
        """Optimizer steps; counted, so that every response knows how many updates its weights had seen."""
        self._num_updates += 1
        return self.trainer.update_actor(batch)  # type: ignore[no-any-return]

    @property
    def generated(self) -> Mapping[tuple[str, int], Future]:
        """Responses to prompts of later iterations, by the call's suffix and the iteration."""
        return self._generated

    def resume(
        self, iteration: int, num_updates: int, num_drawn: int, generated: Mapping[tuple[str, int], Future]
    ) -> None:
        """Resume with ``iteration`` of a run that has made ``num_updates``, with what it had generated ahead.

        ``num_drawn``: batches of prompts that it had drawn.
        """
        self._first, self._num_updates, self.num_drawn = iteration, num_updates, num_drawn
        self._generated = dict(generated)

    def _transition(self) -> None:
        """One call on both groups: those that send and those that receive."""
        number = self.trainer.controller.next_number()
        for group in self._groups():
            group.call_numbered(number, "transition", {"version": self._num_updates})

    def _groups(self) -> list[WorkerGroup]:
        return [self.trainer] if self.generator is self.trainer else [self.trainer, self.generator]

    def _generate_ahead(self, prompts: Future, suffix: str, options: dict[str, Any]) -> Future:
        assert self.prompts is not None, "a run gives its prompts to the actor"
        now = self._asked.get(suffix, self._first)
        if prompts is not self.prompts[now]:
            raise InputError("a plan that generates ahead of training needs the prompts of the run, in their order")
        self._asked[suffix] = now + 1
        for iteration in range(now, min(now + self.ahead + 1, self.prompts.num_iterations)):
            if (suffix, iteration) not in self._generated:
                future = self.generator.generate_sequences(self.prompts[iteration], suffix=suffix, **options)
                self._generated[suffix, iteration] = future
        return self._generated.pop((suffix, now))
