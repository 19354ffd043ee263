//! GGUF files: a bounded zero-copy reader, shards, and a streaming writer.
