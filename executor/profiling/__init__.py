"""Micro-benchmarks by torch on the device at hand. Modules here need torch and NumPy alone, no Ray and no pydantic."""
