"""Protects what each price is said to rest on: its tables and rules, and what a calibration made of them."""

from dataclasses import replace

from hybridmap.text.evidence import evidence_of, price_lines
from profiles.calibration import FACTORS, Calibration
from simulator.calibration.factors import calibrated
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan

MODELS = {"actor": "llama-2-7b", "reference": "llama-2-7b"}
WAITED_S = 40.0


def a_plan(facts):
    return make_plan(facts, (("actor", "reference"),), (8,), tp=4)


def a_layer(facts):
    """One that was learned of training and of the controller's waiting, and of nothing else."""
    seconds = {"compute_advantage": WAITED_S / facts.workload.num_samples, "update_actor": 1e-3}
    factors = {"update_actor": 1.25, "generate_sequences": 1.0}
    return Calibration(factors, seconds_per_sample=seconds, source="a log", learned=("training",))


def test_without_a_calibration_a_price_rests_on_tables_and_rules():
    facts = make_facts("grpo", roles=MODELS)
    timeline = simulate(a_plan(facts), facts)
    found = {price.call: price for price in evidence_of(timeline, facts)}
    assert set(found) == {span.call for span in timeline.spans}
    update = found["update_actor"]
    assert update.basis == timeline.spans[[s.call for s in timeline.spans].index("update_actor")].basis
    assert (update.factor, update.beside_s, update.learned) == (1.0, 0.0, ())
    lines = price_lines(timeline, facts)
    assert all("calibration" not in line for line in lines)
    assert next(line for line in lines if line.startswith("update_actor")).count("%") >= 2


def test_what_a_calibration_moved_is_told_from_what_it_left():
    plain = make_facts("grpo", roles=MODELS)
    facts = calibrated(plain, a_layer(plain))
    timeline = simulate(a_plan(facts), facts)
    found = {price.call: price for price in evidence_of(timeline, facts)}
    assert found["update_actor"].factor == 1.25
    assert found["update_actor"].beside_s == 1e-3 * facts.workload.num_samples
    assert found["update_actor"].learned == ("training",)
    assert found["generate_sequences"].learned == ()
    assert found["compute_advantage"].alone
    lines = {line.split()[0]: line for line in price_lines(timeline, facts)}
    assert "x 1.25 by the calibration (training)" in lines["update_actor"]
    assert "s of it the calibration's own" in lines["update_actor"]
    assert lines["generate_sequences"].endswith("not moved by the calibration")
    assert lines["compute_advantage"].endswith("the calibration alone")


def test_tables_of_this_machine_are_told_from_shipped_ones():
    facts = make_facts("grpo", roles=MODELS)
    timeline = simulate(a_plan(facts), facts)
    spec = facts.device.spec
    here = replace(facts, device=facts.device.with_spec(replace(spec, sources={"a": "measured here: table copy"})))
    assert f"the tables of {spec.name}" in price_lines(timeline, facts)[-1]
    assert "tables measured here" in price_lines(timeline, here)[-1]
    own = replace(here, training=replace(facts.training, name="/p/engines/torch-native@0.1.yaml"))
    assert "host times of torch-native@0.1 are fitted to calls measured here" in price_lines(timeline, own)[-1]


def test_every_factor_has_its_calls():
    """A factor without a call would be learned and never said."""
    from hybridmap.text.evidence import FACTORS_OF

    assert {name for names in FACTORS_OF.values() for name in names} == set(FACTORS)
