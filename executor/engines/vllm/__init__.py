"""vLLM as a generation engine, inside the rank's own process. Everything here imports vllm lazily."""
