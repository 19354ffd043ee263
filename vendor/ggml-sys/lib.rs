//! ggml declarations.
