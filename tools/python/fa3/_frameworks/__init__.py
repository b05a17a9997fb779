"""fa3 for torch, transformers and diffusers."""
