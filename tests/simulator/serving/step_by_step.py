"""What the quick loops are held beside: every request and every step on its own, with prices that any slip shows in."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, zip_longest

import numpy as np

from simulator.serving.run import Load, Scheduler


@dataclass(frozen=True)
class LinearPrices:
    """Prices that any slip shows in: each size has a rate of its own."""

    def decode_steps_s(self, active: int, context_tokens: int, steps: int) -> list[float]:
        return [1.0 + 0.01 * active + 1e-4 * (context_tokens + active * i) for i in range(steps)]

    def stretch_s(self, active: int, context_tokens: int, steps: int) -> float:
        return sum(self.decode_steps_s(active, context_tokens, steps))

    def until_s(
        self, active: int, context_tokens: int, steps: int, within_s: float, begun: bool
    ) -> tuple[int, float, float]:
        passed = [0.0, *accumulate(self.decode_steps_s(active, context_tokens, steps))]
        steps = max(1, min(steps, bisect_left(passed, within_s) + begun))
        return steps, passed[steps - 1], passed[steps]

    def stretches_s(self, active: np.ndarray, context_tokens: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.asarray([self.stretch_s(*one) for one in zip(active, context_tokens, steps, strict=True)])

    def mixed_step_s(self, active: int, context_tokens: int, new: list[int], past: list[int], heads: int) -> float:
        chunks = zip_longest(new, past, fillvalue=0)
        prompt = sum(0.03 * more + 1e-4 * ((before + more) ** 2 - before**2) for more, before in chunks)
        return 1.3 + 0.01 * active + 1e-4 * context_tokens + prompt + 1e-3 * heads

    def mixed_steps_s(self, steps: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        parts = np.split(chunks, np.cumsum(steps[:, 3])[:-1])
        return np.asarray(
            [self.mixed_step_s(*step[:2], *part.T.tolist(), step[2]) for step, part in zip(steps, parts, strict=True)]
        )


class Reference:
    """The same rules, one request and one step at a time, everything counted anew in every step."""

    def __init__(self, rules: Scheduler, load: Load) -> None:
        self.rules, self.load, self.prices = rules, load, LinearPrices()
        self.now = self.planned = self.front = 0.0
        self.queue: list[dict] = []  # sent, not yet seen
        self.waiting: list[dict] = []
        self.inside: list[dict] = []  # admitted, oldest first
        self.done: list[dict] = []
        self.sent = self.evictions = 0
        self.lengths = load.lengths()

    def run(self) -> tuple[float, float, float, int]:
        for _ in range(min(self.load.concurrency, self.load.num_requests)):
            self.send()
        while len(self.done) < self.load.num_requests:
            seen = self.planned if self.rules.plans_ahead else self.now
            for r in sorted((r for r in self.queue if r["arrives"] <= seen), key=lambda r: (r["arrives"], r["id"])):
                self.queue.remove(r)
                self.waiting.append(r)
            self.step()
        kept = self.done[self.load.warm_up :]
        ttft = float(np.mean([r["first"] - r["sent"] for r in kept]))
        tpot = float(np.mean([(r["end"] - r["first"]) / max(r["response"] - 1, 1) for r in kept]))
        return ttft, tpot, self.now, self.evictions

    def send(self) -> None:
        start = max(self.now, self.front)
        prompt, response = self.lengths[self.sent]
        self.front = start + self.load.front_end_s_per_prompt_token * prompt
        self.queue.append(
            {
                "id": self.sent,
                "prompt": prompt,
                "response": response,
                "sent": self.now,
                "arrives": self.front + self.load.front_end_s,
                "made": 0,
                "cached": 0,
                "decodes": False,
                "first": None,
            }
        )
        self.sent += 1

    def missing(self, r: dict) -> int:
        return 0 if r["decodes"] else r["prompt"] + r["made"] - r["cached"]

    def held(self) -> int:
        return sum(r["prompt"] + r["made"] - r["decodes"] + self.rules.tokens_of_a_sequence for r in self.inside)

    def decoding(self) -> list[dict]:
        return [r for r in self.inside if r["decodes"]]

    def evict(self) -> bool:
        before = self.evictions
        while self.decoding() and self.held() + len(self.decoding()) > self.rules.kv_tokens:
            r = self.inside.pop()
            r.update(cached=0, decodes=False)
            self.waiting.insert(0, r)
            self.evictions += 1
        return self.evictions > before

    def plan(self, evicted: bool) -> list[tuple[dict, int]]:
        beside = len(self.decoding()) if self.rules.mixes else 0
        budget, out = self.rules.token_budget - beside, []
        begun = [r for r in self.inside if not r["decodes"]]
        for r in begun:
            size = min(self.missing(r), budget, self.rules.longest_chunk)
            if size > 0:
                out.append((r, size))
                budget -= size
        coming = self.rules.keeps_for_running * sum(r["response"] - r["made"] for r in self.inside)
        admitted = 0
        while not evicted and self.waiting and budget > 0 and len(self.inside) < self.rules.max_num_seqs:
            r = self.waiting[0]
            size = min(self.missing(r), budget, self.rules.longest_chunk) if self.rules.chunked else self.missing(r)
            if size > budget and (beside or begun or admitted):
                break
            own = self.rules.admits_with_output * (r["response"] - r["made"])
            taken = self.missing(r) + self.rules.tokens_of_a_sequence
            if self.held() + taken + max(coming + own, beside) > self.rules.kv_tokens:
                break
            coming += own
            self.inside.append(self.waiting.pop(0))
            out.append((r, size))
            budget -= size
            admitted += 1
        return out

    def step(self) -> None:
        evicted = self.rules.mixes and self.evict()
        plan = self.plan(evicted)
        if not plan and not self.rules.mixes:
            self.evict()
        decoding = self.decoding() if self.rules.mixes or not plan else []
        if not plan and not decoding:
            self.now = self.planned = min(r["arrives"] for r in self.queue)
            return
        context = sum(r["prompt"] + r["made"] - 1 for r in decoding)
        chunks = [size for _, size in plan], [r["cached"] for r, _ in plan]
        finished = [r for r, size in plan if size == self.missing(r)]
        self.planned = self.now
        if plan:
            self.now += self.prices.mixed_step_s(len(decoding), context, *chunks, len(decoding) + len(finished))
        else:
            self.now += self.prices.decode_steps_s(len(decoding), context, 1)[0]
        for r, size in plan:
            r["cached"] += size
        for r in decoding:
            r["made"] += 1
        for r in finished:
            r.update(made=r["made"] + 1, decodes=True, first=self.now if r["first"] is None else r["first"])
        ends = [r for r in self.inside if r["decodes"] and r["made"] >= r["response"]]
        for r in ends:
            self.inside.remove(r)
            r["end"] = self.now
            self.done.append(r)
            if self.sent < self.load.num_requests:
                self.send()


def rules(kind: str, **changes: object) -> Scheduler:
    mixes, chunked, own, kept = {
        "mixed": (True, True, 0.0, 0.0),
        "prefill-first": (False, True, 1.0, 0.1),
        "in-flight": (True, False, 1.0, 1.0),
        "in-flight-chunked": (True, True, 1.0, 1.0),
        "max-utilization": (True, True, 0.0, 0.0),
    }[kind]
    values = {"plans_ahead": False, "max_num_seqs": 64, "token_budget": 64, "kv_tokens": 10_000, **changes}
    return Scheduler(mixes, chunked, admits_with_output=own, keeps_for_running=kept, **values)  # type: ignore[arg-type]
