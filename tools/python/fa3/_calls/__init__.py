"""The functions of fa3: what they take, how the library has it, and the calls."""
