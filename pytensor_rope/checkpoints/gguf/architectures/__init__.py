"""
The architectures that a GGUF file may name, a module each.

Each has the function ``describe``, which makes a ``Description`` of a ``ModelFile``, both of
:mod:`pytensor_rope.checkpoints.gguf.model`. Metadata leave much of a model unsaid: what its module has as a
plain value is what the model is defined with in transformers, and llama.cpp has it in its code.

References
----------
.. [1] llama.cpp as in llama-cpp-python 0.3.36, ``conversion/*.py``, ``src/models/*.cpp`` and
   ``src/llama-model.cpp``.
.. [2] transformers 5.24.0, ``models/*/modeling_*.py``.
"""

ARCHITECTURES = (
    "chatglm",
    "cohere2",
    "command-r",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "gptneox",
    "granite",
    "llama",
    "olmo2",
    "phi2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
)
