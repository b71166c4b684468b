"""What a run does after a failure: clear away, plan again where devices are gone, load, resume."""
