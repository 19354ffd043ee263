//! Text and tokens: vocabulary, byte-level BPE, chat templates, reply parsers.
