"""SGLang as the engine that generates."""
