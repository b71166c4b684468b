"""The ranks: processes that hold a shard of every role of their pool and run its methods in call order."""
