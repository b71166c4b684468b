"""The single controller: pools, worker groups, futures and transfer protocols."""
